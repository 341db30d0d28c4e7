package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// schemaDir is where the published OCSF schema lies, if it does.
const (
	schemaDir   = "../../../../shared/ocsf"
	apiActivity = "events/application/api_activity"
)

// ocsfSchema validates events against the schema's own files.
type ocsfSchema struct {
	dir        string
	dictionary map[string]attribute
	types      map[string]struct {
		Type string `json:"type"`
	}
	objects map[string]object
	listed  []string // profiles that the event says it uses
}

type attribute struct {
	Type        string               `json:"type"`
	IsArray     bool                 `json:"is_array"`
	Requirement string               `json:"requirement"`
	Enum        map[string]enumValue `json:"enum"`
	profile     string               // that brings it, if one does
}

type enumValue struct {
	Caption string `json:"caption"`
}

type object struct {
	Extends     string                     `json:"extends"`
	Attributes  map[string]json.RawMessage `json:"attributes"`
	Constraints map[string][]string        `json:"constraints"`
	resolved    map[string]attribute
}

func loadOCSF(t *testing.T) *ocsfSchema {
	t.Helper()
	s := &ocsfSchema{dir: schemaDir, listed: []string{"ai_operation", "record_integrity", "security_control"}, objects: make(map[string]object)}
	var dictionary struct {
		Attributes map[string]attribute `json:"attributes"`
		Types      struct {
			Attributes map[string]struct {
				Type string `json:"type"`
			} `json:"attributes"`
		} `json:"types"`
	}
	err := s.read("dictionary.json", &dictionary)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no OCSF schema at", schemaDir)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.dictionary, s.types = dictionary.Attributes, dictionary.Types.Attributes
	return s
}

func (s *ocsfSchema) read(name string, into any) error {
	b, err := os.ReadFile(filepath.Join(s.dir, filepath.FromSlash(name)))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// resolve loads an object or class with all that it inherits and includes.
func (s *ocsfSchema) resolve(name string) (object, error) {
	if o, ok := s.objects[name]; ok {
		return o, nil
	}
	var o object // "events/…" is a class, of which one has the name of an object
	err := s.read(name+".json", &o)
	if err != nil {
		return o, err
	}
	o.resolved = make(map[string]attribute)
	if o.Extends != "" && o.Extends != name {
		at := path.Dir(name) + "/" + o.Extends
		if o.Extends == "base_event" {
			at = "events/base_event"
		}
		parent, err := s.resolve(at)
		if err != nil {
			return o, err
		}
		maps.Copy(o.resolved, parent.resolved)
		if o.Constraints == nil {
			o.Constraints = parent.Constraints
		}
	}
	if err := s.include(o.resolved, o.Attributes, ""); err != nil {
		return o, fmt.Errorf("%s: %w", name, err)
	}
	if name == apiActivity { // what these two may be follows from the class itself
		for attr, want := range map[string]string{"category_uid": "6", "class_uid": "6003"} {
			a := o.resolved[attr]
			a.Enum = map[string]enumValue{want: {}}
			o.resolved[attr] = a
		}
	}
	s.objects[name] = o
	return o, nil
}

func (s *ocsfSchema) include(into map[string]attribute, attributes map[string]json.RawMessage, from string) error {
	var files []string
	if raw, ok := attributes["$include"]; ok {
		if err := json.Unmarshal(raw, &files); err != nil {
			return err
		}
	}
	for _, f := range files {
		var profile object
		if err := s.read(f, &profile); err != nil {
			return err
		}
		if err := s.include(into, profile.Attributes, strings.TrimSuffix(path.Base(f), ".json")); err != nil {
			return err
		}
	}
	for name, raw := range attributes {
		if name == "$include" {
			continue
		}
		a := into[name]
		if a.Type == "" {
			a = s.dictionary[name]
		}
		enum := maps.Clone(a.Enum)
		a.Enum = nil
		if err := json.Unmarshal(raw, &a); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for k, v := range enum { // a class adds to what the dictionary has
			if a.Enum == nil {
				a.Enum = make(map[string]enumValue)
			}
			if _, ok := a.Enum[k]; !ok {
				a.Enum[k] = v
			}
		}
		a.profile = from
		into[name] = a
	}
	return nil
}

// check validates one value of an object type, and says every problem.
func (s *ocsfSchema) check(place, name string, v map[string]any) (problems []string) {
	o, err := s.resolve(name)
	if err != nil {
		return []string{place + ": " + err.Error()}
	}
	bad := func(format string, args ...any) { problems = append(problems, place+": "+fmt.Sprintf(format, args...)) }
	for name, a := range o.resolved {
		if a.profile != "" && !slices.Contains(s.listed, a.profile) {
			continue
		}
		if _, ok := v[name]; !ok && a.Requirement == "required" {
			bad("required %s is missing", name)
		}
	}
	if any := o.Constraints["at_least_one"]; len(any) > 0 && !slices.ContainsFunc(any, func(n string) bool { _, ok := v[n]; return ok }) {
		bad("none of %v", any)
	}
	for name, value := range v {
		a, ok := o.resolved[name]
		if !ok || a.profile != "" && !slices.Contains(s.listed, a.profile) {
			bad("unknown attribute %s", name)
			continue
		}
		values := []any{value}
		if a.IsArray {
			list, ok := value.([]any)
			if !ok {
				bad("%s is no list", name)
				continue
			}
			values = list
		}
		for _, one := range values {
			problems = append(problems, s.checkValue(place+"."+name, a, one)...)
		}
	}
	return problems
}

func (s *ocsfSchema) checkValue(place string, a attribute, v any) []string {
	typ := a.Type
	if def, ok := s.types[typ]; ok {
		if def.Type != "" {
			typ = def.Type
		}
	} else {
		child, ok := v.(map[string]any)
		switch {
		case !ok:
			return []string{fmt.Sprintf("%s: want %s, got %v", place, a.Type, v)}
		case a.Type == "object": // free
			return nil
		}
		return s.check(place, "objects/"+a.Type, child)
	}
	text, ok := "", true
	switch typ {
	case "string_t":
		text, ok = v.(string)
	case "integer_t", "long_t", "timestamp_t":
		var n json.Number
		if n, ok = v.(json.Number); ok {
			_, err := strconv.ParseInt(n.String(), 10, 64)
			text, ok = n.String(), err == nil
		}
	case "boolean_t":
		_, ok = v.(bool)
	case "json_t":
		return nil
	default:
		return []string{place + ": no rule for type " + typ}
	}
	if !ok {
		return []string{fmt.Sprintf("%s: want %s, got %v", place, typ, v)}
	}
	if len(a.Enum) > 0 {
		if _, ok := a.Enum[text]; !ok && typ == "integer_t" {
			return []string{place + ": " + text + " is not in the enumeration"}
		}
	}
	return nil
}

func parseOCSF(t *testing.T, b []byte) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.UseNumber()
	var v map[string]any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestEveryEventIsValidOCSF(t *testing.T) {
	s := loadOCSF(t)
	lines := [][]byte{}
	for _, e := range events(t) {
		for c := whole; c <= bare; c++ {
			b, err := ocsfEvent(e, c)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, b)
		}
	}
	b, err := ocsfAnchor(anchor())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range append(lines, b) {
		v := parseOCSF(t, line)
		if problems := s.check("event", apiActivity, v); len(problems) > 0 {
			t.Errorf("%s\n  %s", line, strings.Join(problems, "\n  "))
		}
		if got := v["metadata"].(map[string]any)["version"]; !strings.HasPrefix(s.version(t), got.(string)) {
			t.Errorf("version %v, schema %s", got, s.version(t))
		}
		if got := fmt.Sprint(v["metadata"].(map[string]any)["profiles"]); got != fmt.Sprint(s.listed) {
			t.Errorf("profiles %v", got)
		}
		s.checkCaptions(t, v)
	}
}

