// Package tlog is the audit log: an append-only file of signed batches with an
// RFC 6962 tree over its records.
//
// Start at [Open], which returns a [Log] that takes records, and at [Verify],
// which checks a log directory against a pinned key without opening it.
//
// # On disk
//
//	lock               held by the process that appends
//	wal/00000000       segments: the log itself
//	wal/reserve        space for what is owed when the disk is full
//	checkpoint         signed note over the tree, renewed each second
//	anchored           the newest checkpoint that enough witnesses cosigned
//	tile/0/000         hash tiles and
//	tile/entries/000   entry bundles, as in https://c2sp.org/tlog-tiles
//
// Only the segments count: tiles and checkpoint are derived from them, and are
// written again if missing. A full entry bundle is written once its 256
// records exist, the last partial one when the log is closed.
//
// A segment is a sequence of frames, then zeros. Integers are little-endian:
//
//	length    u32   of the payload; the high byte is the kind of frame
//	CRC-32C   u32   of the frame but this field
//	sequence  u64   index of the record; in other frames, of the next one
//	chain     [32]  SHA-256 of this frame with the chain of the frame before
//	                it in this place, CRC zero, and for a leaf its RFC 6962 hash
//	payload         a record's leaf, exactly
//
// The first frame of a segment is its header (JSON, [header] in source). Each
// batch of records ends with a trailer: tree size, root, time, and an Ed25519
// signature over these and the chain. A valid trailer vouches for every byte
// before it.
//
// Between the records and the trailer stands a seal: HMAC-SHA-256 over
// "sallyport-seal-v1", origin, chain and tree size, under a key derived from the
// log's private key (HKDF-SHA-256). Records and seal become durable with one
// fdatasync, and meanwhile the signature is made. The trailer is written before
// the batch is acknowledged, so that no acknowledged record is ever unsigned in
// the file, and is synced with what comes next, within a second. What was
// sealed counts for the log itself alone: readers end at the last trailer.
//
// A batch without a seal became durable with its trailer: the last one under a
// key, the last of a run, one that is written anew, and each in a segment of
// format 1, whose chain is over the leaves themselves.
//
// # Keys, and what is no more
//
// The last record under a key may be its key_rotation, signed by it and the
// next; a new segment follows. A verifier pins any of the keys, and gets from
// one to the other through the rotations.
//
// Pruned, a log begins at a later segment: a prune record, appended before the
// files went, says so, and the hash tiles give the tree that the first trailer's
// root continues.
//
// # When a disk fails
//
// After a failed write or sync the segment is poisoned: it is never written or
// synced again, since the kernel may have dropped what a second sync would
// then call durable. All who wait for the batch are refused. The batch is
// written to a new segment under the same indexes, so that the tree never
// forks, and each allowed decision in it is followed by a not_forwarded
// outcome. With it goes the batch before, if its trailer is not durable; until all
// of that is there, readers end in the old segment. If the new one fails too, the
// log is halted until it is opened again.
//
// When no new segment can be made, the log goes on in its reserve and takes only
// what is owed, until there is space again; a gap record then says how long.
//
// # When the power goes
//
// What was not synced was not acknowledged. Of one last batch any part may be
// there: it is cut off when the log is opened, if it ends early, or if sectors of
// it are still the zeros that the segment was filled with and nothing follows.
// The trailer of the last durable batch may be missing. The log's key then checks
// the seal and signs the batch, and the boot record counts its records; until
// then they are not verified ([Unsigned]). A seal that the key did not make is
// damage ([BadSeal]). Any other damage is not explained by that, and the log is
// not opened.
//
// # When the directory goes away
//
// A file that has been deleted, or moved away with its directory, can still be
// written and synced. Before a batch is acknowledged, and each second, the log
// looks whether its lock and its segment are still found under their names. If
// not, it is halted. A second directory is given up instead.
//
// A key that was read from a file ([ReadKeyFile]) signs one open log at a time,
// so that a log cannot be started anew in the place of one that was moved away
// and is still being written to. This holds for one file on one machine: of a
// copy of the key nobody knows.
//
// # What cannot be seen from inside
//
// Whoever holds the directory and the signing key can cut the log back to the
// newest checkpoint that someone else holds, and rewrite it from there. Verify
// detects that only against such a checkpoint ([VerifyOptions]); [Witnesses] hold
// one, a second old.
package tlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/sallyport-ai/sallyport/audit"
)

