package gateway

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"

	"github.com/sallyport-ai/sallyport/policy"
	"github.com/sallyport-ai/sallyport/routing/blockid"
)

// errConversation says that the conversation header was not issued by us to
// this principal. It is one error for every cause: a caller learns nothing.
var errConversation = errors.New("conversation is not one of this caller's")

// conversation is what the gateway remembers about a dialogue without storing
// it: the client carries it in the Sallyport-Conversation header, sealed. It can
// neither read it, which would tell which words raise a label, nor change it,
// nor give it to another principal.
//
// The header is base64url of version (1 byte), salt (16), and the AES-256-GCM
// ciphertext of id (16), level (1) and categories (1, a bit set in the order of
// [categoryBits]). The key is HMAC-SHA-256 of the salt under the gateway's key,
// so each is used once and needs no nonce; the principal is authenticated along.
type conversation struct {
	id         [16]byte
	level      policy.Level // the highest label so far
	categories []policy.Category
}

// categoryBits fixes the order of the bits on the wire.
var categoryBits = [...]policy.Category{policy.PII, policy.PCI, policy.PHI, policy.Secret}

const (
	conversationVersion = 2
	conversationHead    = 1 + 16
	conversationPlain   = 16 + 1 + 1
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
	b := make([]byte, conversationHead, conversationHead+conversationPlain+16)
	b[0] = conversationVersion
	_, _ = rand.Read(b[1:]) // never fails: crypto/rand aborts the process instead
	plain := append(c.id[:], byte(c.level), 0)
	for i, cat := range categoryBits {
		if slices.Contains(c.categories, cat) {
			plain[17] |= 1 << i
		}
	}
	return base64.RawURLEncoding.EncodeToString(k.aead(b[1:]).Seal(b, make([]byte, 12), plain, blockid.LenPrefix(owner...)))
}

// open returns the conversation that a header value holds.
func (k *conversationKey) open(value string, owner ...string) (conversation, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err != nil || len(b) < conversationHead || b[0] != conversationVersion {
		return conversation{}, errConversation
	}
	head, sealed := b[:conversationHead], b[conversationHead:]
	plain, err := k.aead(head[1:]).Open(nil, make([]byte, 12), sealed, blockid.LenPrefix(owner...))
	if err != nil || len(plain) != conversationPlain {
		return conversation{}, errConversation
	}
	c := conversation{id: [16]byte(plain[:16]), level: policy.Level(plain[16])}
	for i, cat := range categoryBits {
		if plain[17]&(1<<i) != 0 {
			c.categories = append(c.categories, cat)
		}
	}
	return c, nil
}

// aead is the cipher of one header, whose key comes from its salt.
func (k *conversationKey) aead(salt []byte) cipher.AEAD {
	mac := hmac.New(sha256.New, k[:])
	mac.Write(salt)
	block, err := aes.NewCipher(mac.Sum(nil))
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // AES has the block size that GCM needs
	}
	return gcm
}