// checkCaptions: a text beside a number of an enumeration is its caption.
func (s *ocsfSchema) checkCaptions(t *testing.T, v map[string]any) {
	t.Helper()
	class, err := s.resolve(apiActivity)
	if err != nil {
		t.Fatal(err)
	}
	for id, text := range map[string]string{"severity_id": "severity", "status_id": "status", "action_id": "action", "disposition_id": "disposition", "activity_id": "activity_name"} {
		n := v[id].(json.Number).String()
		if n == "99" {
			continue
		}
		if want := class.resolved[id].Enum[n].Caption; v[text] != want {
			t.Errorf("%s is %s, %s should be %q, is %q", id, n, text, want, v[text])
		}
	}
}

func (s *ocsfSchema) version(t *testing.T) string {
	t.Helper()
	var v struct {
		Version string `json:"version"`
	}
	if err := s.read("version.json", &v); err != nil {
		t.Fatal(err)
	}
	return v.Version
}

// What validates must be able to fail.
func TestTheOCSFCheckRefusesWhatItShould(t *testing.T) {
	s := loadOCSF(t)
	e := events(t)[0]
	for name, spoil := range map[string]func(map[string]any){
		"required src_endpoint is missing":  func(v map[string]any) { delete(v, "src_endpoint") },
		"unknown attribute prompt":          func(v map[string]any) { v["prompt"] = "x" },
		"unknown attribute colour":          func(v map[string]any) { v["actor"].(map[string]any)["user"].(map[string]any)["colour"] = "x" },
		"is not in the enumeration":         func(v map[string]any) { v["severity_id"] = json.Number("7") },
		"want string_t":                     func(v map[string]any) { v["message"] = json.Number("7") },
		"event.time: want long_t":           func(v map[string]any) { v["time"] = "now" },
		"is no list":                        func(v map[string]any) { v["attestation_list"] = map[string]any{} },
		"required product is missing":       func(v map[string]any) { delete(v["metadata"].(map[string]any), "product") },
		"none of [process user iam_role":    func(v map[string]any) { v["actor"] = map[string]any{} },
		"want boolean_t":                    func(v map[string]any) { v["is_alert"] = "yes" },
		"required ai_provider is missing":   func(v map[string]any) { v["ai_model"] = map[string]any{"name": "m"} },
		"none of [application service]":     func(v map[string]any) { delete(v["message_context"].(map[string]any), "service") },
		"event.metadata: unknown attribute": func(v map[string]any) { v["metadata"].(map[string]any)["seq"] = "x" },
	} {
		b, err := ocsfEvent(e, whole)
		if err != nil {
			t.Fatal(err)
		}
		v := parseOCSF(t, b)
		spoil(v)
		if got := strings.Join(s.check("event", apiActivity, v), "; "); !strings.Contains(got, name) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
