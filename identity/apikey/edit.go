package apikey

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	path, err := target(path)
	if err != nil {
		return err
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()

	h, records, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) && create {
		h, err = header{Version: version}, nil
	}
	if err != nil {
		return err
	}
	if err := change(&h, &records); err != nil {
		return err
	}
	raw, err := encode(h, records)
	if err != nil {
		return err
	}
	if len(raw) > maxFileBytes {
		return fmt.Errorf("%s would be longer than %d MiB", path, maxFileBytes>>20)
	}
	return replace(path, raw)
}

// target follows symbolic links, which a rename would replace.
func target(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	return real, err
}

// lock waits for a lock that lasts until unlock or the end of the process. It is
// on a file beside the store, since the store itself is replaced.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock store: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing cannot fail to release it
}

// replace writes a file beside path, makes it durable and puts it in path's
// place. What a killed editor left is written over. The caller holds the lock.
func replace(path string, raw []byte) (err error) {
	temp := path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace store: %w", err)
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("replace store: %w", err)
	}
	_, err = f.Write(raw)
	if err == nil {
		err = likeBefore(f, path)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace store: %w", err), os.Remove(temp))
	}
	return syncDir(filepath.Dir(path))
}

// likeBefore gives the new file the owner and mode of the old one: a gateway
// that runs as another user than the editor must still be able to read it.
func likeBefore(f *os.File, path string) error {
	old, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if owner, ok := old.Sys().(*syscall.Stat_t); ok && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(old.Mode().Perm())
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}
