package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// store is a real S3 server with versions and Object Lock, over TLS.
type store struct {
	t      *testing.T
	args   []string
	bin    string
	port   int
	cmd    *exec.Cmd
	client *minio.Client
	config *sink.S3Config
}

const bucket = "audit"

func newStore(t *testing.T, a *authority) *store {
	t.Helper()
	bin, err := exec.LookPath("versitygw")
	if err != nil {
		t.Skip("no versitygw")
	}
	a.leaf("s3")
	dir := t.TempDir()
	s := &store{t: t, bin: bin, port: freePort(t)}
	for _, d := range []string{"data", "versions"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.args = []string{
		"--quiet", "--port", s.address(), "--access", "access", "--secret", "secretsecret", "--cert", filepath.Join(a.dir, "s3.pem"), "--key", filepath.Join(a.dir, "s3.key"),
		"posix", "--versioning-dir", filepath.Join(dir, "versions"), filepath.Join(dir, "data"),
	}
	keys := filepath.Join(dir, "keys")
	if err := writeFile(keys, "access\nsecretsecret\n"); err != nil {
		t.Fatal(err)
	}
	s.config = &sink.S3Config{
		URL: "https://" + s.address(), Bucket: bucket, Prefix: "log/", CredentialsFile: keys, Lock: "compliance", Retain: time.Hour,
		TLS: sink.TLSConfig{CAFile: a.caFile},
	}
	s.client, err = minio.New(s.address(), &minio.Options{
		Creds: credentials.NewStaticV4("access", "secretsecret", ""), Secure: true, Region: "us-east-1", Transport: a.trusting(), MaxRetries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	s.start()
	if err := s.client.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{Region: "us-east-1", ObjectLocking: true}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *store) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *store) start() {
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

func (s *store) kill() {
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Error(err)
	}
	_ = s.cmd.Wait() // says that it was killed
	s.cmd = nil
}

// objects are the names there, in their order, with each object's lines.
func (s *store) objects() (names []string, lines []string) {
	s.t.Helper()
	for o := range s.client.ListObjects(s.t.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			s.t.Fatal(o.Err)
		}
		names = append(names, o.Key)
		object, err := s.client.GetObject(s.t.Context(), bucket, o.Key, minio.GetObjectOptions{})
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

func (s *store) sink() SinkConfig { return SinkConfig{Name: "s3", To: sink.Config{S3: s.config}} }

func TestAStoreHoldsEachRecordOnceUnderLock(t *testing.T) {
	s := newStore(t, newAuthority(t))
	w := newWorld(t)
	x, stop := w.start(func(x *Exporter) { small(&x.followers[0].kind) }, s.sink())
	w.append(60)
	w.caughtUp(x)
	s.kill()
	w.append(30)
	s.start()
	w.caughtUp(x)
	stop()

	// The cursor is set back, as by a crash between an answer and its saving:
	// what is written again must be what is there.
	c, err := readCursor(w.dir, "s3")
	if err != nil {
		t.Fatal(err)
	}
	names, _ := s.objects()
	last := names[len(names)-1]
	var first, next uint64
	if _, err := fmt.Sscanf(filepath.Base(last), "%d-%d.jsonl", &first, &next); err != nil || next != c.Next {
		t.Fatalf("last object %s, cursor at %d, %v", last, c.Next, err)
	}
	anchor, err := s.anchorOf(last)
	if err != nil {
		t.Fatal(err)
	}
	c.Sending = &intent{Next: next, Time: anchor.Time, Checkpoint: anchor.Checkpoint}
	c.place = place{Next: first}
	if err := c.write(w.dir); err != nil {
		t.Fatal(err)
	}
	x, stop = w.start(func(x *Exporter) { small(&x.followers[0].kind) }, s.sink())
	w.append(10)
	w.until("placed", func() bool { return x.Status()[0].Next > first })
	w.caughtUp(x)
	stop()

	names, lines := s.objects()
	want := w.leaves()
	if len(lines) != len(want) {
		t.Fatalf("%d lines of %d records in %d objects", len(lines), len(want), len(names))
	}
	for i, l := range lines {
		if l != string(want[i]) {
			t.Fatalf("line %d is not record %d", i, i)
		}
	}
	for o := range s.client.ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Recursive: true, WithVersions: true}) {
		switch err := s.client.RemoveObject(t.Context(), bucket, o.Key, minio.RemoveObjectOptions{VersionID: o.VersionID, GovernanceBypass: true}); {
		case o.Err != nil:
			t.Fatal(o.Err)
		case !o.IsLatest:
			t.Errorf("%s has been written twice", o.Key)
		case err == nil:
			t.Errorf("%s could be deleted", o.Key)
		}
	}
	info, err := s.client.StatObject(t.Context(), bucket, names[0], minio.StatObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until, err := time.Parse(time.RFC3339, info.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date"))
	if mode := info.Metadata.Get("X-Amz-Object-Lock-Mode"); mode != "COMPLIANCE" || err != nil || time.Until(until) < 50*time.Minute {
		t.Errorf("mode %q until %v, %v", mode, until, err)
	}
}

func (s *store) anchorOf(name string) (anchor struct {
	Time       int64
	Checkpoint string
}, err error,
) {
	object, err := s.client.GetObject(s.t.Context(), bucket, name, minio.GetObjectOptions{})
	if err != nil {
		return anchor, err
	}
	b, err := io.ReadAll(object)
	if err != nil {
		return anchor, err
	}
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	return anchor, json.Unmarshal(lines[len(lines)-1], &anchor)
}

func TestAnObjectThatSomebodyElseWroteIsNotTakenForOurs(t *testing.T) {
	s := newStore(t, newAuthority(t))
	w := newWorld(t)
	w.append(3)
	name := fmt.Sprintf("log/%s/s3/%020d-%020d.jsonl", origin, 0, 4)
	if _, err := s.client.PutObject(context.Background(), bucket, name, strings.NewReader("forged\n"), 7, minio.PutObjectOptions{SendContentMd5: true}); err != nil {
		t.Fatal(err)
	}
	x, stop := w.start(nil, s.sink())
	w.until("seen", func() bool { return strings.Contains(x.Status()[0].LastError, "is there, and is not ours") })
	stop()
	if s := x.Status()[0]; s.Next != 0 {
		t.Errorf("status %+v", s)
	}
}
