package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/sallyport-ai/sallyport/audit"
)

// HECConfig is the HTTP Event Collector of Splunk. Without ack an answer means
// only that events were received; with it, which the token must be set up for,
// that they are indexed.
type HECConfig struct {
	URL        string        `yaml:"url"` // /services/collector/event unless it has a path
	TokenFile  string        `yaml:"token_file"`
	Index      string        `yaml:"index"` // empty: the token's
	Ack        bool          `yaml:"ack"`
	AckTimeout time.Duration `yaml:"ack_timeout"` // then a batch is sent again; 0: 1 min
	TLS        TLSConfig     `yaml:"tls"`
}

var hecKind = Kind{
	Name: "hec", Batch: 512 << 10, Wait: 200 * time.Millisecond, Limit: 256 << 10,
	has:   func(c *Config) bool { return c.HEC != nil },
	paths: func(c *Config) []*string { return append(c.HEC.TLS.paths(), &c.HEC.TokenFile) },
	check: func(c *Config, p *problems) {
		p.url("url", c.HEC.URL)
		if p.required("token_file", c.HEC.TokenFile) {
			p.file("token_file", c.HEC.TokenFile)
		}
		if longest := Attempt - ackLeave; c.HEC.AckTimeout < 0 || c.HEC.AckTimeout > longest {
			p.add("ack_timeout", "want at most %v, as an attempt is given up after %v, got %v", longest, Attempt, c.HEC.AckTimeout)
		}
		c.HEC.TLS.check(p)
	},
	open: func(_ context.Context, c *Config, o Options) (Sink, error) {
		to, err := url.Parse(c.HEC.URL)
		if err != nil {
			return nil, fmt.Errorf("url: %w", err)
		}
		if to.Path == "" || to.Path == "/" {
			to.Path = "/services/collector/event"
		}
		h := &hec{config: *c.HEC, event: to.String(), client: newClient(&c.HEC.TLS), origin: o.Origin, channel: uuid.NewString(), poll: 250 * time.Millisecond}
		h.config.AckTimeout = or(h.config.AckTimeout, time.Minute)
		h.raw = o.ContentType != "application/json"
		to.Path, to.RawQuery = "/services/collector/ack", url.Values{"channel": {h.channel}}.Encode()
		h.ack = to.String()
		return h, nil
	},
}

// ackLeave is what of an attempt is left for sending the events that are then to be
// acknowledged.
const ackLeave = 10 * time.Second

type hec struct {
	config     HECConfig
	event, ack string // URLs
	channel    string
	origin     string
	raw        bool // events are text, not JSON
	client     *http.Client
	poll       time.Duration
}

// hecAnswer is what the collector says.
type hecAnswer struct {
	Text    string `json:"text"`
	Code    int    `json:"code"`
	AckID   *int   `json:"ackId"`
	Invalid *int   `json:"invalid-event-number"`
}

func (h *hec) Send(ctx context.Context, b *Batch) (int, error) {
	header, err := h.header()
	if err != nil {
		return 0, err
	}
	a, err := post(ctx, h.client, h.event, header, h.body(b))
	if err != nil {
		return 0, fmt.Errorf("hec: %w", err)
	}
	var said hecAnswer
	parseErr := json.Unmarshal(a.body, &said)
	switch {
	case a.status == http.StatusBadRequest && parseErr == nil && said.Invalid != nil:
		return 0, &Refused{At: *said.Invalid, Reason: fmt.Sprintf("%d %s", said.Code, said.Text)}
	case a.status == http.StatusBadRequest && parseErr == nil && hecMisconfigured[said.Code]:
		return 0, fmt.Errorf("hec: %d %s", said.Code, said.Text)
	case a.status != http.StatusOK:
		return 0, fmt.Errorf("hec: %w", a.problem())
	case parseErr != nil || said.Code != 0:
		return 0, fmt.Errorf("hec: answer %.200q", a.body)
	case !h.config.Ack:
		return len(b.Messages), nil
	case said.AckID == nil:
		return 0, errors.New("hec: no acknowledgement id: the token is not set up for it")
	}
	if err := h.indexed(ctx, header, *said.AckID); err != nil {
		return 0, fmt.Errorf("hec: %w", err)
	}
	return len(b.Messages), nil
}

