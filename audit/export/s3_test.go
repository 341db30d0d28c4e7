package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/sallyport-ai/sallyport/audit/export/exporttest"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

func s3Sink(s *exporttest.Store) SinkConfig {
	return SinkConfig{Name: "s3", To: sink.Config{S3: s.Config}}
}

func TestAStoreHoldsEachRecordOnceUnderLock(t *testing.T) {
	s := exporttest.NewStore(t, exporttest.NewAuthority(t))
	w := newWorld(t)
	x, stop := w.start(func(x *Exporter) { small(&x.followers[0].kind) }, s3Sink(s))
	w.append(60)
	w.caughtUp(x)
	s.Kill()
	w.append(30)
	s.Start()
	w.caughtUp(x)
	stop()

	// The cursor is set back, as by a crash between an answer and its saving:
	// what is written again must be what is there.
	c, err := readCursor(w.dir, "s3")
	if err != nil {
		t.Fatal(err)
	}
	names, _ := s.Objects()
	last := names[len(names)-1]
	var first, next uint64
	if _, err := fmt.Sscanf(filepath.Base(last), "%d-%d.jsonl", &first, &next); err != nil || next != c.Next {
		t.Fatalf("last object %s, cursor at %d, %v", last, c.Next, err)
	}
	anchor, err := anchorOf(t.Context(), s, last)
	if err != nil {
		t.Fatal(err)
	}
	c.Sending = &intent{Next: next, Time: anchor.Time, Checkpoint: anchor.Checkpoint}
	c.place = place{Next: first}
	if err := c.write(w.dir); err != nil {
		t.Fatal(err)
	}
	x, stop = w.start(func(x *Exporter) { small(&x.followers[0].kind) }, s3Sink(s))
	w.append(10)
	w.until("placed", func() bool { return x.Status()[0].Next > first })
	w.caughtUp(x)
	stop()

	names, lines := s.Objects()
	want := w.leaves()
	if len(lines) != len(want) {
		t.Fatalf("%d lines of %d records in %d objects", len(lines), len(want), len(names))
	}
	for i, l := range lines {
		if l != string(want[i]) {
			t.Fatalf("line %d is not record %d", i, i)
		}
	}
	for o := range s.Client.ListObjects(t.Context(), exporttest.Bucket, minio.ListObjectsOptions{Recursive: true, WithVersions: true}) {
		switch err := s.Client.RemoveObject(t.Context(), exporttest.Bucket, o.Key, minio.RemoveObjectOptions{VersionID: o.VersionID, GovernanceBypass: true}); {
		case o.Err != nil:
			t.Fatal(o.Err)
		case !o.IsLatest:
			t.Errorf("%s has been written twice", o.Key)
		case err == nil:
			t.Errorf("%s could be deleted", o.Key)
		}
	}
	info, err := s.Client.StatObject(t.Context(), exporttest.Bucket, names[0], minio.StatObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until, err := time.Parse(time.RFC3339, info.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date"))
	if mode := info.Metadata.Get("X-Amz-Object-Lock-Mode"); mode != "COMPLIANCE" || err != nil || time.Until(until) < 50*time.Minute {
		t.Errorf("mode %q until %v, %v", mode, until, err)
	}
}

func anchorOf(ctx context.Context, s *exporttest.Store, name string) (anchor struct {
	Time       int64
	Checkpoint string
}, err error,
) {
	object, err := s.Client.GetObject(ctx, exporttest.Bucket, name, minio.GetObjectOptions{})
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
	s := exporttest.NewStore(t, exporttest.NewAuthority(t))
	w := newWorld(t)
	w.append(3)
	name := fmt.Sprintf("log/%s/s3/%020d-%020d.jsonl", origin, 0, 4)
	if _, err := s.Client.PutObject(context.Background(), exporttest.Bucket, name, strings.NewReader("forged\n"), 7, minio.PutObjectOptions{SendContentMd5: true}); err != nil {
		t.Fatal(err)
	}
	x, stop := w.start(nil, s3Sink(s))
	w.until("seen", func() bool { return strings.Contains(x.Status()[0].LastError, "is there, and is not ours") })
	stop()
	if s := x.Status()[0]; s.Next != 0 {
		t.Errorf("status %+v", s)
	}
}
