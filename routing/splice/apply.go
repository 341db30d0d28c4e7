package splice

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// change is what becomes of one member: a new value, or nothing.
type change struct {
	name  string
	at    int // index in the object's members, -1 for a new one
	value []byte
}

func apply(dst, body []byte, edits []Edit) ([]byte, error) {
	obj, err := scan(body)
	if err != nil {
		return nil, err
	}
	changes, err := plan(body, obj, edits)
	if err != nil {
		return nil, err
	}
	byIndex := make(map[int]change, len(changes))
	for _, c := range changes {
		if c.at >= 0 {
			byIndex[c.at] = c
		}
	}
	out, pos, kept := dst, 0, false
	for i, m := range obj.members {
		c, changed := byIndex[i]
		switch {
		case !changed:
		case c.value != nil:
			// Everything up to the value is the client's, its comma included.
		case kept:
			// pos is past the last kept value: skip the comma before this one.
			pos = m.past
			continue
		default:
			// Nothing kept yet: write what stands before the name, and skip up
			// to the next name, so that the comma goes with this member.
			out = append(out, body[pos:m.start]...)
			pos = nextStart(obj, i)
			continue
		}
		if changed {
			out = append(append(out, body[pos:m.value]...), c.value...)
		} else {
			out = append(out, body[pos:m.past]...)
		}
		pos, kept = m.past, true
	}
	if len(obj.members) == 0 {
		out, pos = append(out, body[:obj.open]...), obj.open
	}
	if out, err = appendNew(out, changes, kept); err != nil {
		return nil, err
	}
	return append(out, body[pos:]...), nil
}

// appendNew writes the members that the object did not have.
func appendNew(out []byte, changes []change, comma bool) ([]byte, error) {
	for _, c := range changes {
		if c.at >= 0 {
			continue
		}
		if comma {
			out = append(out, ',')
		}
		var err error
		if out, err = jsontext.AppendQuote(out, c.name); err != nil {
			return nil, fmt.Errorf("%w: name %q", ErrEdit, c.name)
		}
		out, comma = append(append(out, ':'), c.value...), true
	}
	return out, nil
}

// nextStart is where reading resumes when member i and all before it are gone.
func nextStart(obj *object, i int) int {
	if i+1 < len(obj.members) {
		return obj.members[i+1].start
	}
	return obj.members[i].past
}

// plan turns edits into at most one change for each member, in order.
func plan(body []byte, obj *object, edits []Edit) ([]change, error) {
	var changes []change
	for i, e := range edits {
		name := e.path[0]
		if slices.ContainsFunc(edits[:i], func(b Edit) bool { return b.path[0] == name }) {
			if len(e.path) == 1 || len(edits[firstFor(edits, name)].path) == 1 {
				return nil, fmt.Errorf("%w: two edits of %q", ErrEdit, name)
			}
			continue // planned with the first edit of that parent
		}
		c, ok, err := planMember(body, obj, name, edits)
		if err != nil {
			return nil, err
		}
		if ok {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

func firstFor(edits []Edit, name string) int {
	return slices.IndexFunc(edits, func(e Edit) bool { return e.path[0] == name })
}

// planMember says what becomes of the member name under those edits that start
// with it; ok is false where it stays as it is.
func planMember(body []byte, obj *object, name string, edits []Edit) (change, bool, error) {
	c := change{name: name, at: obj.index(name)}
	first := edits[firstFor(edits, name)]
	if len(first.path) == 1 {
		c.value = first.value
		return c, c.at >= 0 || c.value != nil, nil
	}
	var inner []Edit
	sets := false
	for _, e := range edits {
		if e.path[0] == name && len(e.path) > 1 {
			inner = append(inner, Edit{e.path[1:], e.value})
			sets = sets || e.value != nil
		}
	}
	old := []byte("{}")
	if c.at >= 0 {
		old = body[obj.members[c.at].value:obj.members[c.at].past]
	}
	if old[0] != '{' || c.at < 0 {
		if !sets {
			return c, false, nil
		}
		if c.at >= 0 && !bytes.Equal(old, []byte("null")) {
			return c, false, fmt.Errorf("edit member %q: %w", name, ErrNotObject)
		}
		old = []byte("{}")
	}
	value, err := apply(nil, old, inner)
	if err != nil {
		return c, false, fmt.Errorf("edit member %q: %w", name, err)
	}
	c.value = value
	return c, true, nil
}
