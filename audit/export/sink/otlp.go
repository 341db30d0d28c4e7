package sink

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
	"unicode/utf8"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// OTLPConfig is a collector that takes OpenTelemetry logs over HTTP, in
// protobuf. The protocol is spoken here and not through an SDK: an SDK's
// processors drop what they have no room for, and its exporter does not tell how
// many records a collector rejected, or when it wants to be asked again.
type OTLPConfig struct {
	URL       string    `yaml:"url"`        // /v1/logs unless it has a path
	TokenFile string    `yaml:"token_file"` // bearer token; empty: none
	TLS       TLSConfig `yaml:"tls"`
}

var otlpKind = Kind{
	Name: "otlp", Batch: 1 << 20, Wait: 200 * time.Millisecond, Limit: 256 << 10,
	has:   func(c *Config) bool { return c.OTLP != nil },
	paths: func(c *Config) []*string { return append(c.OTLP.TLS.paths(), &c.OTLP.TokenFile) },
	check: func(c *Config, p *problems) {
		p.url("url", c.OTLP.URL)
		p.file("token_file", c.OTLP.TokenFile)
		c.OTLP.TLS.check(p)
	},
	open: func(_ context.Context, c *Config, o Options) (Sink, error) {
		to, err := url.Parse(c.OTLP.URL)
		if err != nil {
			return nil, fmt.Errorf("url: %w", err)
		}
		if to.Path == "" || to.Path == "/" {
			to.Path = "/v1/logs" // as the OTLP specification has it
		}
		return &otlp{url: to.String(), token: c.OTLP.TokenFile, origin: o.Origin, client: newClient(&c.OTLP.TLS)}, nil
	},
}

type otlp struct {
	url, token, origin string
	client             *http.Client
}

func (s *otlp) Send(ctx context.Context, b *Batch) (int, error) {
	// A string of protobuf is UTF-8, and a record is not altered to be sent.
	for i := range b.Messages {
		if !utf8.Valid(b.Messages[i].Body) {
			return 0, &Refused{At: i, Reason: "not UTF-8"}
		}
	}
	body, err := proto.Marshal(s.request(b))
	if err != nil {
		return 0, fmt.Errorf("otlp: encode: %w", err)
	}
	header := http.Header{"Content-Type": {"application/x-protobuf"}}
	if s.token != "" {
		token, err := secret(s.token)
		if err != nil {
			return 0, err
		}
		header.Set("Authorization", "Bearer "+token)
	}
	a, err := post(ctx, s.client, s.url, header, body)
	if err != nil {
		return 0, fmt.Errorf("otlp: %w", err)
	}
	if a.status != http.StatusOK {
		return 0, fmt.Errorf("otlp: %w", a.problem())
	}
	var said collector.ExportLogsServiceResponse
	if err := proto.Unmarshal(a.body, &said); err != nil {
		return 0, fmt.Errorf("otlp: the collector's answer: %w", err)
	}
	// Without the number of each rejected record, batches are cut in two until
	// it is known which they are. Those that were taken arrive again, with the
	// same ids.
	if n := said.GetPartialSuccess().GetRejectedLogRecords(); n > 0 {
		return 0, &Refused{At: -1, Reason: fmt.Sprintf("%d rejected: %.200s", n, said.GetPartialSuccess().GetErrorMessage())}
	}
	return len(b.Messages), nil
}

// otlpSeverities are INFO, INFO2, WARN and ERROR for 1 informational to 4 high.
var otlpSeverities = [...]logs.SeverityNumber{
	logs.SeverityNumber_SEVERITY_NUMBER_INFO, logs.SeverityNumber_SEVERITY_NUMBER_INFO, logs.SeverityNumber_SEVERITY_NUMBER_INFO2,
	logs.SeverityNumber_SEVERITY_NUMBER_WARN, logs.SeverityNumber_SEVERITY_NUMBER_ERROR,
}

func (s *otlp) request(b *Batch) *collector.ExportLogsServiceRequest {
	records := make([]*logs.LogRecord, len(b.Messages))
	now := uint64(time.Now().UnixNano())
	for i, m := range b.Messages {
		records[i] = &logs.LogRecord{
			TimeUnixNano: uint64(m.Time.UnixNano()), ObservedTimeUnixNano: now, SeverityNumber: otlpSeverities[m.Severity],
			EventName: "sallyport.audit." + m.Kind, Body: text(string(m.Body)),
			Attributes: []*common.KeyValue{
				{Key: "log.record.uid", Value: text(m.ID)},
				{Key: "sallyport.log.origin", Value: text(s.origin)},
				{Key: "sallyport.log.index", Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(m.Index)}}},
			},
		}
	}
	return &collector.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{
		Resource: &resource.Resource{Attributes: []*common.KeyValue{
			{Key: "service.name", Value: text("sallyport")}, {Key: "service.instance.id", Value: text(s.origin)},
		}},
		ScopeLogs: []*logs.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "sallyport.audit"}, LogRecords: records}},
	}}}
}

func text(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: s}}
}

func (s *otlp) Close() error {
	s.client.CloseIdleConnections()
	return nil
}
