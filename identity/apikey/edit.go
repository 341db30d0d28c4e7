package apikey

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/sallyport-ai/sallyport/identity/atomicfile"
)

// ErrNoSuchKey says that a store has no key of an ID.
var ErrNoSuchKey = errors.New("no such API key")

// Create makes a key that is entitled to what the record says, and adds it to
// the store, which is made where there is none. ID and MAC of the record, and
// Created where it is zero, are filled in. When Create returns, the key is
// durable; it is not kept anywhere but in what is returned.
func Create(path string, pepper Pepper, r Record) (Key, Record, error) {
	if pepper.secret == nil {
		return Key{}, Record{}, errors.New("create API key: no pepper")
	}
	if r.Created.IsZero() {
		r.Created = time.Now()
	}
	r.Created, r.Expires = second(r.Created), second(r.Expires)
	var key Key
	err := edit(path, true, func(h *header, records *[]*Record) error {
		if h.Pepper == "" {
			h.Pepper = pepper.name()
		} else if h.Pepper != pepper.name() {
			return fmt.Errorf("%s: %w", path, errPepper)
		}
		if len(*records) >= maxKeys {
			return fmt.Errorf("%s is full: %d keys", path, maxKeys)
		}
		for key = NewKey(); slices.ContainsFunc(*records, func(r *Record) bool { return r.ID == key.ID() }); {
			key = NewKey()
		}
		r.ID = key.ID()
		r.mac = pepper.mac(key.Secret(), &r)
		r.MAC = fmt.Sprintf("%x", r.mac)
		if err := r.check(); err != nil {
			return err
		}
		*records = append(*records, &r)
		return nil
	})
	if err != nil {
		return Key{}, Record{}, fmt.Errorf("create API key: %w", err)
	}
	return key, r, nil
}

// Revoke withdraws a key. One that was revoked before stays revoked as of then.
// It needs no pepper.
func Revoke(path, id string, now time.Time) (Record, error) {
	var revoked Record
	err := edit(path, false, func(_ *header, records *[]*Record) error {
		i := slices.IndexFunc(*records, func(r *Record) bool { return r.ID == id })
		if i < 0 {
			return fmt.Errorf("%w: %.64q", ErrNoSuchKey, id)
		}
		if r := (*records)[i]; r.Revoked.IsZero() {
			r.Revoked = second(now)
		}
		revoked = *(*records)[i]
		return nil
	})
	if err != nil {
		return Record{}, fmt.Errorf("revoke API key: %w", err)
	}
	return revoked, nil
}

func second(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// edit changes a store as a whole: readers, and whoever comes after a crash, see
// it as it was before or as it is after. Editors wait for each other.
func edit(path string, create bool, change func(*header, *[]*Record) error) error {
	return atomicfile.Edit(path, func(path string) ([]byte, error) {
		h, records, err := readFile(path)
		if errors.Is(err, fs.ErrNotExist) && create {
			h, err = header{Version: version}, nil
		}
		if err != nil {
			return nil, err
		}
		if err := change(&h, &records); err != nil {
			return nil, err
		}
		raw, err := encode(h, records)
		if err == nil && len(raw) > maxFileBytes {
			err = fmt.Errorf("%s would be longer than %d MiB", path, maxFileBytes>>20)
		}
		return raw, err
	})
}