// Config is what a log needs. Dir, Key and Boot are required.
type Config struct {
	Dir  string
	Dir2 string // second directory, preferably on another volume, for strict-2
	Key  *Key   // its name is the log's origin
	Boot audit.Gateway

	SegmentBytes    int64         // 64 MiB if zero, at least 256 KiB
	CheckpointEvery time.Duration // 1 s if zero
	HeartbeatEvery  time.Duration // 1 min if zero
	BoundedRecords  int           // unsynced bounded records, 256 if zero
	BoundedInterval time.Duration // age of the oldest unsynced bounded record, 50 ms if zero

	Witnesses Witnesses // none if empty

	// Retention is how long records are kept; 0: for ever. Older ones are pruned
	// while the log is open, but none from the index on that Needed returns, if
	// it is set, nor any while that is 0.
	Retention time.Duration
	Needed    func() uint64
	Pruned    func() // is told when that was done, if it is set; it must not block

	Logger *slog.Logger // discards if nil

	// Tests set these to make disks and processes fail: create opens segment
	// files, reach is told of each named point that is passed, and may fail it.
	create createFile
	reach  func(point string) error
}

// Limits of a log.
const (
	minSegmentBytes = 256 << 10
	maxBatchBytes   = 1 << 20 // a batch holds more only if a single record does
	maxQueueBytes   = 32 << 20
)

// withDefaults returns the configuration to use, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.CheckpointEvery, time.Second)
	set(&c.HeartbeatEvery, time.Minute)
	set(&c.BoundedInterval, 50*time.Millisecond)
	if c.BoundedRecords == 0 {
		c.BoundedRecords = 256
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 64 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.reach == nil {
		c.reach = func(string) error { return nil }
	}
	if c.create == nil {
		c.create = createOSFile
	}
	var errs []error
	check := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("audit log: "+what))
		}
	}
	check(c.Dir != "", "no directory")
	check(c.Key != nil, "no key")
	check(c.Boot.SPIFFE != "", "no identity to write down")
	check(c.Dir2 == "" || filepath.Clean(c.Dir2) != filepath.Clean(c.Dir), "second directory is the first")
	check(c.SegmentBytes >= minSegmentBytes, fmt.Sprintf("segments of %d bytes are below the least size, %d", c.SegmentBytes, minSegmentBytes))
	check(c.CheckpointEvery > 0 && c.HeartbeatEvery > 0 && c.BoundedInterval > 0 && c.BoundedRecords > 0 && c.Retention >= 0, "a negative limit or interval")
	return c, errors.Join(errs...)
}

// Head is the newest durable state of a log.
type Head struct {
	Size uint64
	Root tlog.Hash

	key *Key // that signed it
}

// Log is an open log. It implements [audit.Appender].
type Log struct {
	cfg   Config
	boot  string
	start time.Time
	locks []*lock // of the key file, if there is one, then of the directories

	head        atomic.Pointer[Head] // stored by the commit loop
	wake        chan struct{}        // tells the commit loop to look at the queue
	ahead       chan struct{}        // tells its helper
	done        chan struct{}        // closed when all is written
	stop        context.CancelFunc   // ends the background goroutines
	bg          sync.WaitGroup
	unpublished atomic.Int32 // attempts to publish that failed in a row
	published   publications
	anchorer    *anchorer // nil without witnesses

	signer        atomic.Pointer[Key] // of the next batch
	checkpointing sync.Mutex          // guards the checkpoint file
	pruning       sync.Mutex          // held while pruning
	begins        atomic.Uint64       // index of the first record that is kept
	publishedSize atomic.Uint64       // of the tree that the tiles are of

	mu         sync.Mutex // guards what follows
	queue      []*entry   // sequenced, not yet in a batch
	queueBytes int
	want       int         // how many of them are worth waking for
	idle       bool        // the commit loop has nothing to write
	next       uint64      // index of the next record
	loose      []time.Time // of the bounded records let go before they were durable
	closing    bool
	halted     error
	short      shortage
	rotations  []audit.Turn // of the signing key, from the first

	marking sync.Mutex // guards marks
	marks   marks

	writer
}

var _ audit.Appender = (*Log)(nil)

