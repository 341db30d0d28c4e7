package prompt

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
)

// Level is how far a model's own token ids are believed to be its engines'. The
// zero value is Unverified.
type Level uint8

// The levels, in the order in which evidence moves a model up.
const (
	Distrusted Level = iota + 1 // only engines are asked
	Unverified                  // used, but not yet shown to be right
	Verified                    // shown to be right
)

// String is the level's name in records and metrics.
func (l Level) String() string {
	switch l {
	case Verified:
		return "verified"
	case Distrusted:
		return "engine"
	default:
		return "unverified"
	}
}

const (
	evidenceWindow = 200 // observations that a rate is taken of
	mismatchLeast  = 5   // in it, below which nothing is concluded
	mismatchShare  = 50  // one in so many is too many
	cleanRun       = 50  // matches in a row that move a model up
)

// Standing is the evidence on one model: whether the token ids that we computed
// were those of its engines. It moves a level down when, of the last 200
// observations at that level, at least 5 and more than 2 % were mismatches, and
// a level up after 50 matches in a row, one of which at least was of the ids
// themselves: prompts of one length may differ. The zero value is ready, and safe
// for concurrent use.
type Standing struct {
	mu    sync.Mutex
	level Level
	seen  [evidenceWindow]bool // true: a mismatch; a ring
	next  int
	n     int // observations in seen
	bad   int // mismatches in seen
	clean int // matches since the last mismatch or change of level
	exact int // those of ids, not of lengths
}

// NewStanding is a standing that begins at a level, without evidence.
func NewStanding(at Level) *Standing { return &Standing{level: at} }

// Level is the present level.
func (s *Standing) Level() Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at()
}

func (s *Standing) at() Level {
	if s.level == 0 {
		return Unverified
	}
	return s.level
}

// Observe takes one observation, of the ids or only of the length of a prompt,
// and returns the level before and after it.
func (s *Standing) Observe(match, ids bool) (from, to Level) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from = s.at()
	if s.n == evidenceWindow && s.seen[s.next] {
		s.bad--
	}
	s.n = min(s.n+1, evidenceWindow)
	s.seen[s.next] = !match
	s.next = (s.next + 1) % evidenceWindow
	if match {
		s.clean++
		if ids {
			s.exact++
		}
	} else {
		s.bad++
		s.clean, s.exact = 0, 0
	}
	switch {
	case s.bad >= mismatchLeast && s.bad*mismatchShare > s.n && from > Distrusted:
		s.move(from - 1)
	case s.clean >= cleanRun && s.exact > 0 && from < Verified:
		s.move(from + 1)
	}
	return from, s.at()
}

// move begins the evidence anew at another level.
func (s *Standing) move(to Level) {
	s.level = to
	s.n, s.bad, s.clean, s.exact, s.next = 0, 0, 0, 0, 0
}

// Digest names the model's files and how its engine was started: whatever a
// prompt depends on but the clock. Two models with one digest make the same
// prompts.
func (m *Model) Digest() string { return m.digest }

// Model is the model that the memory makes prompts of.
func (y *Memory) Model() *Model { return y.model }

func digest(sums map[string][sha256.Size]byte, c *Config) string {
	h := sha256.New()
	names := make([]string, 0, len(sums))
	for name := range sums {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		sum := sums[name]
		h.Write([]byte(name + "\x00"))
		h.Write(sum[:])
	}
	zone := "UTC"
	if c.Zone != nil {
		zone = c.Zone.String()
	}
	h.Write([]byte(strings.Join([]string{string(c.TemplateArgs), zone}, "\x00")))
	return hex.EncodeToString(h.Sum(nil)[:16])
}
