package prompt

import (
	"errors"
	"strings"
	"testing"
	"testing/quick"
)

// observe gives a standing the observations of a text, m for a match, l for one
// of lengths alone and x for a mismatch, and returns its level.
func observe(s *Standing, text string) Level {
	to := s.Level()
	for _, c := range text {
		_, to = s.Observe(c != 'x', c == 'm')
	}
	return to
}

func TestEvidenceMovesAModel(t *testing.T) {
	const clean = "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm" // 50
	lengths := strings.Repeat("l", 50)
	for _, c := range []struct {
		claim, evidence string
		want            Level
	}{
		{"nothing is known of a new model", "", Unverified},
		{"four mismatches show nothing", "xxxx", Unverified},
		{"five do", "xxxxx", Distrusted},
		{"49 matches are not enough", clean[1:], Unverified},
		{"50 are", clean, Verified},
		{"50 of lengths alone are not enough", lengths, Unverified},
		{"one of ids makes them so", lengths + "m", Verified},
		{"but it must be after the last mismatch", "m" + "x" + lengths, Unverified},
		{"a mismatch begins the count anew", clean[1:] + "x" + clean[1:], Unverified},
		{"of a verified model five make it unverified", clean + "xxxxx", Unverified},
		{"and five more distrusted", clean + "xxxxx" + "xxxxx", Distrusted},
		{"up to 2 % are borne", clean + clean + clean + clean + clean + "xxxx", Verified},
		{"distrust ends after 50 matches", "xxxxx" + clean, Unverified},
		{"not before", "xxxxx" + clean[1:], Distrusted},
		{"a distrusted model falls no further", "xxxxx" + "xxxxxxxxxxxxxxx" + clean, Unverified},
		{"and trust returns after 50 more", "xxxxx" + clean + clean, Verified},
	} {
		if got := observe(new(Standing), c.evidence); got != c.want {
			t.Errorf("%s: %v, want %v", c.claim, got, c.want)
		}
	}
}

func TestMismatchesCountWithinTheLast200(t *testing.T) {
	s := new(Standing)
	s.move(Verified)
	for range 6 { // four in 200 are 2 %, whenever they come
		for i := range 50 {
			if _, to := s.Observe(i != 0, true); to != Verified {
				t.Fatalf("one mismatch in 50 made it %v", to)
			}
		}
	}
	if got := observe(s, "xx"); got != Unverified {
		t.Errorf("six in 200: %v", got)
	}
}

func TestAStandingNeverSkipsALevelAndItsCountsHold(t *testing.T) {
	f := func(evidence []bool) bool {
		s := new(Standing)
		for _, match := range evidence {
			from, to := s.Observe(match, match)
			bad := 0
			for i := range s.n {
				if s.seen[(s.next-1-i+2*evidenceWindow)%evidenceWindow] {
					bad++
				}
			}
			if to > from+1 || from > to+1 || to < Distrusted || to > Verified || bad != s.bad {
				return false
			}
		}
		return true
	}
	if err := quick.Check(f, &quick.Config{MaxCount: 300}); err != nil {
		t.Error(err)
	}
}

func TestADigestNamesWhateverAPromptDependsOn(t *testing.T) {
	base := small(t)
	again := small(t)
	if base.Digest() != again.Digest() || len(base.Digest()) != 32 {
		t.Errorf("%q, then %q", base.Digest(), again.Digest())
	}
	args, err := Open(Config{Files: Small(), TemplateArgs: []byte(`{"a":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []*Model{variant(t, "{{ messages }}"), args} {
		if other.Digest() == base.Digest() {
			t.Error("another model has the same digest")
		}
	}
}

func TestATekkenFolderIsLeftToTheEngine(t *testing.T) {
	if _, err := LoadFS(with(t, "tekken.json", "{}")); !errors.Is(err, ErrLeftToEngine) {
		t.Errorf("loaded: %v", err)
	}
}