// Open recovers the log in cfg.Dir, or starts one, and appends its boot
// record. It fails if another process has the log open ([ErrLocked]), if the
// log is another's, if others could write to its files or to that of its key, and if it is damaged in any way that a crash does not
// explain; the log is then left as it is.
func Open(cfg Config) (*Log, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Log{
		cfg: cfg, boot: uuid.NewString(), start: time.Now(),
		wake: make(chan struct{}, 1), ahead: make(chan struct{}, 1), done: make(chan struct{}),
	}
	rec, err := l.prepare()
	if err != nil {
		return nil, errors.Join(err, l.unlock())
	}
	before := rec.state.tree
	l.next, l.marks = before.size, rec.marks
	l.rotations = rec.rotations
	l.signer.Store(cfg.Key)
	l.publishedSize.Store(rec.published)
	l.begins.Store(rec.start)
	l.head.Store(&Head{Size: before.size, Root: before.root(), key: cfg.Key})
	go l.commitLoop()
	l.bg.Go(l.gatherLoop)
	if err := l.enterService(rec); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	last := make(chan struct{})
	l.bg.Go(func() { defer close(last); l.publishLoop(ctx, rec) })
	if l.anchorer != nil {
		l.bg.Go(func() { l.anchorer.run(ctx, last) })
	}
	l.bg.Go(func() { l.heartbeatLoop(ctx) })
	if cfg.Retention > 0 {
		l.bg.Go(func() { l.retain(ctx) })
	}
	return l, nil
}

// prepare locks the directories, recovers the log and opens its volumes.
func (l *Log) prepare() (*recovered, error) {
	if err := l.lock(); err != nil {
		return nil, err
	}
	if err := superseded(l.cfg.Dir); err != nil {
		return nil, err
	}
	var held []heldCheckpoint
	if l.cfg.Dir2 != "" {
		head, err := mirrorHead(l.cfg.Dir2, l.cfg.Dir, l.cfg.Key)
		if err != nil {
			return nil, err
		}
		held = append(held, head)
	}
	rec, err := recoverLog(l.cfg.Dir, l.cfg.Dir, l.cfg.Key, held...)
	if err != nil {
		return nil, err
	}
	if err := l.askWitnesses(rec); err != nil {
		return nil, err
	}
	if err := rec.apply(l.cfg.Dir); err != nil {
		return nil, err
	}
	if rec.pruned > rec.start {
		if err := l.cfg.destroy(rec.pruned); err != nil {
			return nil, err
		}
		rec.start = rec.pruned
	}
	if l.cfg.Dir2 != "" {
		if err := catchUp(l.cfg.Dir, l.cfg.Dir2); err != nil {
			return nil, err
		}
	}
	return rec, l.open(l.cfg, rec, l.dirLocks())
}

// dirLocks are the locks of the directories, the first one's first.
func (l *Log) dirLocks() []*lock {
	if l.cfg.Key.path != "" {
		return l.locks[1:]
	}
	return l.locks
}

// askWitnesses shows what was recovered to the witnesses, if there are any. A log
// that has lost records must not go on: what came next would be a fork.
func (l *Log) askWitnesses(rec *recovered) (err error) {
	if l.anchorer, err = newAnchorer(l); err != nil || l.anchorer == nil {
		return err
	}
	at := rec.state.tree
	if err := l.anchorer.probe(context.Background(), checkpoint{size: at.size, root: at.root()}); err != nil {
		return fmt.Errorf("log in %s is left untouched: %w", l.cfg.Dir, err)
	}
	return nil
}

// lock takes the key file, if there is one, and the directories. The key comes
// first: without it not even an empty directory is made.
func (l *Log) lock() error {
	take := func(held *lock, err error) error {
		if err == nil {
			l.locks = append(l.locks, held)
		}
		return err
	}
	if path := l.cfg.Key.path; path != "" {
		if err := checkKeyOwned(path); err != nil {
			return fmt.Errorf("log key: %w", err)
		}
		if err := take(takeLock(path, os.O_RDONLY)); err != nil {
			return fmt.Errorf("log key: %w", err)
		}
	}
	for _, dir := range []string{l.cfg.Dir, l.cfg.Dir2} {
		if dir == "" {
			continue
		}
		if err := checkOwned(dir); err != nil {
			return fmt.Errorf("log directory: %w", err)
		}
		if err := os.MkdirAll(filepath.Join(dir, walDir), 0o700); err != nil {
			return fmt.Errorf("create log directory: %w", err)
		}
		if err := take(lockDir(dir)); err != nil {
			return err
		}
	}
	return nil
}

