package detect

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sallyport-ai/sallyport/policy"
)

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

// Alone is the stream of texts that stand for themselves and repeat what was
// scanned before, such as a name with its value. They have no seams, and only
// count where a detector has found nothing yet.
const Alone = ""

const (
	defaultBudget = 32 << 20
	seam          = 128 // bytes on either side of a cut that are read together
	gap           = 64  // the same where a space is put into the cut
)

// Texts scans every text of the sequence, and the seams between consecutive
// texts of the same stream: the parts of the messages are one stream, names are
// another, so that a name between two parts does not hide a cut number. Each
// seam is read twice, as if nothing stood between the texts (a number cut in
// two) and as if a space did (a number and the word before it).
//
// A text need only be valid until the next.
func (s Scanner) Texts(texts iter.Seq2[string, []byte]) Report {
	budget := s.Budget
	if budget <= 0 {
		budget = defaultBudget
	}
	var r Report
	t := tally{}
	streams := map[string]*ends{}
	for stream, text := range texts {
		e := streams[stream]
		if e == nil {
			e = new(ends)
			streams[stream] = e
		}
		if budget -= len(text) + e.cost(text); budget < 0 {
			r.NotScanned = true
			break
		}
		if stream == Alone {
			scan(text, t.countFirst)
			continue
		}
		scan(text, t.count)
		e.join(text, t)
	}
	for _, h := range t {
		r.Hits = append(r.Hits, *h)
	}
	slices.SortFunc(r.Hits, func(a, b Hit) int { return cmp.Compare(a.Detector, b.Detector) })
	return r
}

// tally counts findings by detector.
type tally map[string]*Hit

func (t tally) count(f Finding) {
	h := t[f.Detector]
	if h == nil {
		h = &Hit{Detector: f.Detector, Category: f.Category}
		t[f.Detector] = h
	}
	h.Count++
}

func (t tally) countFirst(f Finding) {
	if t[f.Detector] == nil {
		t.count(f)
	}
}

// ends are the last bytes of a stream, without and with spaces between texts.
type ends struct {
	solid, spaced []byte
	joined        []byte // reused
}

// cost is how many bytes a text makes to be read again.
func (e *ends) cost(text []byte) int {
	if len(e.solid) == 0 {
		return 0
	}
	return len(e.solid) + len(e.spaced) + min(len(text), seam) + min(len(text), gap)
}

// join scans the seams between the stream and text, and takes text in.
func (e *ends) join(text []byte, t tally) {
	e.solid = e.seam(e.solid, "", text, seam, t)
	e.spaced = e.seam(e.spaced, " ", text, gap, t)
}

func (e *ends) seam(tail []byte, between string, text []byte, reach int, t tally) []byte {
	if len(tail) > 0 {
		head := text[:min(len(text), reach)]
		whole := len(tail) < reach && len(head) == len(text)
		e.joined = append(append(append(e.joined[:0], tail...), between...), head...)
		s := cut{at: len(tail), length: len(e.joined), whole: whole, spaced: between != "", t: t}
		scan(e.joined, s.count)
		tail = append(tail, between...)
	}
	tail = append(tail, text[max(0, len(text)-reach):]...)
	return append(tail[:0], tail[max(0, len(tail)-reach):]...)
}

// cut is where two texts were joined.
type cut struct {
	at, length int
	whole      bool // both texts are there from end to end
	spaced     bool // and were read before without a space
	t          tally
}

// count counts the findings that only the joined text shows: those that lie on
// both sides of the cut, and one by a detector that had found nothing so far, as
// when the word that a number needs stands in the other text. Unless the joined
// text is whole, what touches its ends may be a part of something else.
func (c cut) count(f Finding) {
	if !c.whole && (f.Start == 0 || f.End == c.length) {
		return
	}
	if c.spaced || f.Start >= c.at || f.End <= c.at {
		c.t.countFirst(f)
		return
	}
	c.t.count(f)
}
