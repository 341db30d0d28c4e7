// Package strictyaml decodes a configuration file and reports every problem in
// it at once, each with its line and column.
//
// Start at [Decode]. It fills a struct whose fields carry `yaml` tags, refuses
// unknown and repeated keys, and remembers where each value stood, so that a
// later check of meaning ([File.Problem]) can point at the same place.
package strictyaml

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// File is a decoded file: its problems so far and where its values stand.
type File struct {
	name     string
	places   map[string]place // by path: pools[0].name
	problems []Problem
}

type place struct{ line, column int }

// Problem is one thing that is wrong. Line and Column count from 1.
type Problem struct {
	File         string
	Line, Column int
	Path         string // pools[0].name; empty for the file itself
	Message      string
}

// Error returns "file:line:column: path: message".
func (p Problem) Error() string {
	if p.Path == "" {
		return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Column, p.Path, p.Message)
}

// Decode reads one YAML document from r into the struct that into points to.
// The name appears in problems. Decode itself fails only if r cannot be read;
// everything else becomes a problem of the returned File.
func Decode(name string, r io.Reader, into any) (*File, error) {
	f := &File{name: name, places: make(map[string]place)}
	dec := yaml.NewDecoder(r)
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		f.add(place{1, 1}, "", "the file is empty")
		return f, nil
	case err != nil:
		f.add(place{yamlLine(err), 1}, "", strings.TrimPrefix(err.Error(), "yaml: "))
		return f, nil
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		f.add(place{max(more.Line, 1), 1}, "", "more than one document")
	}
	f.value(doc.Content[0], reflect.ValueOf(into).Elem(), "")
	return f, nil
}

// yamlLine finds the line in a syntax error, which the library gives as text.
func yamlLine(err error) int {
	_, rest, ok := strings.Cut(err.Error(), "line ")
	if !ok {
		return 1
	}
	digits, _, _ := strings.Cut(rest, ":")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 1
	}
	return n
}

// Problem records that the value at path is wrong. Where the file does not hold
// that path, the nearest value that contains it is pointed at.
func (f *File) Problem(path, format string, args ...any) {
	at := path
	for at != "" {
		if p, ok := f.places[at]; ok {
			f.add(p, path, fmt.Sprintf(format, args...))
			return
		}
		at = at[:max(strings.LastIndexAny(at, ".["), 0)]
	}
	f.add(place{1, 1}, path, fmt.Sprintf(format, args...))
}

// Has reports whether the file holds a value at path.
func (f *File) Has(path string) bool {
	_, ok := f.places[path]
	return ok
}

// Err returns all problems joined, ordered by place, or nil.
func (f *File) Err() error {
	sort.SliceStable(f.problems, func(i, j int) bool {
		a, b := f.problems[i], f.problems[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	errs := make([]error, len(f.problems))
	for i, p := range f.problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

func (f *File) add(at place, path, message string) {
	f.problems = append(f.problems, Problem{File: f.name, Line: at.line, Column: at.column, Path: path, Message: message})
}

func (f *File) value(n *yaml.Node, v reflect.Value, path string) {
	at := place{n.Line, n.Column}
	f.places[path] = at
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		f.add(at, path, "anchors and aliases are not supported")
		return
	}
	switch v.Interface().(type) {
	case time.Duration:
		f.duration(n, v, path)
		return
	case Bytes:
		f.bytes(n, v, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		f.object(n, v, path)
	case reflect.Slice:
		f.list(n, v, path)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.value(n, v.Elem(), path)
	default:
		f.scalar(n, v, path)
	}
}

func (f *File) object(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		f.add(place{n.Line, n.Column}, path, "want a mapping")
		return
	}
	fields := fieldsOf(v.Type())
	seen := make(map[string]bool)
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		at := place{key.Line, key.Column}
		child := join(path, key.Value)
		index, ok := fields[key.Value]
		switch {
		case !ok:
			f.add(at, child, "unknown field"+suggest(key.Value, fields))
		case seen[key.Value]:
			f.add(at, child, "given twice")
		default:
			f.value(val, v.Field(index), child)
		}
		seen[key.Value] = true
	}
}

func (f *File) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		f.add(place{n.Line, n.Column}, path, "want a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, c := range n.Content {
		f.value(c, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (f *File) scalar(n *yaml.Node, v reflect.Value, path string) {
	at := place{n.Line, n.Column}
	if n.Kind != yaml.ScalarNode {
		f.add(at, path, "want a single value")
		return
	}
	if v.Kind() == reflect.String && n.Tag != "!!str" {
		f.add(at, path, fmt.Sprintf("want a string, got %s; quote it", n.Value))
		return
	}
	if err := n.Decode(v.Addr().Interface()); err != nil {
		f.add(at, path, fmt.Sprintf("want %s, got %q", kindName(v.Kind()), n.Value))
	}
}

func kindName(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	default:
		return "a " + k.String()
	}
}

func (f *File) duration(n *yaml.Node, v reflect.Value, path string) {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < 0 {
		f.add(place{n.Line, n.Column}, path, fmt.Sprintf("want a duration such as 250ms or 5s, got %q", n.Value))
		return
	}
	v.SetInt(int64(d))
}

// Bytes is a size in bytes, written as 16MiB, 64KiB or a plain number.
type Bytes int64

func (f *File) bytes(n *yaml.Node, v reflect.Value, path string) {
	size, err := parseBytes(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		f.add(place{n.Line, n.Column}, path, fmt.Sprintf("want a size such as 16MiB, got %q", n.Value))
		return
	}
	v.SetInt(size)
}

func parseBytes(s string) (int64, error) {
	for _, unit := range []struct {
		suffix string
		shift  uint
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}, {"", 0}} {
		digits, ok := strings.CutSuffix(s, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse size: %w", err)
		}
		if n < 0 || n > 1<<62>>unit.shift {
			return 0, fmt.Errorf("size %q out of range", s)
		}
		return n << unit.shift, nil
	}
	return 0, fmt.Errorf("parse size %q", s)
}

func fieldsOf(t reflect.Type) map[string]int {
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "" {
			fields[tag] = i
		}
	}
	return fields
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// suggest names the field that was probably meant: one that differs only in
// case or in - and _, or that begins alike.
func suggest(key string, fields map[string]int) string {
	plain := func(s string) string { return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s)) }
	names := make([]string, 0, len(fields))
	for name := range fields {
		if plain(name) == plain(key) {
			return fmt.Sprintf("; did you mean %s?", name)
		}
		names = append(names, name)
	}
	sort.Strings(names)
	return "; known here: " + strings.Join(names, ", ")
}
