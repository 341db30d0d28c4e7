package jinja

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func values(t testing.TB, json string) *Dict {
	t.Helper()
	v, err := FromJSON([]byte(json))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*Dict)
}

func render(t testing.TB, source, vars string) (string, error) {
	t.Helper()
	tmpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	return tmpl.Render(t.Context(), values(t, vars), Limits{Steps: 100_000, Bytes: 1 << 20})
}

// The oracle under test/oracle/prompt compares many more with Jinja2 itself;
// these are the answers it gave.
func TestRender(t *testing.T) {
	const vars = `{"s": "héllo", "n": 7, "f": 1.0, "l": [3, "x", null], "o": {"b": 1, "a": [true, 2.50, "é\n"]}, "none": null,
 "ms": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}`
	for _, c := range []struct{ claim, in, want string }{
		{"None, True and floats print as in Python", "{{ x }}{{ o.q }}{{ none }}|{{ true }}|{{ f }}|{{ 1e16 }}", "None|True|1.0|1e+16"},
		{"values print as their repr inside others", "{{ l }}{{ o }}", `[3, 'x', None]{'b': 1, 'a': [True, 2.5, 'é\n']}`},
		{"tojson keeps order, numbers and letters", "{{ o|tojson }}", `{"b": 1, "a": [true, 2.5, "é\n"]}`},
		{"tojson indents", "{{ {'a': [1]}|tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"},
		{"integers divide downwards", "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "-4 2 3.5"},
		{"strings are counted in characters", "{{ s|length }}{{ s[1] }}{{ s[::-1] }}", "5éolléh"},
		{"slices clamp", "{{ l[1:] }}{{ l[-1:] }}{{ l[5:] }}{{ l[::-1] }}", "['x', None][None][][None, 'x', 3]"},
		{"a loop's names end with its turn", "{% set v = 0 %}{% for i in l %}{{ v }}{% set v = 1 %}{{ v }}{% endfor %}{{ v }}", "0101010"},
		{"a namespace lives on", "{% set ns = namespace(v=0) %}{% for i in l %}{% set ns.v = ns.v + 1 %}{% endfor %}{{ ns.v }}", "3"},
		{"loop knows its place", "{% for m in ms %}{{ loop.index }}/{{ loop.length }}{{ loop.previtem.role if not loop.first }}{{ loop.last }} {% endfor %}", "1/2False 2/2userTrue "},
		{"a block tag takes its line", "a\n  {% if n %}\n  b\n  {% endif %}\nc", "a\n  b\nc"},
		{"a minus takes all white space", "a \n {%- if n -%} \n b \n {%- endif %}", "ab"},
		{"a variable keeps its line end", "{{ n }}\nx\n", "7\nx"},
		{"undefined is not None", "{{ x is defined }}{{ none is defined }}{{ x is none }}{{ none is none }}", "FalseTrueFalseTrue"},
		{"dict methods hide members from the dot only", "{% set d = {'items': 1, 'x': 2} %}{{ d['items'] }}{{ d.x }}{{ d.items() | list }}", "12[('items', 1), ('x', 2)]"},
		{"comparisons chain", "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}", "TrueFalse"},
		{"or returns an operand", "{{ x or 'd' }}{{ 0 or none }}", "dNone"},
		{"a macro takes its arguments by place, name or default", "{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, c=5) }}{{ m() }}", "122;125;22;"},
		{"a macro sees names as they are when it is called", "{% macro m() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ m() }}{% set v = 2 %}{{ m() }}", "12"},
		{"a name set later is undefined in a macro, though it was passed in", "{% macro m() %}{{ s }}{% endmacro %}[{{ m() }}]{% set s = 1 %}{{ m() }}", "[]1"},
		{"a macro's names end with it", "{% macro m() %}{% set v = 1 %}{{ v }}{% endmacro %}{{ m() }}{{ v is defined }}", "1False"},
		{"generation marks text and keeps names", "{% generation %}{% set v = 1 %}{{ v }}{% endgeneration %}{{ v is defined }}", "1False"},
		{"what is marked safe escapes what is added to it", "{{ '<' + ('<' | safe) }}{{ '<' ~ ('<' | safe) }}", "&lt;<<<"},
		{"sorting ignores case", "{{ ['b', 'A', 'a', 'B'] | sort }}", "['A', 'a', 'b', 'B']"},
		{"a filter that there is not fails where it is reached", "{% if not n %}{{ n | nonsense }}{% endif %}ok", "ok"},
		{"repeating nothing costs nothing", "{{ ('' * 9000000000000000000) ~ ([] * 9000000000000000000) }}", "[]"},
	} {
		if got, err := render(t, c.in, vars); err != nil || got != c.want {
			t.Errorf("%s: %q gives %q, %v; want %q", c.claim, c.in, got, err, c.want)
		}
	}
}

func TestWhatIsLeftOutIsRefusedByName(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"{% call m() %}{% endcall %}", "tag call"},
		{"{% macro m() %}{{ caller() }}{% endmacro %}", "function caller"},
		{"{% macro m(loop) %}{% endmacro %}", "parameter loop"},
		{"{% macro range() %}{% endmacro %}", "setting range"},
		{"{% include 'x' %}", "tag include"},
		{"{% import 'x' as y %}", "tag import"},
		{"{% extends 'x' %}", "tag extends"},
		{"{% raw %}{% endraw %}", "tag raw"},
		{"{% for x in l recursive %}{% endfor %}", "recursive loop"},
		{"{% set x | upper %}{% endset %}", "filter on a set block"},
		{"{% set loop = 1 %}", "setting loop"},
		{"{{ x | pprint }}", "filter pprint"},
		{"{{ x | map('pprint') }}", "map of this filter"},
		{"{{ x | map(f) }}", "map with this argument"},
		{"{{ x | selectattr('a', 'divisibleby', 2) }}", "arguments for the filter selectattr"},
		{"{{ x is divisibleby 3 }}", "test divisibleby"},
		{"{{ x.format(1) }}", "method format"},
		{"{{ x.append(1) }}", "method append"},
		{"{{ x.strip(1, 2) }}", "arguments for the method strip"},
		{"{{ x.__class__ }}", "attribute __class__"},
		{"{{ (x)(1) }}", "call of an expression"},
		{"{{ strftime_now() }}", "strftime_now"},
		{"{{ dict(a=1) }}", "function dict"},
		{"{{ cycler }}", "cycler"},
		{"{{ loop.cycle('a') }}", "loop.cycle"},
		{"{{ 2 ** 3 }}", "operator **"},
		{"{{ 0x1f }}", "number"},
		{"{{ 99999999999999999999 }}", "number"},
		{`{{ "\N{DASH}" }}`, "escape"},
		{`{{ "\ud83d" }}`, "escape"},
		{"{{ größe }}", "name"},
		{"{{ f(*x) }}", "* in arguments"},
		{"{% for i in l %}{{ n }}{% endfor %}{% if i %}{% set n = 1 %}{% endif %}", "setting n here after a loop or macro has read it"},
	} {
		if _, err := Parse(c.in); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want ErrUnsupported with %q", c.in, err, c.want)
		}
	}
}

