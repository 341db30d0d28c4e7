package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
)

// Kinds are the kinds of sink there are, by the names of their fields in
// [Config].
func Kinds() []Kind {
	return []Kind{
		fileKind,
		syslogKind,
		relpKind,
		otlpKind,
		hecKind,
		kafkaKind,
		s3Kind,
	}
}

// Config configures one sink: exactly one field is set. Secrets are files.
type Config struct {
	File   *FileConfig   `yaml:"file"`
	Syslog *SyslogConfig `yaml:"syslog"`
	RELP   *RELPConfig   `yaml:"relp"`
	OTLP   *OTLPConfig   `yaml:"otlp"`
	HEC    *HECConfig    `yaml:"hec"`
	Kafka  *KafkaConfig  `yaml:"kafka"`
	S3     *S3Config     `yaml:"s3"`
}

// Kind returns which kind is configured.
func (c *Config) Kind() (Kind, error) {
	var found, names []string
	var kind Kind
	for _, k := range Kinds() {
		names = append(names, k.Name)
		if k.has(c) {
			found, kind = append(found, k.Name), k
		}
	}
	switch len(found) {
	case 1:
		if kind.wait != nil {
			kind.Wait = or(kind.wait(c), kind.Wait)
		}
		return kind, nil
	case 0:
		return kind, fmt.Errorf("to: want one of %s", strings.Join(names, ", "))
	default:
		return kind, fmt.Errorf("to: want only one of %s", strings.Join(found, ", "))
	}
}

// Open makes a sink ready. It need not reach the receiver: a sink whose
// receiver is down fails when it sends.
func Open(ctx context.Context, c *Config, o Options) (Sink, error) {
	k, err := c.Kind()
	if err != nil {
		return nil, err
	}
	s, err := k.open(ctx, c, o)
	if err != nil {
		return nil, fmt.Errorf("open %s sink: %w", k.Name, err)
	}
	return s, nil
}

// Check returns every problem, each as "field: what is wrong". Files that are
// named must exist.
func (c *Config) Check(production bool) error {
	k, err := c.Kind()
	if err != nil {
		return err
	}
	p := &problems{at: k.Name, production: production}
	k.check(c, p)
	return errors.Join(p.errs...)
}

// Paths are the fields that name files, so that they can be made relative to
// something.
func (c *Config) Paths() []*string {
	k, err := c.Kind()
	if err != nil {
		return nil
	}
	return k.paths(c)
}

// problems collects what is wrong with a configuration.
type problems struct {
	at         string
	production bool
	errs       []error
}

func (p *problems) add(field, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("to.%s.%s: %s", p.at, field, fmt.Sprintf(format, args...)))
}

func (p *problems) required(field, v string) bool {
	if v == "" {
		p.add(field, "required")
	}
	return v != ""
}

func (p *problems) file(field, v string) {
	if v == "" {
		return
	}
	if st, err := os.Stat(v); err != nil {
		p.add(field, "%v", err)
	} else if st.IsDir() {
		p.add(field, "%s is a directory", v)
	}
}

func (p *problems) address(field, v string) {
	if !p.required(field, v) {
		return
	}
	if _, _, err := net.SplitHostPort(v); err != nil {
		p.add(field, "want host:port: %v", err)
	}
}

// url must be https; outside production, or to a loopback address, http will
// do.
func (p *problems) url(field, v string) {
	if !p.required(field, v) {
		return
	}
	u, err := url.Parse(v)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		p.add(field, "want an http or https URL, got %q", v)
	case u.Scheme == "http" && p.production && !loopback(u.Hostname()):
		p.add(field, "production takes plain http only to a loopback address")
	case u.User != nil:
		p.add(field, "holds a password; secrets are files")
	}
}

func loopback(host string) bool { return net.ParseIP(host).IsLoopback() }

// or returns the first duration that is set.
func or(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
