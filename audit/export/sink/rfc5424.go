package sink

import (
	"strconv"
	"strings"
	"time"
)

// A message of RFC 5424:
//
//	<PRI>1 TIME HOST sallyport - KIND [sallyport@32473 id="…" index="…" replayed="true"] BODY
//
// Its facility is 13, log audit. The host is the log's origin. The number in
// the name of the structured data is the one that RFC 5612 sets apart for
// documentation; we have none of our own.

const auditFacility = 13

// syslogSeverities are those of RFC 5424 for 1 informational to 4 high.
var syslogSeverities = [...]int{6, 6, 5, 4, 2}

// appendRFC5424 adds the message without any framing.
func appendRFC5424(b []byte, origin string, m *Message) []byte {
	b = append(b, '<')
	b = strconv.AppendInt(b, int64(auditFacility*8+syslogSeverities[m.Severity]), 10)
	b = append(b, ">1 "...)
	// At most six digits of a second: more is against the RFC, and breaks parsers.
	b = m.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z07:00")
	b = append(b, ' ')
	b = append(b, headerField(origin, 255)...)
	b = append(b, " sallyport - "...)
	b = append(b, headerField(m.Kind, 32)...)
	b = append(b, ` [sallyport@32473 id="`...)
	b = appendParam(b, m.ID)
	b = append(b, `" index="`...)
	b = strconv.AppendUint(b, m.Index, 10)
	if m.Replayed {
		b = append(b, `" replayed="true`...)
	}
	b = append(b, `"] `...)
	return append(b, m.Body...)
}

// headerField is printable ASCII without spaces, or the nil value.
func headerField(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, s)
	if s == "" {
		return "-"
	}
	return s[:min(len(s), limit)]
}

// appendParam escapes what would end a parameter value.
func appendParam(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c == '"' || c == '\\' || c == ']' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return b
}

// settle is how long a new connection is watched before it is believed: with
// TLS 1.3 a receiver that refuses our certificate says so after the handshake.
const settle = 200 * time.Millisecond
