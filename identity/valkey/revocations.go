package valkey

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sallyport-ai/sallyport/identity/revocation"
)

// rereadEvery is how often entries are read though nothing says that they
// changed.
const rereadEvery = 30 * time.Second

// revocations is what was read last.
type revocations struct {
	entries []revocation.Entry
	epoch   string
	at      time.Time
}

func (s *Store) hash() string  { return s.prefix + "revocations" }
func (s *Store) epoch() string { return s.prefix + "revocations:epoch" }

// Read is that of a revocation.Source. It is for one reader at a time.
func (s *Store) Read(ctx context.Context) ([]revocation.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*s.timeout) // there may be many
	defer cancel()
	epoch, err := s.client.Get(ctx, s.epoch()).Result()
	if errors.Is(err, redis.Nil) {
		epoch, err = "", nil
	}
	s.answered(ctx, err)
	if err != nil {
		return nil, err
	}
	if epoch == s.cache.epoch && time.Since(s.cache.at) < rereadEvery {
		return s.cache.entries, nil
	}
	all, err := s.client.HGetAll(ctx, s.hash()).Result()
	s.answered(ctx, err)
	if err != nil {
		return nil, err
	}
	entries := make([]revocation.Entry, 0, len(all))
	for id, text := range all {
		e, err := revocation.Decode([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("entry %.32q: %w", id, err)
		}
		entries = append(entries, e)
	}
	// The epoch was read before the entries: what changes in between is read
	// once more the next time, and never missed.
	s.cache = revocations{entries: entries, epoch: epoch, at: time.Now()}
	return entries, nil
}

// Restore is that of a revocation.Source.
func (s *Store) Restore(ctx context.Context, entries []revocation.Entry) error {
	return s.write(ctx, entries, time.Time{})
}

// Revoke adds an entry, and drops those that have ended. As it reads, it is for
// one caller at a time too.
func (s *Store) Revoke(ctx context.Context, e revocation.Entry, now time.Time) error {
	if err := s.write(ctx, []revocation.Entry{e}, now); err != nil {
		return fmt.Errorf("valkey: %w", err)
	}
	return nil
}

// write adds entries in one transaction, and drops those that had ended at now,
// if it is not zero.
func (s *Store) write(ctx context.Context, entries []revocation.Entry, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 10*s.timeout)
	defer cancel()
	var ended []string
	if !now.IsZero() {
		there, err := s.Read(ctx)
		if err != nil {
			return err
		}
		for _, e := range there {
			if e.Ended(now) {
				ended = append(ended, e.ID)
			}
		}
		if len(there)-len(ended)+len(entries) > revocation.MaxEntries {
			return fmt.Errorf("there are %d revocations already", len(there))
		}
	}
	_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, e := range entries {
			text, err := e.Encode()
			if err != nil {
				return err
			}
			p.HSet(ctx, s.hash(), e.ID, text)
		}
		if len(ended) > 0 {
			p.HDel(ctx, s.hash(), ended...)
		}
		p.Set(ctx, s.epoch(), rand.Text(), 0)
		return nil
	})
	return err
}