func TestSyntaxErrors(t *testing.T) {
	for _, in := range []string{
		"{{", "{{ 1", "{% if %}", "{% if x %}", "{% endif", "{# x", "{{ 'x }}", "{{ ) }}", "{{ [1 }}", "{% for %}{% endfor %}", "{% for x of y %}{% endfor %}",
		"{% break %}", "{{ a b }}", "{{ a. }}", "{{ a[] }}", "{{ 1 + }}", "{% set %}", "{% set 1 = 2 %}", "{{ x is }}", "{{ x | }}", "{{ f(a=1, a=2) }}", "{{ ? }}", "{% if x %}{% else %}{% elif y %}{% endif %}",
	} {
		if _, err := Parse(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

func TestPythonsErrorsAreErrors(t *testing.T) {
	for _, in := range []string{
		"{{ 'a' + 1 }}", "{{ none + 'a' }}", "{{ x.y }}", "{{ x[0] }}", "{{ x + 1 }}", "{{ 1 < 'a' }}", "{{ 1 in 'a' }}", "{{ 'a' in 5 }}", "{% for i in 5 %}{% endfor %}",
		"{% for a, b in [[1]] %}{% endfor %}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 5|length }}", "{{ x|tojson }}", "{{ 'a'.split('') }}", "{{ [1][::0] }}", "{% set y.z = 1 %}", "{{ -[] }}",
		"{{ f() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{{ [1, 'a'] | sort }}",
		"{% if true %}{{ 1 | nonsense }}{% endif %}", "{{ '%d' | format('x') }}", "{{ x | int }}",
	} {
		if got, err := render(t, in, `{}`); err == nil || errors.Is(err, ErrBudget) {
			t.Errorf("%q gives %q, %v", in, got, err)
		}
	}
	_, err := render(t, "{{ raise_exception('no ' ~ 1) }}", `{}`)
	if r := (*RaisedError)(nil); !errors.As(err, &r) || r.Message != "no 1" {
		t.Errorf("raise_exception gives %v", err)
	}
}

func TestIntegersDoNotOverflowSilently(t *testing.T) {
	for _, in := range []string{"{{ n + 1 }}", "{{ n * 2 }}", "{{ -n - 2 }}", "{{ (-n - 1) // -1 }}"} {
		if _, err := render(t, in, `{"n": 9223372036854775807}`); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// hostile are templates that would take time, memory or stack without end.
var hostile = map[string]string{
	"nested loops":                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
	"doubling a string":           "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
	"doubling by ~":               "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
	"doubling by replace":         "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}",
	"doubling by join":            "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
	"doubling a list":             "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
	"repeating a string":          "{{ 'x' * 9000000000000000000 }}",
	"printing a shared value":     "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
	"dumping a shared value":      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}",
	"comparing shared values":     "{% set a = namespace(s=[1], t=[1]) %}{% for i in range(99) %}{% set a.s = [a.s, a.s] %}{% set a.t = [a.t, a.t] %}{% endfor %}{{ a.s == a.t }}",
	"a deep value printed":        "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
	"a deep value dumped":         "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s | tojson }}",
	"much output":                 "{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}",
	"searching a long string":     "{% set s = 'x' * 900000 %}{% for i in range(99999) %}{% if 'y' in s %}{% endif %}{% endfor %}",
	"many ranges":                 "{% for i in range(9999) %}{% set r = range(99999) %}{% endfor %}",
	"a macro that calls itself":   "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
	"macros that call each other": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
	"a tree of macros":            "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
	"a macro that doubles":        "{% macro m(n, s) %}{% if n > 0 %}{{ m(n - 1, s ~ s) }}{% endif %}{% endmacro %}{{ m(60, 'x') }}",
	"sorting again and again":     "{% for i in range(9999) %}{% set l = range(9999) | sort(reverse=true) %}{% endfor %}",
	"escaping":                    "{% set ns = namespace(s='<') %}{% for i in range(99) %}{% set ns.s = ns.s ~ (ns.s + ('x' | safe)) %}{% endfor %}",
	"indenting":                   "{% for i in range(9999) %}{{ [[[[[[[[[[1]]]]]]]]]] | tojson(indent=64) }}{% endfor %}",
}

func TestHostileTemplatesHitTheBudget(t *testing.T) {
	for name, in := range hostile {
		start := time.Now()
		_, err := render(t, in, `{}`)
		if !errors.Is(err, ErrBudget) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
}

func TestDeepTemplatesAreRefused(t *testing.T) {
	for name, in := range map[string]string{
		"parentheses": "{{ " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + " }}",
		"brackets":    "{{ " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + " }}",
		"not":         "{{ " + strings.Repeat("not ", 100_000) + "1 }}",
		"minus":       "{{ " + strings.Repeat("-", 100_000) + "1 }}",
		"dots":        "{{ a" + strings.Repeat(".a", 100_000) + " }}",
		"sums":        "{{ 1" + strings.Repeat("+1", 100_000) + " }}",
		"filters":     "{{ 1" + strings.Repeat("|string", 100_000) + " }}",
		"inline ifs":  "{{ 1" + strings.Repeat(" if 1", 100_000) + " }}",
		"else ifs":    "{{ 1" + strings.Repeat(" if 1 else 1", 50_000) + " }}",
		"blocks":      strings.Repeat("{% if 1 %}", 50_000) + strings.Repeat("{% endif %}", 50_000),
		"size":        strings.Repeat("x", maxSource+1),
	} {
		if _, err := Parse(in); !errors.Is(err, ErrBudget) {
			t.Errorf("%s: %.100v", name, err)
		}
	}
}

func TestTheContextStopsARendering(t *testing.T) {
	tmpl, err := Parse(hostile["nested loops"])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tmpl.Render(ctx, &Dict{}, Limits{Steps: 1 << 40, Bytes: 1 << 40}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestIteratesContent(t *testing.T) {
	for _, c := range []struct {
		in   string
		want bool
	}{
		{"{% for m in messages %}{{ m.content }}{% endfor %}", false},
		{"{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", true},
		{"{% for m in messages[1:] %}{% for p in m['content'] | list %}{% endfor %}{% endfor %}", true},
		{"{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}", true},
		{"{% for m in others %}{% for p in m.content %}{% endfor %}{% endfor %}", false},
		{"{% for m in messages %}{% for p in m.tool_calls %}{% endfor %}{% endfor %}", false},
	} {
		tmpl, err := Parse(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if got := tmpl.IteratesContent(); got != c.want {
			t.Errorf("%q: %v", c.in, got)
		}
	}
}

func TestJSONIsReadAsPythonReadsIt(t *testing.T) {
	for _, c := range []struct{ claim, in, want string }{
		{"integers and floats stay apart", `[1, 1.0, -0, -0.0, 1e2, 1E400]`, "[1, 1.0, 0, -0.0, 100.0, Infinity]"},
		{"members keep their order", `{"b": 1, "a": 2}`, `{"b": 1, "a": 2}`},
		{"of a repeated member the last value counts", `{"b": 1, "a": 2, "b": 3}`, `{"b": 3, "a": 2}`},
	} {
		v, err := FromJSON([]byte(c.in))
		if err != nil {
			t.Fatal(err)
		}
		d := &dumper{run: &run{steps: 1000, bytes: 1000}, indent: -1}
		if err := d.dump(v, 0); err != nil || d.b.String() != c.want {
			t.Errorf("%s: %s gives %s, %v", c.claim, c.in, d.b.String(), err)
		}
	}
	for _, in := range []string{``, `[`, `{"a"}`, `1 2`, "\"\xff\"", `"\ud800"`, `99999999999999999999`, strings.Repeat("[", 1000) + strings.Repeat("]", 1000)} {
		if v, err := FromJSON([]byte(in)); err == nil {
			t.Errorf("%.40q was read as %v", in, v)
		}
	}
}

func TestManyMembersKeepOrder(t *testing.T) {
	d := &Dict{}
	for i := range 100 {
		d.Set(fmt.Sprint(i*7%100), int64(i))
	}
	d.Set("49", "again")
	if d.Len() != 100 {
		t.Errorf("%d members", d.Len())
	}
	if k, v := d.At(7); k != "49" || v != "again" {
		t.Errorf("member 7 is %s: %v", k, v)
	}
}

// FuzzRender holds that no template or value breaks the interpreter: it ends
// with a text within the budget, or an error.
func FuzzRender(f *testing.F) {
	for _, in := range hostile {
		f.Add(in, `{}`)
	}
	f.Add("{% for m in ms %}{{- m.role ~ m['content'][::-1] | trim | tojson }}{% endfor %}", `{"ms": [{"role": "é", "content": "x"}]}`)
	f.Add("{%- set x, y = o.items() | first %}{{ x is string and y in [1] or not (2 * -3.5 // 2) }}", `{"o": {"a": 1}}`)
	f.Fuzz(func(t *testing.T, source, vars string) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		v, err := FromJSON([]byte(vars))
		if err != nil {
			return
		}
		d, ok := v.(*Dict)
		if !ok {
			return
		}
		const limit = 1 << 16
		out, err := tmpl.Render(t.Context(), d, Limits{Steps: 10_000, Bytes: limit})
		if err == nil && len(out) > limit {
			t.Fatalf("%d bytes of output", len(out))
		}
	})
}
