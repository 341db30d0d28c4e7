package format

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// CEF, the Common Event Format, version 0:
//
//	CEF:0|Sallyport|Sallyport|BUILD|KIND|NAME|SEVERITY|key=value key=value …
//
// In the header \ and | are escaped, in values \, = and line ends, and control
// characters are dropped. There are six custom strings and two numbers only;
// what has no room is in the log, under the index that is cn1.

// cefSeverities are CEF's of 0 to 10 for OCSF's of 1 to 4.
var cefSeverities = [...]int{0, 2, 4, 6, 8}

// cefLine builds one line.
type cefLine struct {
	b    strings.Builder
	some bool // there is an extension already
}

func newCEF(version, signature, name string, severity int) *cefLine {
	l := new(cefLine)
	fmt.Fprintf(&l.b, "CEF:0|Sallyport|Sallyport|%s|%s|%s|%d|", cefHeader(version), cefHeader(signature), cefHeader(name), severity)
	return l
}

// add appends one extension; an empty value is left out.
func (l *cefLine) add(key, value string) {
	if value == "" {
		return
	}
	if l.some {
		l.b.WriteByte(' ')
	}
	l.some = true
	l.b.WriteString(key)
	l.b.WriteByte('=')
	l.b.WriteString(cefValue(value))
}

// custom appends one of the custom fields with its label.
func (l *cefLine) custom(key, label, value string) {
	if value == "" {
		return
	}
	l.add(key+"Label", label)
	l.add(key, value)
}

var (
	cefHeaderEscapes = strings.NewReplacer(`\`, `\\`, `|`, `\|`, "\n", " ", "\r", " ")
	cefValueEscapes  = strings.NewReplacer(`\`, `\\`, `=`, `\=`, "\n", `\n`, "\r", `\r`)
)

func cefHeader(s string) string { return cefHeaderEscapes.Replace(printable(s)) }

func cefValue(s string) string { return cefValueEscapes.Replace(printable(s)) }

// printable drops control characters but line ends, and what is not UTF-8.
func printable(s string) string {
	if strings.IndexFunc(s, unfit) < 0 && utf8.ValidString(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unfit(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

func unfit(r rune) bool { return r != '\n' && r != '\r' && (r < ' ' || r == 0x7f) }

func cefEvent(e *Event, c cut) ([]byte, error) {
	r, v := e.Record, e.verdict()
	l := newCEF(e.build(), string(r.Kind), e.summary(), cefSeverities[e.Severity()])
	l.add("rt", strconv.FormatInt(r.Time.Wall/1000, 10))
	l.add("externalId", r.ID)
	l.add("dvchost", r.Log.Origin)
	l.custom("cn1", "index", strconv.FormatUint(e.Index, 10))
	l.custom("cs1", "leafHash", e.Hash.String())
	if e.Previous != nil {
		l.custom("cn2", "previousIndex", strconv.FormatUint(e.Previous.Index, 10))
	}
	switch {
	case v.allowed:
		l.add("act", "allowed")
	case v.denied:
		l.add("act", "denied")
	default:
		l.add("act", string(r.Kind))
	}
	l.add("outcome", map[bool]string{true: "failure", false: "success"}[v.failed])
	l.add("reason", r.Reason)
	if r.Caller != nil {
		l.add("suid", r.Caller.Ref)
		l.add("sourceServiceName", r.Caller.Workload)
		l.custom("cs3", "tenant", r.Caller.Tenant)
	}
	if c >= bare {
		return []byte(l.b.String()), nil
	}
	id, pool := e.replica()
	l.add("destinationServiceName", id)
	l.custom("cs2", "pool", pool)
	if r.Request != nil {
		l.add("requestMethod", r.Request.Operation)
		l.add("requestContext", r.Request.Model)
	}
	if r.Outcome != nil {
		l.add("in", strconv.Itoa(r.Outcome.PromptTokens))
		l.add("out", strconv.Itoa(r.Outcome.CompletionTokens))
	}
	if r.Class != nil {
		l.custom("cs4", "class", r.Class.Name)
	}
	if r.Label != nil {
		l.custom("cs5", "label", r.Label.Level)
	}
	if r.Policy != nil {
		l.custom("cs6", "policy", r.Policy.Revision)
	}
	if e.Raw && c < withoutLeaf {
		l.add("rawEvent", string(e.Leaf))
	}
	return []byte(l.b.String()), nil
}

func cefAnchor(a *Anchor) ([]byte, error) {
	l := newCEF("", "anchor", "anchor of an exported batch", cefSeverities[1])
	l.add("rt", strconv.FormatInt(a.Time.UnixNano()/int64(time.Millisecond), 10))
	l.add("externalId", a.UID())
	l.add("dvchost", a.Origin)
	l.custom("cn1", "first", strconv.FormatUint(a.First, 10))
	l.custom("cn2", "next", strconv.FormatUint(a.Next, 10))
	l.custom("cs1", "digest", a.Digest.String())
	l.custom("cs2", "sink", a.Sink)
	l.add("cnt", strconv.Itoa(a.Records))
	l.add("msg", a.Checkpoint)
	return []byte(l.b.String()), nil
}
