package format

import (
	"bytes"
	"unicode/utf8"

	"github.com/sallyport-ai/sallyport/audit"
)

// appendDetails adds an object of what in a record has no field of its own in
// OCSF or ECS. Its fields are named as in the record:
//
//	{"kind":…,"id":…,"index":…,"boot":…,"leaf_hash":…,"previous":{"index":…,"hash":…},"replayed":true,
//	 "gateway":{…},"caller":{…},"policy":{…},"decision":{…},"class":{…},"label":{…},"request":{…},"placement":{…},
//	 "attempt":…,"durability":…,"reason":…,"status":…,"http":…,"detail":…,"outcome":{…},"denials":[…],"event":{…}}
//
// Hashes are base64. What is missing are the policy input and the candidates of
// a placement, for which the log is the place, and what was cut.
func appendDetails(b []byte, e *Event, c cut) ([]byte, error) {
	r := e.Record
	b = text(b, `{"kind":`, r.Kind)
	b = text(b, `,"id":`, r.ID)
	b = num(b, `,"index":`, e.Index)
	b = text(b, `,"boot":`, r.Log.Boot)
	b = text(b, `,"leaf_hash":`, e.Hash.String())
	if p := e.Previous; p != nil {
		b = num(b, `,"previous":{"index":`, p.Index)
		b = text(b, `,"hash":`, p.Hash.String())
		b = append(b, '}')
	}
	if e.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	from := len(b)
	b, err := audit.AppendFields(b, cutOf(r, c))
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(b[from:]) { // in a decision or an event, that are as the log has them
		b = append(b[:from], bytes.ToValidUTF8(b[from:], []byte("\uFFFD"))...)
	}
	return append(b, '}'), nil
}

// cutOf is a record of only what is not cut.
func cutOf(r *audit.Record, c cut) *audit.Record {
	if c < withoutDetail {
		return r // NewEvent has taken the rest away
	}
	d := &audit.Record{Gateway: r.Gateway, Attempt: r.Attempt, Durability: r.Durability, Reason: r.Reason, Status: r.Status, HTTP: r.HTTP}
	if c < bare {
		d.Class, d.Label = r.Class, r.Label
	}
	return d
}
