package oidc

import (
	"crypto/sha256"
	"strings"
	"sync"

	"github.com/sallyport-ai/sallyport/identity"
)

// Bounds of what is remembered of good tokens. Bytes are counted as [sizeOf]
// does.
const (
	maxCached      = 1 << 15
	maxCachedBytes = 32 << 20
	cacheShards    = 16
)

// cached is a token that was found good, with all that may end that.
type cached struct {
	principal identity.Principal
	issuer    *issuer
	times     times
	keyID     string
	key       *key // that verified it
}

// cache remembers good tokens by the SHA-256 digest of their whole text. What
// callers must prove beside a token is no part of it, and neither is whether a
// token was revoked: both are asked at every request. It is of one configuration,
// and goes with it.
type cache struct {
	heads  heads
	shards [cacheShards]shard
}

// maxHeads bounds the beginnings that are told apart. An issuer has few: one for
// each key.
const maxHeads = 64

// heads are the headers, as text, that good tokens began with.
type heads struct {
	mu   sync.RWMutex // guards what follows
	seen map[string]bool
	any  bool // there are too many to tell
}

// begins reports whether a good token may begin with this header.
func (c *cache) begins(head string) bool {
	c.heads.mu.RLock()
	defer c.heads.mu.RUnlock()
	return c.heads.any || c.heads.seen[head]
}

// begin notes the header of a good token.
func (c *cache) begin(head string) {
	c.heads.mu.Lock()
	defer c.heads.mu.Unlock()
	switch {
	case c.heads.any:
	case len(c.heads.seen) >= maxHeads:
		c.heads.any, c.heads.seen = true, nil
	case c.heads.seen == nil:
		c.heads.seen = map[string]bool{strings.Clone(head): true}
	default:
		c.heads.seen[strings.Clone(head)] = true
	}
}

// shard is two generations: when the new one is half of what a shard may hold,
// the old one is dropped and the new one grows old. What is used moves on.
type shard struct {
	mu    sync.RWMutex // guards what follows
	fresh map[[sha256.Size]byte]*cached
	old   map[[sha256.Size]byte]*cached
	bytes int // of fresh
}

func (c *cache) get(token [sha256.Size]byte) *cached {
	s := &c.shards[token[0]%cacheShards]
	s.mu.RLock()
	found := s.fresh[token]
	aged := found == nil
	if aged {
		found = s.old[token]
	}
	s.mu.RUnlock()
	if aged && found != nil {
		s.put(token, found)
	}
	return found
}

func (c *cache) put(token [sha256.Size]byte, good *cached) {
	c.shards[token[0]%cacheShards].put(token, good)
}

func (c *cache) drop(token [sha256.Size]byte) {
	s := &c.shards[token[0]%cacheShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if there, ok := s.fresh[token]; ok {
		s.bytes -= sizeOf(there)
		delete(s.fresh, token)
	}
	delete(s.old, token)
}

func (s *shard) put(token [sha256.Size]byte, good *cached) {
	size := sizeOf(good)
	if size > maxCachedBytes/cacheShards/2 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.fresh[token]; ok {
		return
	}
	if s.fresh == nil || len(s.fresh) >= maxCached/cacheShards/2 || s.bytes+size > maxCachedBytes/cacheShards/2 {
		s.old, s.fresh, s.bytes = s.fresh, make(map[[sha256.Size]byte]*cached), 0
	}
	s.fresh[token] = good
	s.bytes += size
}

// sizeOf is about how many bytes an entry takes.
func sizeOf(c *cached) int {
	p := &c.principal
	size := 768 + len(p.Tenant) + len(p.Subject) + len(p.Issuer) + len(p.ClientID) + len(p.Label) + len(p.Fingerprint) + len(p.TokenID) + len(c.keyID)
	for _, list := range [][]string{p.Groups, p.Scopes} {
		for _, s := range list {
			size += 16 + len(s)
		}
	}
	for _, a := range p.Chain {
		size += 64 + len(a.Type) + len(a.Subject) + len(a.Issuer)
	}
	return size
}

// held is how many tokens are remembered, and about how many bytes of them.
func (c *cache) held() (tokens, bytes int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		tokens += len(s.fresh) + len(s.old)
		bytes += s.bytes
		for _, e := range s.old {
			bytes += sizeOf(e)
		}
		s.mu.RUnlock()
	}
	return tokens, bytes
}
