// Package revocation withdraws access tokens before they end: those of one
// identifier, of a subject, a client or a tenant, or of a whole issuer, as far as
// they were issued up to some time.
//
// Start at [Entry], one withdrawal. A [Register] follows the place where entries
// are kept and judges callers by them; [Revoke] adds one to a file.
//
// # What is never done
//
// A withdrawal is not taken back: the tokens it is of are over, and new ones can
// be issued. So a register that has seen an entry keeps it until it ends, whatever
// the place it came from says later, and puts it there again where it can.
//
// # What later versions may add
//
// An entry is a line of JSON, and gateways of two versions may read it:
//
//	{"id":"…","tenant":"acme","subject":"alice","before":"…","made":"…","by":"ops",
//	 "device":"laptop","crit":["groups"],"groups":["night-shift"]}
//
// A member that is not known is kept and goes by: it may only narrow what is
// withdrawn, so that who does not know it withdraws more. One that widens must be
// named in crit, as in the header of a JWS (RFC 7515 §4.1.11), and may reach no
// further than the issuer and tenant of its entry and the time it names: who does
// not know it withdraws every token of those. So an upgrade that rolls through a
// fleet neither stops it nor lets a withdrawn token pass. Both count in the ID.
package revocation

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sallyport-ai/sallyport/identity"
)

// Kept is how long an entry is in force after the time it names: longer than the
// longest life of a token, so that none outlives its withdrawal.
const Kept = 25 * time.Hour

// ahead is how far in the future Before may be, for clocks that disagree.
const ahead = time.Minute

// MaxEntries bounds what is in force at once.
const MaxEntries = 1 << 16

// Entry withdraws the tokens that agree with all of the names it has, and were
// issued at Before or earlier. A subject is also one who acts for another.
type Entry struct {
	ID      string    `json:"id"` // says which entry it is, of what it withdraws
	Issuer  string    `json:"issuer,omitzero"`
	Tenant  string    `json:"tenant,omitzero"`
	Subject string    `json:"subject,omitzero"`
	Client  string    `json:"client,omitzero"`
	TokenID string    `json:"jti,omitzero"`
	Before  time.Time `json:"before"`
	Made    time.Time `json:"made"`
	By      string    `json:"by,omitzero"`     // who made it
	Reason  string    `json:"reason,omitzero"` // for people

	more string // an object of the members that this version does not know, or ""
	wide bool   // one of those is critical
}

// New checks an entry and completes it: Before, where it is zero, is now.
func New(e Entry, now time.Time) (Entry, error) {
	if e.Before.IsZero() {
		e.Before = now
	}
	e.Before, e.Made = e.Before.UTC().Truncate(time.Second), now.UTC().Truncate(time.Second)
	if e.Before.After(now.Add(ahead)) {
		return Entry{}, errors.New("revocation: tokens that are not issued yet cannot be withdrawn")
	}
	if e.Ended(now) {
		return Entry{}, fmt.Errorf("revocation: tokens issued so long ago have all ended: none lives longer than %v", Kept)
	}
	e.ID = e.id()
	return e, e.check()
}

// check holds an entry against what [New] makes.
func (e *Entry) check() error {
	switch {
	case e.Issuer == "" && e.Tenant == "":
		return errors.New("revocation: an issuer or a tenant is required: names mean nothing beyond theirs")
	case e.Before.IsZero() || e.Made.IsZero():
		return errors.New("revocation: it has no time")
	case e.ID != e.id():
		return errors.New("revocation: its ID is that of another")
	}
	for _, name := range []string{e.Issuer, e.Tenant, e.Subject, e.Client, e.TokenID, e.By, e.Reason} {
		if name != "" && !identity.IsName(name) {
			return errors.New("revocation: a name that is odd or too long")
		}
	}
	return nil
}

// id is a digest of what the entry withdraws, so that doing so twice is one.
func (e *Entry) id() string {
	h := sha256.New()
	for _, name := range []string{e.Issuer, e.Tenant, e.Subject, e.Client, e.TokenID, e.Before.UTC().Format(time.RFC3339)} {
		fmt.Fprintf(h, "%d %s\n", len(name), name)
	}
	if e.more != "" {
		members := jsontext.Value(e.more)
		if err := members.Canonicalize(); err != nil {
			return "" // nobody's
		}
		fmt.Fprintf(h, "%d %s\n", len(members), members)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// until is when the last token that it could withdraw has ended.
func (e *Entry) until() time.Time { return e.Before.Add(Kept) }

// Ended reports whether there is nothing left that the entry withdraws.
func (e *Entry) Ended(now time.Time) bool { return now.After(e.until()) }

// Of names the kinds of name that the entry goes by, for records that hold no
// names of callers.
func (e *Entry) Of() []string {
	var kinds []string
	for _, k := range []struct{ kind, name string }{
		{"issuer", e.Issuer}, {"tenant", e.Tenant}, {"subject", e.Subject}, {"client", e.Client}, {"jti", e.TokenID},
	} {
		if k.name != "" {
			kinds = append(kinds, k.kind)
		}
	}
	if e.wide {
		kinds = append(kinds, "unknown")
	}
	return kinds
}

// withdraws reports whether the entry is of the caller's token. A tenant is the
// token's own or the one that a registration gave its holder.
func (e *Entry) withdraws(p identity.Principal, tenant string) bool {
	return agrees(e.Tenant, tenant) && (e.ofToken(p) || e.ofActor(p)) &&
		!p.IssuedAt.Truncate(time.Second).After(e.Before) // which is of whole seconds
}

func agrees(want, have string) bool { return want == "" || want == have }

// ofToken reports whether the names agree with what the token's issuer says in
// it. Who acts for its subject is a subject of its too, whoever named the actor.
func (e *Entry) ofToken(p identity.Principal) bool {
	if !agrees(e.Issuer, p.Issuer) {
		return false
	}
	acts := func(a identity.Actor) bool { return a.Subject == e.Subject }
	return e.wide || (agrees(e.Subject, p.Subject) || slices.ContainsFunc(p.Chain, acts)) &&
		agrees(e.Client, p.ClientID) && agrees(e.TokenID, p.TokenID)
}

// ofActor reports whether the entry is of somebody who acts in the token's
// delegation and was named by the entry's issuer, though another issued the token.
// A client and an identifier are those of the token's issuer alone.
func (e *Entry) ofActor(p identity.Principal) bool {
	if !e.wide && (e.Client != "" || e.TokenID != "") {
		return false
	}
	return slices.ContainsFunc(p.Chain, func(a identity.Actor) bool {
		return agrees(e.Issuer, a.Issuer) && (e.wide || agrees(e.Subject, a.Subject))
	})
}
