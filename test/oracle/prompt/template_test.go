package oracle

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/routing/prompt/jinja"
)

type answer struct {
	Text  string `json:"text"`
	Error string `json:"error"`
}

type templateCase struct {
	Template string          `json:"template"`
	Vars     json.RawMessage `json:"vars"`
}

// pythonAnswers asks the real Jinja2.
func pythonAnswers(t *testing.T, cases []templateCase) []answer {
	t.Helper()
	if raceDetector {
		t.Skip("not under the race detector")
	}
	const python = "/usr/bin/python3"
	if err := exec.CommandContext(t.Context(), python, "-c", "import jinja2").Run(); err != nil {
		t.Skip("python3-jinja2 is not installed")
	}
	var in bytes.Buffer
	for _, c := range cases {
		if err := json.NewEncoder(&in).Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), python, "render.py")
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answers []answer
	for line := range bytes.Lines(out) {
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != len(cases) {
		t.Fatalf("the oracle answered %d of %d", len(answers), len(cases))
	}
	return answers
}

// agree compares our rendering with Jinja2's: the same text, or an error where
// it has one. An ErrUnsupported is the permitted answer to anything, and
// counted.
func agree(t *testing.T, cases []templateCase) (rendered, unsupported int) {
	t.Helper()
	defer func() { t.Logf("Jinja2 renders %d of %d", rendered, len(cases)) }()
	for i, want := range pythonAnswers(t, cases) {
		if want.Error == "" {
			rendered++
		}
		got, err := render(t, cases[i])
		switch {
		case errors.Is(err, jinja.ErrUnsupported):
			unsupported++
			t.Logf("unsupported: %q: %v (Jinja2: %+v)", cases[i].Template, err, want)
		case (err != nil) != (want.Error != ""):
			t.Errorf("%q\n got %q, error %v\nwant %q, error %s", cases[i].Template, got, err, want.Text, want.Error)
		case got != want.Text:
			t.Errorf("%q\n got %q\nwant %q", cases[i].Template, got, want.Text)
		}
	}
	return rendered, unsupported
}

// now is what render.py takes for now.
var now = time.Date(2026, 3, 7, 14, 5, 9, 1234_000, time.UTC)

func render(t *testing.T, c templateCase) (string, error) {
	t.Helper()
	vars, err := jinja.FromJSON(c.Vars)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := jinja.Parse(c.Template)
	if err != nil {
		return "", err
	}
	return tmpl.Render(t.Context(), vars.(*jinja.Dict), jinja.Limits{Steps: 1e7, Bytes: 1e9, Now: now})
}

const snippetVars = `{"a":0,"b":"","c":2.5,"d":true,"e":false,"f":null,"g":-7,"s":"héllo wörld","l":[3,"x",2.5,null],
 "o":{"x":1,"b":[true,null],"a\"q":"é\n\u0001<>&'"},"u":"日本\u200b😀\u00a0é\u007f","kv":{"items":[1]},
 "ms":[{"role":"user","content":["c0"]},{"role":"assistant","content":"c1","name":"n"},{"role":"tool","content":""}],
 "i1":9007199254740993,"i2":-0,"f1":1.0,"f2":-0.0,"f3":1e22,"f4":1.5e-7}`

func TestSnippetsRenderAsInJinja2(t *testing.T) {
	data, err := os.ReadFile("testdata/snippets.txt")
	if err != nil {
		t.Fatal(err)
	}
	var cases []templateCase
	for _, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		cases = append(cases, templateCase{strings.ReplaceAll(line, `\n`, "\n"), json.RawMessage(snippetVars)})
	}
	_, unsupported := agree(t, cases)
	t.Logf("%d snippets, %d unsupported", len(cases), unsupported)
}
