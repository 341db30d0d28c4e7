package gateway

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/sallyport-ai/sallyport/policy"
)

// errConversation says that the conversation header was not issued by us to
// this principal. It is one error for every cause: a caller learns nothing.
var errConversation = errors.New("conversation is not one of this caller's")

// conversation is what the gateway remembers about a dialogue without storing
// it: the client carries it in the Sallyport-Conversation header, sealed.
//
// The header is base64url of version (1 byte), id (16), level (1), categories
// (1, a bit set in the order of [categoryBits]) and an HMAC-SHA-256 over those
// bytes and the principal.
type conversation struct {
	id         [16]byte
	level      policy.Level // the highest label so far
	categories []policy.Category
}

// categoryBits fixes the order of the bits on the wire.
var categoryBits = [...]policy.Category{policy.PII, policy.PCI, policy.PHI, policy.Secret}

const (
	conversationVersion = 1
	conversationBody    = 1 + 16 + 1 + 1
	conversationLength  = conversationBody + sha256.Size
)

// newConversation begins one. It has seen nothing, so its level is the lowest.
func newConversation() conversation {
	c := conversation{level: policy.Public}
	_, _ = rand.Read(c.id[:]) // never fails: crypto/rand aborts the process instead
	return c
}

// conversationKey seals conversations for principals.
type conversationKey [32]byte

// seal returns the header value that gives c to the principal named by owner.
func (k *conversationKey) seal(c conversation, owner ...string) string {
	b := make([]byte, 0, conversationLength)
	b = append(b, conversationVersion)
	b = append(b, c.id[:]...)
	b = append(b, byte(c.level))
	var bits byte
	for i, cat := range categoryBits {
		for _, have := range c.categories {
			if have == cat {
				bits |= 1 << i
			}
		}
	}
	b = append(b, bits)
	return base64.RawURLEncoding.EncodeToString(k.mac(b, owner))
}

// open returns the conversation that a header value holds.
func (k *conversationKey) open(value string, owner ...string) (conversation, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err != nil || len(b) != conversationLength || b[0] != conversationVersion {
		return conversation{}, errConversation
	}
	body := b[:conversationBody:conversationBody]
	if !hmac.Equal(k.mac(body, owner), b) {
		return conversation{}, errConversation
	}
	c := conversation{level: policy.Level(body[17])}
	copy(c.id[:], body[1:17])
	for i, cat := range categoryBits {
		if body[18]&(1<<i) != 0 {
			c.categories = append(c.categories, cat)
		}
	}
	return c, nil
}

// mac appends to body the MAC over it and the owner.
func (k *conversationKey) mac(body []byte, owner []string) []byte {
	h := hmac.New(sha256.New, k[:])
	h.Write(body)
	for _, part := range owner {
		var n [4]byte
		binary.LittleEndian.PutUint32(n[:], uint32(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return h.Sum(body)
}
