package sink

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSyslogHeadersHoldWhatTheyMay(t *testing.T) {
	m := Message{
		Index: 7, Time: time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.UTC), Kind: "decision", ID: `a"b]c\d`, Severity: 4, Replayed: true, Body: []byte(`{}`),
	}
	got := string(appendRFC5424(nil, "örigin with space", &m))
	want := `<106>1 2026-01-02T03:04:05.123456Z _rigin_with_space sallyport - decision [sallyport@32473 id="a\"b\]c\\d" index="7" replayed="true"] {}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func openFile(t *testing.T, path string, rotate int64) *file {
	t.Helper()
	s, err := Open(t.Context(), &Config{File: &FileConfig{Path: path, Rotate: rotate}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*file)
}

func mustSend(t *testing.T, s Sink, b *Batch) {
	t.Helper()
	if n, err := s.Send(t.Context(), b); n != len(b.Messages) || err != nil {
		t.Fatalf("%d taken, %v", n, err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAFileGoesOnBehindItsLastWholeLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	long := strings.Repeat("x", 200_000)
	if err := os.WriteFile(path, []byte("whole\n"+long), 0o600); err != nil {
		t.Fatal(err)
	}
	mustSend(t, openFile(t, path, 0), messages(1))
	if got := read(t, path); got != "whole\n{\"n\":0}\n" {
		t.Errorf("%q", got)
	}
}

func TestAFileThatIsDeletedOrMovedIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f := openFile(t, path, 0)
	mustSend(t, f, messages(1))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustSend(t, f, messages(2))
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	mustSend(t, f, messages(1))
	if got := read(t, path) + read(t, path+".moved"); got != "{\"n\":0}\n{\"n\":0}\n{\"n\":1}\n" {
		t.Errorf("%q", got)
	}
}

func TestAFullFileIsRenamedAndNothingIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f := openFile(t, path, 100)
	for i := range 10 {
		b := messages(5)
		b.First = uint64(i * 5)
		mustSend(t, f, b)
	}
	all, err := filepath.Glob(path + "*")
	if err != nil || len(all) < 4 {
		t.Fatalf("%v, %v", all, err)
	}
	lines := 0
	for _, p := range all {
		b := read(t, p)
		if lines += strings.Count(b, "\n"); len(b) > 100+5*len("{\"n\":0}\n") {
			t.Errorf("%s has %d bytes", p, len(b))
		}
	}
	if lines != 50 {
		t.Errorf("%d lines", lines)
	}
}

func TestAFileThatCannotBeWrittenTakesNothing(t *testing.T) {
	f := openFile(t, filepath.Join(t.TempDir(), "no", "such", "folder", "f"), 0)
	if n, err := f.Send(t.Context(), messages(1)); n != 0 || err == nil {
		t.Errorf("%d taken, %v", n, err)
	}
}

func TestReceiversMaySayWhenToComeBack(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		header string
		want   time.Duration
		ok     bool
	}{
		{"7", 7 * time.Second, true},
		{"999999999", 24 * time.Hour, true},
		{"-1", 0, false},
		{"soon", 0, false},
		{"", 0, false},
		{now.Add(9 * time.Second).Format(http.TimeFormat), 9 * time.Second, true},
		{now.Add(-time.Hour).Format(http.TimeFormat), 0, true},
	} {
		a := answer{header: http.Header{"Retry-After": {c.header}}}
		if got, ok := a.retryAfter(now); ok != c.ok || ok && got != c.want {
			t.Errorf("%q: %v, %v", c.header, got, ok)
		}
	}
}

func TestWhatIsWrongWithASinkIsSaid(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config Config
		want   string // in production; empty: nothing is wrong
	}{
		{Config{}, "want one of file, syslog, relp, otlp, hec, kafka, s3"},
		{Config{File: &FileConfig{Path: "x"}, Syslog: &SyslogConfig{}}, "want only one of file, syslog"},
		{Config{Syslog: &SyslogConfig{Address: "h"}}, "to.syslog.address: want host:port"},
		{Config{Syslog: &SyslogConfig{Address: "h:1", TLS: TLSConfig{CAFile: "/no/such"}}}, "to.syslog.tls.ca_file: stat"},
		{Config{RELP: &RELPConfig{Address: "h:1", TLS: TLSConfig{CertFile: secret}}}, "a certificate and its key go together"},
		{Config{RELP: &RELPConfig{Address: "h:1", Window: -1}}, "to.relp.window"},
		{Config{OTLP: &OTLPConfig{URL: "http://collector:4318"}}, "plain http only to a loopback address"},
		{Config{OTLP: &OTLPConfig{URL: "http://127.0.0.1:4318"}}, ""},
		{Config{OTLP: &OTLPConfig{URL: "https://user:password@collector"}}, "secrets are files"},
		{Config{HEC: &HECConfig{URL: "https://splunk:8088"}}, "to.hec.token_file: required"},
		{Config{HEC: &HECConfig{URL: "https://splunk:8088", TokenFile: secret}}, ""},
		{Config{HEC: &HECConfig{URL: "https://splunk:8088", TokenFile: secret, Ack: true, AckTimeout: 110 * time.Second}}, ""},
		{Config{HEC: &HECConfig{URL: "https://splunk:8088", TokenFile: secret, Ack: true, AckTimeout: 2 * time.Minute}}, "to.hec.ack_timeout: want at most 1m50s"},
		{Config{HEC: &HECConfig{URL: "https://splunk:8088", TokenFile: secret, Ack: true, AckTimeout: -1}}, "to.hec.ack_timeout"},
		{Config{File: &FileConfig{Path: "x", Rotate: -1}}, "to.file.rotate"},
		{Config{File: &FileConfig{Path: "x", Rotate: 1}}, ""},
		{Config{Kafka: &KafkaConfig{Brokers: []string{"k:9092"}, Topic: "t", Plaintext: true}}, "plaintext only to a loopback address"},
		{Config{Kafka: &KafkaConfig{Topic: "t"}}, "to.kafka.brokers: required"},
		{Config{Kafka: &KafkaConfig{Brokers: []string{"k:9093"}, Topic: "t", Username: "u"}}, "a name and a password go together"},
		{Config{S3: &S3Config{URL: "https://s3", Bucket: "b", CredentialsFile: secret}}, "to.s3.lock: want compliance, governance or none"},
		{Config{S3: &S3Config{URL: "https://s3", Bucket: "b", CredentialsFile: secret, Lock: "compliance"}}, "to.s3.retain"},
		{Config{S3: &S3Config{URL: "https://s3", Bucket: "b", CredentialsFile: secret, Lock: "none"}}, ""},
		{Config{S3: &S3Config{URL: "https://s3/", Bucket: "b", CredentialsFile: secret, Lock: "none"}}, ""},
		{Config{S3: &S3Config{URL: "https://s3/storage", Bucket: "b", CredentialsFile: secret, Lock: "none"}}, "to.s3.url: want no path"},
		{Config{S3: &S3Config{URL: "https://s3?x=y", Bucket: "b", CredentialsFile: secret, Lock: "none"}}, "to.s3.url: want no path"},
		{Config{S3: &S3Config{URL: "https://s3", Bucket: "b", CredentialsFile: secret, Lock: "none", Wait: -1}}, "to.s3.wait"},
	} {
		err := c.config.Check(true)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.config, err, c.want)
		}
	}
}

func TestEveryKindOfSinkIsWhole(t *testing.T) {
	for _, k := range Kinds() {
		if k.Name == "" || k.has == nil || k.check == nil || k.paths == nil || k.open == nil || k.Batch == 0 || k.Wait == 0 || k.has(new(Config)) {
			t.Errorf("%+v", k)
		}
		// However far behind, a batch and what is read ahead must fit.
		if k.Batch > 4<<20 {
			t.Errorf("a batch of %s has %d bytes", k.Name, k.Batch)
		}
	}
}

func TestOTLPRefusesWhatItsProtocolCannotHold(t *testing.T) {
	s, err := Open(t.Context(), &Config{OTLP: &OTLPConfig{URL: "http://127.0.0.1:1"}}, Options{Origin: "o"})
	if err != nil {
		t.Fatal(err)
	}
	b := messages(3)
	b.Messages[1].Body = []byte("{\"a\":\"\xff\"}")
	taken, err := s.Send(t.Context(), b)
	var refused *Refused
	if !errors.As(err, &refused) || refused.At != 1 || taken != 0 {
		t.Errorf("%d taken, %v", taken, err)
	}
}

func TestHECEventsAreTheEnvelopesThatSplunkReads(t *testing.T) {
	for _, c := range []struct {
		what   string
		hec    hec
		m      Message
		expect string
	}{
		{
			"JSON",
			hec{origin: "gw\"1"},
			Message{Time: time.UnixMicro(1_764_500_000_000_007), ID: "o/7", Index: 7, Body: []byte(`{"a":1}`)},
			`{"time":1764500000.000007,"host":"gw\"1","source":"sallyport","sourcetype":"sallyport:audit","fields":{"event_id":"o/7","log_index":"7"},"event":{"a":1}}`,
		},
		{
			"text, and an index",
			hec{origin: "o", raw: true, config: HECConfig{Index: "main"}},
			Message{Time: time.UnixMicro(999_999), ID: "i", Body: []byte("CEF:0|a\\|\"b\xff")},
			`{"time":0.999999,"host":"o","source":"sallyport","sourcetype":"sallyport:audit","index":"main","fields":{"event_id":"i","log_index":"0"},"event":"CEF:0|a\\|\"b\ufffd"}`,
		},
	} {
		if got := string(c.hec.body(&Batch{Messages: []Message{c.m, c.m}})); got != c.expect+"\n"+c.expect+"\n" {
			t.Errorf("%s: %s", c.what, got)
		}
	}
}
