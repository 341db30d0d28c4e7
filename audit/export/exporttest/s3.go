package exporttest

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// Store is a real S3 server with versions and Object Lock, over TLS.
type Store struct {
	t      *testing.T
	args   []string
	bin    string
	port   int
	cmd    *exec.Cmd
	Client *minio.Client
	Config *sink.S3Config
}

// Bucket is the one there, with Object Lock.
const Bucket = "audit"

// NewStore starts one; it skips the test where there is none.
func NewStore(t *testing.T, a *Authority) *Store {
	t.Helper()
	bin, err := exec.LookPath("versitygw")
	if err != nil {
		t.Skip("no versitygw")
	}
	a.Leaf("s3")
	dir := t.TempDir()
	s := &Store{t: t, bin: bin, port: FreePort(t)}
	for _, d := range []string{"data", "versions"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.args = []string{
		"--quiet", "--port", s.address(), "--access", "access", "--secret", "secretsecret", "--cert", filepath.Join(a.Dir, "s3.pem"), "--key", filepath.Join(a.Dir, "s3.key"),
		"posix", "--versioning-dir", filepath.Join(dir, "versions"), filepath.Join(dir, "data"),
	}
	keys := filepath.Join(dir, "keys")
	if err := os.WriteFile(keys, []byte("access\nsecretsecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Config = &sink.S3Config{
		URL: "https://" + s.address(), Bucket: Bucket, Prefix: "log/", CredentialsFile: keys, Lock: "compliance", Retain: time.Hour,
		TLS: sink.TLSConfig{CAFile: a.CAFile},
	}
	s.Client, err = minio.New(s.address(), &minio.Options{
		Creds: credentials.NewStaticV4("access", "secretsecret", ""), Secure: true, Region: "us-east-1", Transport: a.Trusting(), MaxRetries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	s.Start()
	if err := s.Client.MakeBucket(t.Context(), Bucket, minio.MakeBucketOptions{Region: "us-east-1", ObjectLocking: true}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Store) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Start starts it and waits until it listens.
func (s *Store) Start() {
	s.t.Helper()
	s.cmd = exec.Command(s.bin, s.args...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", s.address()); err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("the store does not listen")
		}
	}
}

// Kill ends it at once.
func (s *Store) Kill() {
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Error(err)
	}
	_ = s.cmd.Wait() // says that it was killed
	s.cmd = nil
}

// Objects are the names there, in their order, with each object's lines.
func (s *Store) Objects() (names []string, lines []string) {
	s.t.Helper()
	for o := range s.Client.ListObjects(s.t.Context(), Bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			s.t.Fatal(o.Err)
		}
		names = append(names, o.Key)
		object, err := s.Client.GetObject(s.t.Context(), Bucket, o.Key, minio.GetObjectOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		b, err := io.ReadAll(object)
		if err != nil {
			s.t.Fatal(err)
		}
		for l := range strings.Lines(string(b)) {
			if !strings.Contains(l, `"kind":"anchor"`) {
				lines = append(lines, strings.TrimSuffix(l, "\n"))
			}
		}
	}
	return names, lines
}
