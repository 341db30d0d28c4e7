package classify

import (
	"github.com/sallyport-ai/sallyport/gateway/detect"
	"github.com/sallyport-ai/sallyport/gateway/wire"
	"github.com/sallyport-ai/sallyport/policy"
)

// Sensitivity is what a label is composed of. Levels are names; an empty one
// contributes nothing, a name that is no level counts as restricted.
type Sensitivity struct {
	WorkloadFloor string
	TenantDefault string
	TokenClaim    string // signed by an issuer that we trust
	Session       string // high-water mark of the conversation
	Hint          string // the Sallyport-Label header
	Scan          detect.Report
	Unscannable   bool // the request holds what no detector reads
}

// effects is what a finding of each category does.
var effects = map[policy.Category]policy.Level{
	policy.PHI:    policy.Restricted,
	policy.PCI:    policy.Restricted,
	policy.Secret: policy.Restricted,
	policy.PII:    policy.Confidential,
}

// Label returns the maximum over all contributions, and whether the client's
// hint was lower than that. Where no registration, tenant or token says what
// the data are, they are restricted.
func Label(s Sensitivity) (label policy.Label, mismatch bool) {
	var c composer
	c.named(policy.WorkloadFloor, s.WorkloadFloor)
	c.named(policy.TenantDefault, s.TenantDefault)
	c.named(policy.TokenClaim, s.TokenClaim)
	if len(c.sources) == 0 {
		c.add(policy.TenantDefault, policy.Restricted, "absent")
	}
	c.named(policy.Session, s.Session)
	for _, hit := range s.Scan.Hits {
		level, known := effects[hit.Category]
		if !known {
			level = policy.Restricted
		}
		c.add(policy.Detector, level, hit.Detector)
	}
	if s.Scan.NotScanned || s.Unscannable {
		c.add(policy.NotScanned, policy.Confidential, notScannedDetail(s))
	}
	if s.Hint != "" {
		mismatch = level(s.Hint).Rank() < c.level.Rank()
		c.named(policy.ClientHint, s.Hint)
	}
	return policy.Label{Level: c.level, Categories: s.Scan.Categories(), Sources: c.sources}, mismatch
}

func notScannedDetail(s Sensitivity) string {
	if s.Unscannable {
		return "media"
	}
	return "budget"
}

// composer keeps the running maximum.
type composer struct {
	level   policy.Level
	sources []policy.Contribution
}

func (c *composer) named(source policy.Source, name string) {
	if name != "" {
		c.add(source, level(name), "")
	}
}

func (c *composer) add(source policy.Source, l policy.Level, detail string) {
	if len(c.sources) == 0 || l.Rank() > c.level.Rank() {
		c.level = l
	}
	c.sources = append(c.sources, policy.Contribution{Source: source, Level: l, Detail: detail})
}

// level returns the level of that name, and restricted for a name that is none.
func level(name string) policy.Level {
	l, err := policy.ParseLevel(name)
	if err != nil {
		return policy.Restricted
	}
	return l
}

// Scan runs the detectors over all texts of a request.
func Scan(s detect.Scanner, req *wire.Request) detect.Report {
	return s.Texts(func(yield func(string, []byte) bool) {
		for t := range req.Texts() {
			if !yield(stream(t.Origin), t.Data) {
				return
			}
		}
	})
}

// stream names the texts that are read as one. What is yielded once more stands
// for itself.
func stream(o wire.Origin) string {
	if o == wire.FromMember {
		return detect.Alone
	}
	return o.String()
}
