// Package detect finds personal, payment, health and secret data in text.
//
// Start at [Scan] for one text and [Scanner] for all texts of a request.
// [Table] lists the detectors.
//
// # Linear time
//
// Every detector is a hand-written matcher that looks at a bounded stretch
// around one place, and each place is tried once: no text can make a scan slow.
// What does not fit the byte budget is reported as not scanned, never as clean.
//
// Memory does not grow with the text: a long one is read through a window.
//
// # Views
//
// A text is read through a view in which zero-width characters and combining
// marks are gone, and digits, letters, dashes and spaces of other kinds are the
// plain ones: full-width, mathematical, superscript, circled, with marks, digits
// of other scripts, and letters of other alphabets that look the same. So are
// the escapes \u0034 (in a nested JSON string), &#52; and %34. Numbers may be
// in groups, on several lines, and MRN and SSN spelled with a space or a point
// between the letters. Where one text follows another, the seam is scanned too,
// with and without a space in it, so that cutting a number in two, or off its
// name, does not hide it.
//
// # What is not covered
//
// Detectors find what people write without meaning to hide it, and the cheap
// tricks above. Whoever means to can still pass: text in another encoding
// (base64, percent-encoded UTF-8, escapes in escapes) or in pictures, numbers in
// words or with letters for digits (O for 0), reversed or with prose between the
// digits, a number and its word further apart than some 32 bytes or in other
// languages than English, invisible tag characters, pieces in texts that do not
// follow each other. A label floor from the workload's registration is the
// protection against those.
//
// # What leaves
//
// A [Finding] holds offsets and names. The matched text never leaves the
// package.
package detect

import (
	"cmp"
	"slices"

	"github.com/sallyport-ai/sallyport/policy"
)

// Finding says which detector matched where. Start and End are byte offsets in
// the scanned text.
type Finding struct {
	Detector string
	Category policy.Category
	Start    int
	End      int
}

// Scan returns what the detectors find in text, in order of Start. Where two
// matches of one category overlap, the longer one counts.
func Scan(text []byte) []Finding {
	var found []Finding
	scan(text, func(f Finding) { found = append(found, f) })
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End))
	})
	return found
}

// scan calls emit for each finding, nearly in order of Start.
func scan(text []byte, emit func(Finding)) {
	m := merger{emit: emit}
	var past [maxRules]int // past each rule's last match, before which it is not tried
	views(text, func(v view, begin, end, moved int) {
		for n := range past {
			past[n] -= moved
		}
		for i := begin; i < end; i++ {
			b := v.bytes[i]
			if len(dispatch[atWord][b]) == 0 { // most bytes: not even there
				continue
			}
			for _, n := range dispatch[placeAt(v.bytes, i)][b] {
				if i < past[n] {
					continue
				}
				if start, stop, ok := rules[n].match(v.bytes, i); ok {
					m.add(Finding{rules[n].Name, rules[n].Category, v.offset(start), v.offset(stop)})
					past[n] = stop
				}
			}
		}
	})
	m.flush()
}

// merger drops findings that lie within, or overlap, a longer one of their
// category.
type merger struct {
	emit func(Finding)
	held []Finding // the last of each category
}

func (m *merger) add(f Finding) {
	for i, h := range m.held {
		switch {
		case h.Category != f.Category:
			continue
		case h.End <= f.Start:
			m.emit(h)
			m.held[i] = f
		case f.End <= h.Start:
			m.emit(f)
		case f.End-f.Start > h.End-h.Start:
			m.held[i] = f
		}
		return
	}
	m.held = append(m.held, f)
}

func (m *merger) flush() {
	for _, h := range m.held {
		m.emit(h)
	}
}
