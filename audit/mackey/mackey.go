// Package mackey keeps the keys under which records hold MACs of prompts: one
// for each tenant and month, so that equal prompts of two tenants, or of two
// months, cannot be told to be equal, and so that a key can be destroyed.
//
// Start at [Open]. A key is 32 random bytes in a file of its own,
//
//	<base64url of the tenant>/2026-11
//
// and of a tenant whose name is too long for a file, in
//
//	=<hex SHA-256 of the tenant>/2026-11
//
// with the name itself in the file "tenant" beside it.
//
// Nothing derives it again: once the file is gone the MACs under it mean nothing
// to anybody, and the records that hold them verify as before.
package mackey

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sallyport-ai/sallyport/audit/durable"
)

const (
	monthFormat = "2006-01"
	size        = 32
)

// Ring hands out keys. It is safe for concurrent use.
type Ring struct {
	dir string // empty: keys are in memory alone, and gone with the process

	mu   sync.Mutex
	keys map[string][size]byte // of this month, by tenant
	of   string                // the month
}

// Open returns the ring in dir, which is made if absent and must be its owner's
// alone. An empty dir keeps keys in memory.
func Open(dir string) (*Ring, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("MAC keys: %w", err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			return nil, fmt.Errorf("MAC keys: %w", err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("MAC keys: %s is open to others (mode %04o)", dir, info.Mode().Perm())
		}
	}
	return &Ring{dir: dir, keys: make(map[string][size]byte)}, nil
}

// MAC returns the MAC of a text of a tenant's, under the key of that time, as
// records hold it.
func (r *Ring) MAC(tenant string, at time.Time, text []byte) (string, error) {
	key, err := r.key(tenant, at.UTC().Format(monthFormat))
	if err != nil {
		return "", err
	}
	return macOf(key, text), nil
}

func macOf(key [size]byte, text []byte) string {
	mac := hmac.New(sha256.New, key[:])
	mac.Write(text)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// key returns a key, and makes it if there is none.
func (r *Ring) key(tenant, month string) ([size]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of != month {
		clear(r.keys)
		r.of = month
	}
	if key, ok := r.keys[tenant]; ok {
		return key, nil
	}
	var key [size]byte
	_, _ = rand.Read(key[:]) // never fails: crypto/rand aborts the process instead
	if r.dir != "" {
		var err error
		if err := nameFolder(r.dir, tenant); err != nil {
			return key, err
		}
		if key, err = keep(pathOf(r.dir, tenant, month), key); err != nil {
			return key, err
		}
	}
	r.keys[tenant] = key
	return key, nil
}

// maxFolder is the longest name of a folder that any file system has room for, and
// nameFile is where in the folder a tenant's name is that is longer.
const (
	maxFolder = 255
	nameFile  = "tenant"
	maxTenant = 64 << 10 // of a name, in bytes
)

func folderOf(tenant string) string {
	if base64.RawURLEncoding.EncodedLen(len(tenant)) <= maxFolder {
		return base64.RawURLEncoding.EncodeToString([]byte(tenant))
	}
	sum := sha256.Sum256([]byte(tenant))
	return "=" + hex.EncodeToString(sum[:]) // which is not base64url
}

// tenantOf returns the tenant that a folder is of; false: it is nobody's.
func tenantOf(dir, folder string) (string, bool) {
	if name, err := base64.RawURLEncoding.DecodeString(folder); err == nil {
		return string(name), true
	}
	name, err := durable.ReadRegular(filepath.Join(dir, folder, nameFile), maxTenant)
	return string(name), err == nil && folderOf(string(name)) == folder
}

func pathOf(dir, tenant, month string) string { return filepath.Join(dir, folderOf(tenant), month) }

// nameFolder makes the folder of a tenant, with its name in it if that is too long
// for the folder's.
func nameFolder(dir, tenant string) error {
	folder := filepath.Join(dir, folderOf(tenant))
	if base64.RawURLEncoding.EncodedLen(len(tenant)) <= maxFolder {
		return nil
	}
	if len(tenant) > maxTenant {
		return fmt.Errorf("MAC key: a tenant's name of %d bytes", len(tenant))
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("MAC key: %w", err)
	}
	if _, named := tenantOf(dir, folderOf(tenant)); named {
		return nil
	}
	if err := durable.Replace(filepath.Join(folder, nameFile), []byte(tenant)); err != nil {
		return fmt.Errorf("MAC key: %w", err)
	}
	return nil
}

// keep puts a new key at path, or returns the one that is there.
func keep(path string, key [size]byte) ([size]byte, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return key, fmt.Errorf("MAC key: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return key, fmt.Errorf("MAC key: %w", err)
	}
	_, err = tmp.Write(key[:])
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Link(tmp.Name(), path) // which replaces nothing
	}
	removed := os.Remove(tmp.Name())
	switch {
	case errors.Is(err, fs.ErrExist):
		key, err = read(path)
	case err == nil: // the tenant's folder may be new too
		err = errors.Join(durable.SyncDir(filepath.Dir(path)), durable.SyncDir(filepath.Dir(filepath.Dir(path))))
	}
	return key, errors.Join(err, removed)
}

func read(path string) (key [size]byte, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return key, fmt.Errorf("MAC key: %w", err)
	}
	if len(text) != size {
		return key, fmt.Errorf("MAC key %s: %d bytes, want %d", path, len(text), size)
	}
	return [size]byte(text), nil
}

// Check returns the MAC of a text under a key that must be there: what an
// auditor who holds a prompt looks for in the records of a tenant's month.
func Check(dir, tenant, month string, text []byte) (string, error) {
	if _, err := time.Parse(monthFormat, month); err != nil {
		return "", fmt.Errorf("MAC key: month %q, want YYYY-MM", month)
	}
	key, err := read(pathOf(dir, tenant, month))
	if err != nil {
		return "", err
	}
	return macOf(key, text), nil
}

// Key names a key without giving it away.
type Key struct {
	Tenant string `json:"tenant"`
	Month  string `json:"month"`
	SHA256 string `json:"sha256"` // of the key
}

// Find lists the keys of months before one, of a tenant or, if it is empty, of
// all.
func Find(dir, tenant, before string) (keys []Key, err error) {
	if _, err := time.Parse(monthFormat, before); err != nil {
		return nil, fmt.Errorf("MAC keys: month %q, want YYYY-MM", before)
	}
	folders, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("MAC keys: %w", err)
	}
	for _, f := range folders {
		name, ok := tenantOf(dir, f.Name())
		if !ok || tenant != "" && name != tenant {
			continue
		}
		files, err := os.ReadDir(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("MAC keys: %w", err)
		}
		for _, m := range files {
			if _, err := time.Parse(monthFormat, m.Name()); err != nil || m.Name() >= before {
				continue
			}
			key, err := read(filepath.Join(dir, f.Name(), m.Name()))
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(key[:])
			keys = append(keys, Key{Tenant: name, Month: m.Name(), SHA256: hex.EncodeToString(sum[:])})
		}
	}
	return keys, nil
}

// Destroy overwrites and removes a key. A file system that copies on write, and
// every backup, may still have it.
func Destroy(dir string, k Key) error {
	path := pathOf(dir, k.Tenant, k.Month)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("destroy MAC key: %w", err)
	}
	_, err = f.WriteAt(make([]byte, size), 0)
	if err := errors.Join(err, f.Sync(), f.Close(), os.Remove(path)); err != nil {
		return fmt.Errorf("destroy MAC key: %w", err)
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("destroy MAC key: %w", err)
	}
	return nil
}
