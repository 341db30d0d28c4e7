package sigma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// rule is one document of a Sigma file: a detection, or a correlation of others.
// Of Sigma it knows what our rules use, and refuses the rest.
type rule struct {
	Title       string `yaml:"title"`
	ID          string `yaml:"id"`
	Name        string `yaml:"name"`
	Status      string `yaml:"status"`
	Description string `yaml:"description"`
	LogSource   struct {
		Product string `yaml:"product"`
		Service string `yaml:"service"`
	} `yaml:"logsource"`
	Detection   map[string]any `yaml:"detection"`
	Correlation *correlation   `yaml:"correlation"`
	FalsePos    []string       `yaml:"falsepositives"`
	Level       string         `yaml:"level"`
}

type correlation struct {
	Type      string         `yaml:"type"`
	Rules     []string       `yaml:"rules"`
	GroupBy   []string       `yaml:"group-by"`
	Timespan  time.Duration  `yaml:"timespan"`
	Condition map[string]int `yaml:"condition"`
}

func parse(text []byte) (rules []*rule, err error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	for {
		r := new(rule)
		if err := d.Decode(r); errors.Is(err, io.EOF) {
			return rules, nil
		} else if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
}

// matches says whether an event fires a detection.
func (r *rule) matches(event map[string]any) (bool, error) {
	condition, ok := r.Detection["condition"].(string)
	if !ok {
		return false, errors.New("no condition")
	}
	found := make(map[string]bool)
	for name, selection := range r.Detection {
		if name == "condition" {
			continue
		}
		hit, err := selects(selection, event)
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		found[name] = hit
	}
	c := conditionParser{words: strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(condition)), found: found}
	value := c.or()
	if c.err == nil && len(c.words) > 0 {
		c.err = fmt.Errorf("condition: %q is left over", c.words)
	}
	return value, c.err
}

// selects holds a selection, all of whose fields must match, or a list of these.
func selects(selection any, event map[string]any) (bool, error) {
	if list, ok := selection.([]any); ok {
		for _, one := range list {
			if hit, err := selects(one, event); hit || err != nil {
				return hit, err
			}
		}
		return false, nil
	}
	fields, ok := selection.(map[string]any)
	if !ok {
		return false, fmt.Errorf("selection %v", selection)
	}
	for field, want := range fields {
		name, modifier, _ := strings.Cut(field, "|")
		compare, ok := comparisons[modifier]
		if !ok {
			return false, fmt.Errorf("modifier %q", modifier)
		}
		wants, ok := want.([]any)
		if !ok {
			wants = []any{want}
		}
		hit := false
		for _, got := range values(event, strings.Split(name, ".")) {
			hit = hit || slices.ContainsFunc(wants, func(w any) bool { return compare(got, w) })
		}
		if !hit {
			return false, nil
		}
	}
	return true, nil
}

// values are what stands under a path, in lists as well.
func values(v any, at []string) []any {
	if list, ok := v.([]any); ok {
		var out []any
		for _, one := range list {
			out = append(out, values(one, at)...)
		}
		return out
	}
	if len(at) == 0 {
		return []any{v}
	}
	object, ok := v.(map[string]any)
	if !ok || object[at[0]] == nil {
		return nil
	}
	return values(object[at[0]], at[1:])
}

// comparisons are the modifiers. Texts are compared without regard to case.
var comparisons = map[string]func(got, want any) bool{
	"":         equal,
	"contains": func(got, want any) bool { return strings.Contains(lower(got), lower(want)) },
	"gte":      func(got, want any) bool { g, ok := number(got); w, ok2 := number(want); return ok && ok2 && g >= w },
}

func equal(got, want any) bool {
	if pattern, ok := want.(string); ok {
		hit, err := path.Match(strings.ToLower(pattern), lower(got))
		return err == nil && hit
	}
	return lower(got) == lower(want)
}

func lower(v any) string { return strings.ToLower(fmt.Sprint(v)) }

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

// conditionParser reads "a and not (b or 1 of c*)".
type conditionParser struct {
	words []string
	found map[string]bool
	err   error
}

func (c *conditionParser) take(words ...string) bool {
	if len(c.words) < len(words) || !slices.Equal(c.words[:len(words)], words) {
		return false
	}
	c.words = c.words[len(words):]
	return true
}

func (c *conditionParser) or() bool {
	value := c.and()
	for c.take("or") {
		other := c.and()
		value = value || other
	}
	return value
}

func (c *conditionParser) and() bool {
	value := c.not()
	for c.take("and") {
		other := c.not()
		value = value && other
	}
	return value
}

func (c *conditionParser) not() bool {
	if c.take("not") {
		return !c.not()
	}
	if c.take("(") {
		value := c.or()
		if !c.take(")") {
			c.err = errors.New("condition: no )")
		}
		return value
	}
	some := c.take("1", "of")
	if len(c.words) == 0 {
		c.err = errors.New("condition ends early")
		return false
	}
	name := c.words[0]
	c.words = c.words[1:]
	value, known := false, false
	for selection, hit := range c.found {
		if match, err := path.Match(name, selection); err == nil && match && (some || name == selection) {
			value, known = value || hit, true
		}
	}
	if !known {
		c.err = fmt.Errorf("condition: no selection %q", name)
	}
	return value
}

// timed is an event with its time.
type timed struct {
	at    time.Time
	event map[string]any
}

// fires counts the events of a correlation in each group, in a sliding time.
func (c *correlation) fires(events []timed, named map[string]*rule) (bool, error) {
	least, ok := c.Condition["gte"]
	if c.Type != "event_count" || !ok || len(c.Condition) != 1 || c.Timespan <= 0 {
		return false, fmt.Errorf("correlation %+v", c)
	}
	groups := make(map[string][]time.Time)
	for _, e := range events {
		for _, name := range c.Rules {
			r := named[name]
			if r == nil {
				return false, fmt.Errorf("no rule %q", name)
			}
			hit, err := r.matches(e.event)
			if err != nil {
				return false, err
			}
			if !hit {
				continue
			}
			key := ""
			for _, field := range c.GroupBy {
				key += fmt.Sprint(values(e.event, strings.Split(field, "."))) + "\x00"
			}
			recent := append(groups[key], e.at)
			for recent[0].Before(e.at.Add(-c.Timespan)) {
				recent = recent[1:]
			}
			if groups[key] = recent; len(recent) >= least {
				return true, nil
			}
		}
	}
	return false, nil
}
