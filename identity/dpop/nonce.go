package dpop

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"
)

// A nonce is of a minute, and taken in it and in the few after.
const (
	nonceEvery = time.Minute
	nonceSlots = 5
	nonceMAC   = 16 // bytes
)

// nonces issues and recognises nonces: base64url of the minute and its MAC.
type nonces struct {
	key   [32]byte
	clock func() time.Time
}

func newNonces(secret [32]byte, clock func() time.Time) nonces {
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte("dpop nonce"))
	return nonces{key: [32]byte(mac.Sum(nil)), clock: clock}
}

func (n nonces) now() int64 { return n.clock().Unix() / int64(nonceEvery/time.Second) }

func (n nonces) issue() string { return n.of(n.now()) }

func (n nonces) of(slot int64) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(slot))
	mac := hmac.New(sha256.New, n.key[:])
	mac.Write(b)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(b)[:len(b)+nonceMAC])
}

// takes reports whether a nonce was issued in the last minutes. One of the
// minute to come is of a gateway whose clock is ahead.
func (n nonces) takes(nonce string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(nonce)
	if err != nil || len(raw) != 8+nonceMAC {
		return false
	}
	slot, now := int64(binary.BigEndian.Uint64(raw)), n.now()
	return slot <= now+1 && slot > now-nonceSlots && hmac.Equal([]byte(n.of(slot)), []byte(nonce))
}
