package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Config is a bucket of an S3-compatible store. Each batch is one object,
// named by the range of the log that it covers, written only if there is none of
// that name, and under Object Lock until its retention ends.
type S3Config struct {
	URL             string        `yaml:"url"` // of the store, without the bucket
	Bucket          string        `yaml:"bucket"`
	Prefix          string        `yaml:"prefix"` // of names
	Region          string        `yaml:"region"` // empty: us-east-1
	CredentialsFile string        `yaml:"credentials_file"`
	Lock            string        `yaml:"lock"`   // compliance, governance or none
	Retain          time.Duration `yaml:"retain"` // how long objects are locked
	Wait            time.Duration `yaml:"wait"`   // how long an object gathers records; 0: 10 s
	TLS             TLSConfig     `yaml:"tls"`
}

var s3Kind = Kind{
	Name: "s3", Exact: true, Batch: 4 << 20, Wait: 10 * time.Second,
	has:   func(c *Config) bool { return c.S3 != nil },
	wait:  func(c *Config) time.Duration { return c.S3.Wait },
	paths: func(c *Config) []*string { return append(c.S3.TLS.paths(), &c.S3.CredentialsFile) },
	check: func(c *Config, p *problems) {
		s := c.S3
		p.url("url", s.URL)
		if u, err := url.Parse(s.URL); err == nil && (u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "") {
			p.add("url", "want no path, query or fragment: objects are at /bucket/prefix")
		}
		if s.Wait < 0 {
			p.add("wait", "must not be negative, got %v", s.Wait)
		}
		p.required("bucket", s.Bucket)
		if p.required("credentials_file", s.CredentialsFile) {
			p.file("credentials_file", s.CredentialsFile)
		}
		switch s.Lock {
		case "compliance", "governance":
			if s.Retain < time.Hour {
				p.add("retain", "want at least an hour of a locked object, got %v", s.Retain)
			}
		case "none":
		default:
			p.add("lock", "want compliance, governance or none, got %q", s.Lock)
		}
		s.TLS.check(p)
	},
	open: openS3,
}

func openS3(_ context.Context, c *Config, o Options) (Sink, error) {
	to, err := url.Parse(c.S3.URL)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	region := c.S3.Region
	if region == "" {
		region = "us-east-1"
	}
	client, err := minio.New(to.Host, &minio.Options{
		Creds:  credentials.New(&s3Credentials{path: c.S3.CredentialsFile}),
		Secure: to.Scheme == "https", Transport: c.S3.TLS.transport(), Region: region, MaxRetries: 1,
	})
	if err != nil {
		return nil, err
	}
	suffix := ".jsonl"
	if o.ContentType != "application/json" {
		suffix = ".log"
	}
	return &s3{client: client, config: *c.S3, sink: o.Name, suffix: suffix, now: time.Now}, nil
}

type s3 struct {
	client *minio.Client
	config S3Config
	sink   string
	suffix string
	now    func() time.Time
}

// name sorts as the log does.
func (s *s3) name(b *Batch) string {
	return fmt.Sprintf("%s%s/%s/%020d-%020d%s", s.config.Prefix, b.Origin, s.sink, b.First, b.Next, s.suffix)
}

func (s *s3) Send(ctx context.Context, b *Batch) (int, error) {
	body := appendLines(nil, b)
	opts := minio.PutObjectOptions{ContentType: "application/x-ndjson", DisableMultipart: true, SendContentMd5: true}
	if s.suffix == ".log" {
		opts.ContentType = "text/plain; charset=utf-8"
	}
	switch s.config.Lock {
	case "compliance":
		opts.Mode = minio.Compliance
	case "governance":
		opts.Mode = minio.Governance
	}
	if opts.Mode != "" {
		opts.RetainUntilDate = s.now().Add(s.config.Retain).UTC().Truncate(time.Second)
	}
	// A plain PUT would succeed as a newer version and hide the one that is
	// locked.
	opts.SetMatchETagExcept("*")
	name := s.name(b)
	_, err := s.client.PutObject(ctx, s.config.Bucket, name, bytes.NewReader(body), int64(len(body)), opts)
	if err == nil {
		return len(b.Messages), nil
	}
	if minio.ToErrorResponse(err).StatusCode != http.StatusPreconditionFailed {
		return 0, fmt.Errorf("s3: put %s: %w", name, err)
	}
	if err := s.same(ctx, name, body); err != nil {
		return 0, fmt.Errorf("s3: %w", err)
	}
	return len(b.Messages), nil // an earlier attempt of ours, whose answer was lost
}

// same says whether the object that is there is what we would have written.
// If it is not, somebody else wrote it, and no attempt will help.
func (s *s3) same(ctx context.Context, name string, body []byte) error {
	object, err := s.client.GetObject(ctx, s.config.Bucket, name, minio.GetObjectOptions{})
	if err != nil {
		return fmt.Errorf("get %s: %w", name, err)
	}
	there, err := io.ReadAll(io.LimitReader(object, int64(len(body))+1))
	if err = errors.Join(err, object.Close()); err != nil {
		return fmt.Errorf("get %s: %w", name, err)
	}
	if !bytes.Equal(there, body) {
		return fmt.Errorf("object %s is there, and is not ours", name)
	}
	return nil
}

func (s *s3) Close() error { return nil }

// s3Credentials reads two lines, access key and secret key, and perhaps a third,
// a session token. It reads them anew each minute.
type s3Credentials struct {
	path string
	read time.Time
}

func (c *s3Credentials) Retrieve() (credentials.Value, error) {
	text, err := secret(c.path)
	if err != nil {
		return credentials.Value{}, err
	}
	lines := strings.Fields(text)
	if len(lines) < 2 || len(lines) > 3 {
		return credentials.Value{}, fmt.Errorf("credentials %s: want access key, secret key and perhaps a session token, each on its line", c.path)
	}
	v := credentials.Value{AccessKeyID: lines[0], SecretAccessKey: lines[1], SignerType: credentials.SignatureV4}
	if len(lines) == 3 {
		v.SessionToken = lines[2]
	}
	c.read = time.Now()
	return v, nil
}

func (c *s3Credentials) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return c.Retrieve()
}

func (c *s3Credentials) IsExpired() bool { return time.Since(c.read) > time.Minute }
