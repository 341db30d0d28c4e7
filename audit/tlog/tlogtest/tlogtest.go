// Package tlogtest gives tests real logs, and the records in them. Start at
// [Open], or at [Write] for a log that is closed.
package tlogtest

import (
	"testing"

	"github.com/sallyport-ai/sallyport/audit"
	"github.com/sallyport-ai/sallyport/audit/tlog"
)

// Origin is the name of logs in tests that do not mind which.
const Origin = "example.org/gateway"

// Key makes a key for a log of that name.
func Key(tb testing.TB, origin string) *tlog.Key {
	tb.Helper()
	skey, _, err := tlog.GenerateKey(origin)
	if err != nil {
		tb.Fatal(err)
	}
	key, err := tlog.ParseKey(skey)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Open opens a log that closes with the test. What cfg leaves out is filled in:
// a new key of [Origin], the gateway, and segments of the least size.
func Open(tb testing.TB, cfg tlog.Config) *tlog.Log {
	tb.Helper()
	if cfg.Key == nil {
		cfg.Key = Key(tb, Origin)
	}
	if cfg.Boot.SPIFFE == "" {
		cfg.Boot.SPIFFE = "spiffe://" + Origin
	}
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = 256 << 10
	}
	log, err := tlog.Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := log.Close(); err != nil {
			tb.Error(err)
		}
	})
	return log
}

// Write appends records to the log that cfg says, as [Open] does, and closes it.
func Write(tb testing.TB, cfg tlog.Config, records ...*audit.Record) {
	tb.Helper()
	log := Open(tb, cfg)
	for _, r := range records {
		if _, err := log.Append(tb.Context(), r); err != nil {
			tb.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		tb.Fatal(err)
	}
}

// Records are those of the log in dir from an index on, in order.
func Records(tb testing.TB, dir string, from uint64) (records []*audit.Record) {
	tb.Helper()
	for e, err := range tlog.Read(dir, from) {
		if err != nil {
			tb.Fatal(err)
		}
		records = append(records, Decode(tb, e))
	}
	return records
}

// Decode reads the record of an entry.
func Decode(tb testing.TB, e tlog.Entry) *audit.Record {
	tb.Helper()
	r, err := audit.Decode(e.Leaf)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}