// bootEvent is the body of a boot record.
type bootEvent struct {
	PreviousSize uint64    `json:"previous_size"`
	PreviousRoot tlog.Hash `json:"previous_root"`
	Clean        bool      `json:"clean"`                // the run before was shut down in order
	TornBytes    int64     `json:"torn_bytes,omitempty"` // cut from an unfinished batch
	// Countersigned records were acknowledged, or about to be, and the power went
	// before their signature was on disk: it has been made again.
	Countersigned int    `json:"countersigned,omitempty"`
	Unresolved    int    `json:"unresolved,omitempty"` // decisions answered unknown_crash just before
	Key           string `json:"key"`
	Lease         lease  `json:"lease"`
}

// enterService answers the decisions that the run before left open, then
// appends the boot record. In this order a boot record means that everything
// before it has been answered, and a crash in between loses nothing.
func (l *Log) enterService(rec *recovered) error {
	for _, s := range rec.open {
		if err := l.note(l.outcome(s, audit.StatusUnknownCrash, "crash", "gateway stopped without recording the outcome")); err != nil {
			return err
		}
	}
	if err := l.recordLost(); err != nil {
		return err
	}
	event, err := json.Marshal(bootEvent{
		PreviousSize: rec.state.tree.size, PreviousRoot: rec.state.tree.root(),
		Clean: rec.clean, TornBytes: rec.torn, Countersigned: rec.countersigned, Unresolved: len(rec.open), Key: l.cfg.Key.VerifierKey(),
		Lease: l.dirLocks()[0].lease(),
	})
	if err != nil {
		return fmt.Errorf("encode boot record: %w", err)
	}
	if _, err = l.Append(context.Background(), &audit.Record{Kind: audit.KindBoot, ID: audit.NewID(), Gateway: &l.cfg.Boot, Event: event}); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(l.cfg.Dir, lostFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget what was lost: %w", err)
	}
	return nil
}

// Head returns the newest durable state.
func (l *Log) Head() Head { return *l.head.Load() }

// Err returns why the log is halted, or nil while it takes records.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.halted
}

// Ready says why records of that durability should not be brought here, or nil.
// Unlike [Log.Err] it also says that nothing has been published for a while:
// records are still taken, but there is no checkpoint of them for an auditor.
func (l *Log) Ready(d audit.Durability) error {
	if err := l.Err(); err != nil {
		return fmt.Errorf("audit log halted: %w", err)
	}
	if since := l.Short(); !since.IsZero() {
		return fmt.Errorf("audit log: %w", errNoSpace)
	}
	if n := l.unpublished.Load(); n >= unpublishedLimit {
		return fmt.Errorf("audit log: the last %d checkpoints could not be published", n)
	}
	if a := l.Anchors(); a.Configured && l.cfg.Witnesses.Limit > 0 && a.Age > l.cfg.Witnesses.Limit {
		return fmt.Errorf("audit log: %d records have had no anchor for %s", a.Records, a.Age.Round(time.Second))
	}
	if d == audit.Strict2 && l.single.Load() {
		return errors.New("audit log: no second directory")
	}
	return nil
}

// unpublishedLimit is how many checkpoints in a row may fail to be published
// before a log is not ready: ten seconds of them.
const unpublishedLimit = 10

// Close appends a seal record, publishes the last checkpoint and releases the
// directory. Records already accepted are written first.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return nil
	}
	l.closing = true
	l.mu.Unlock()
	if l.stop != nil {
		l.stop()
	}
	l.signal()
	<-l.done
	l.bg.Wait()
	return errors.Join(l.Err(), l.writer.close(), l.unlock())
}

func (l *Log) unlock() error {
	var errs []error
	for _, f := range l.locks {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// heartbeatLoop proves with a record from time to time that the log was there
// and nothing was appended.
func (l *Log) heartbeatLoop(ctx context.Context) {
	tick := time.NewTicker(l.cfg.HeartbeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// Where this fails, the log is halted or closing and says so itself.
			_ = l.note(&audit.Record{Kind: audit.KindHeartbeat, ID: audit.NewID()})
		}
	}
}

// outcome is the outcome that the log itself records for a decision.
func (l *Log) outcome(s summary, status, reason, detail string) *audit.Record {
	return &audit.Record{
		Kind: audit.KindOutcome, ID: s.ID, Attempt: s.Attempt, Gateway: &l.cfg.Boot,
		Status: status, Reason: reason, Detail: detail,
		Outcome: &audit.Outcome{Status: status, Inspected: audit.Inspected{Request: []string{}, Response: []string{}}},
	}
}
