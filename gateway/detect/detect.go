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
// # Views
//
// A text is read through a view in which zero-width characters are gone and
// full-width and other Unicode digits, letters, dashes and spaces are the plain
// ones, as are \u escapes that a nested JSON string still holds. Where one text
// follows another, the seam is scanned too, so that cutting a number in two
// does not hide it. Text that is encoded otherwise (base64, percent, images) is
// not decoded.
//
// # What leaves
//
// A [Finding] holds offsets and names. The matched text never leaves the
// package.
package detect

import (
	"cmp"
	"iter"
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
	v := normalize(text)
	var found []Finding
	past := make([]int, len(rules)) // past each rule's last match, before which it is not tried
	for i, b := range v.bytes {
		if len(dispatch[atWord][b]) == 0 { // most bytes: not even there
			continue
		}
		for _, n := range dispatch[placeAt(v.bytes, i)][b] {
			if i < past[n] {
				continue
			}
			if start, end, ok := rules[n].match(v.bytes, i); ok {
				found = append(found, Finding{rules[n].Name, rules[n].Category, v.offset(start), v.offset(end)})
				past[n] = end
			}
		}
	}
	return merge(found)
}

// merge drops findings that lie within, or overlap, a longer one of their
// category.
func merge(found []Finding) []Finding {
	if len(found) < 2 {
		return found
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End))
	})
	var out []Finding
	last := map[policy.Category]int{} // index in out, plus one
	for _, f := range found {
		i := last[f.Category] - 1
		switch {
		case i < 0 || out[i].End <= f.Start:
			out = append(out, f)
			last[f.Category] = len(out)
		case f.End-f.Start > out[i].End-out[i].Start:
			out[i] = f
		}
	}
	return out
}

// Hit counts the findings of one detector.
type Hit struct {
	Detector string
	Category policy.Category
	Count    int
}

// Report is the result for all texts of a request.
type Report struct {
	Hits       []Hit // by detector name
	NotScanned bool  // some text was not read; it must not count as clean
}

// Categories returns the categories found, sorted.
func (r Report) Categories() []policy.Category {
	var out []policy.Category
	for _, h := range r.Hits {
		if !slices.Contains(out, h.Category) {
			out = append(out, h.Category)
		}
	}
	slices.Sort(out)
	return out
}

// Scanner scans all texts of a request. The zero value has the default budget.
type Scanner struct {
	Budget int // bytes of scanning, seams included; default 32 MiB
}

const (
	defaultBudget = 32 << 20
	seam          = 128 // bytes on either side of a cut that are read together
)

// Texts scans every text of the sequence, and the seams between consecutive
// texts of the same stream: the parts of the messages are one stream, names are
// another, so that a name between two parts does not hide a cut number.
func (s Scanner) Texts(texts iter.Seq2[string, []byte]) Report {
	budget := s.Budget
	if budget <= 0 {
		budget = defaultBudget
	}
	var r Report
	counts := map[string]Hit{}
	tails := map[string][]byte{}
	for stream, text := range texts {
		tail := tails[stream]
		head := text[:min(len(text), seam)]
		cost := len(text)
		if len(tail) > 0 {
			cost += len(tail) + len(head)
		}
		if cost > budget {
			r.NotScanned = true
			break
		}
		budget -= cost
		count(counts, Scan(text))
		if len(tail) > 0 {
			joined := append(slices.Clip(tail), head...)
			whole := len(tail) < seam && len(head) == len(text)
			count(counts, across(Scan(joined), counts, len(tail), len(joined), whole))
		}
		tails[stream] = keepTail(tail, text)
	}
	for _, h := range counts {
		r.Hits = append(r.Hits, h)
	}
	slices.SortFunc(r.Hits, func(a, b Hit) int { return cmp.Compare(a.Detector, b.Detector) })
	return r
}

func count(counts map[string]Hit, found []Finding) {
	for _, f := range found {
		h := counts[f.Detector]
		counts[f.Detector] = Hit{f.Detector, f.Category, h.Count + 1}
	}
}

// across keeps the findings that only the joined text shows: those that lie on
// both sides of the cut, and one by a detector that had found nothing so far, as
// when the word that a number needs stands in the other text. Unless the window
// is the whole text, what touches its ends may be a part of something else.
func across(found []Finding, counts map[string]Hit, cut, length int, whole bool) []Finding {
	return slices.DeleteFunc(found, func(f Finding) bool {
		if !whole && (f.Start == 0 || f.End == length) {
			return true
		}
		oneSided := f.Start >= cut || f.End <= cut
		return oneSided && counts[f.Detector].Count > 0
	})
}

func keepTail(tail, text []byte) []byte {
	if len(text) >= seam {
		return text[len(text)-seam:]
	}
	joined := slices.Concat(tail, text)
	return joined[max(0, len(joined)-seam):]
}