// hecMisconfigured are codes of status 400 that are not about the events: an
// index that the token may not write to, channel missing or invalid, and
// acknowledgement disabled.
var hecMisconfigured = map[int]bool{7: true, 10: true, 11: true, 14: true}

func (h *hec) header() (http.Header, error) {
	token, err := secret(h.config.TokenFile)
	if err != nil {
		return nil, err
	}
	return http.Header{
		"Authorization": {"Splunk " + token}, "Content-Type": {"application/json"}, "X-Splunk-Request-Channel": {h.channel},
	}, nil
}

// body is one envelope after the other:
//
//	{"time":SECONDS,"host":ORIGIN,"source":"sallyport","sourcetype":"sallyport:audit","index":INDEX,
//	 "fields":{"event_id":…,"log_index":"…"},"event":…}
//
// An event that is text and not JSON is a string there. Each batch has a body of
// its own: a transport may still read it when the answer is there.
func (h *hec) body(b *Batch) []byte {
	size := 0
	for i := range b.Messages {
		size += len(b.Messages[i].Body) + 512
	}
	out := make([]byte, 0, size)
	for i := range b.Messages {
		out = h.appendEvent(out, &b.Messages[i])
	}
	return out
}

func (h *hec) appendEvent(b []byte, m *Message) []byte {
	us := m.Time.UnixMicro()
	b = strconv.AppendInt(append(b, `{"time":`...), us/1e6, 10)
	b = append(b, '.')
	fraction := strconv.AppendInt(nil, 1e6+us%1e6, 10) // its six digits after a 1
	b = append(b, fraction[1:]...)
	b = audit.AppendText(append(b, `,"host":`...), h.origin)
	b = append(b, `,"source":"sallyport","sourcetype":"sallyport:audit"`...)
	if h.config.Index != "" {
		b = audit.AppendText(append(b, `,"index":`...), h.config.Index)
	}
	b = audit.AppendText(append(b, `,"fields":{"event_id":`...), m.ID)
	b = strconv.AppendUint(append(b, `,"log_index":"`...), m.Index, 10)
	b = append(b, `"},"event":`...)
	if h.raw {
		b = audit.AppendText(b, string(m.Body))
	} else {
		b = append(b, m.Body...)
	}
	return append(b, "}\n"...)
}

// indexed asks until the events are, or it has taken too long: an
// acknowledgement is told once, and one that was lost never comes again.
func (h *hec) indexed(ctx context.Context, header http.Header, id int) error {
	ctx, cancel := context.WithTimeout(ctx, h.config.AckTimeout)
	defer cancel()
	question := fmt.Appendf(nil, `{"acks":[%d]}`, id)
	tick := time.NewTicker(h.poll)
	defer tick.Stop()
	for {
		a, err := post(ctx, h.client, h.ack, header, question)
		if err != nil {
			return fmt.Errorf("ask for acknowledgement %d: %w", id, err)
		}
		if a.status != http.StatusOK {
			if err := a.problem(); a.status != http.StatusBadRequest {
				return fmt.Errorf("ask for acknowledgement %d: %w", id, err)
			}
			return fmt.Errorf("ask for acknowledgement %d: status %d: %.200q", id, a.status, a.body)
		}
		var said struct {
			Acks map[string]bool `json:"acks"`
		}
		if err := json.Unmarshal(a.body, &said); err != nil {
			return fmt.Errorf("acknowledgements: %w", err)
		}
		if said.Acks[strconv.Itoa(id)] {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not acknowledged within %v", h.config.AckTimeout)
		}
	}
}

func (h *hec) Close() error {
	h.client.CloseIdleConnections()
	return nil
}
