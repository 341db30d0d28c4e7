package oidc

import (
	"crypto"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sallyport-ai/sallyport/identity"
	"github.com/sallyport-ai/sallyport/identity/jws"
)

// maxKeys bounds a key set.
const maxKeys = 64

// key is a public key that may verify this issuer's tokens.
type key struct {
	public    crypto.PublicKey
	algorithm string // the only one it is for, or "" for any that suits its type
}

// fits reports whether the key may verify a signature of the algorithm.
func (k *key) fits(algorithm string) bool {
	return (k.algorithm == "" || k.algorithm == algorithm) && jws.Fits(k.public, algorithm)
}

// parseKeys reads a JWK set. Keys that are not for verifying signatures of one
// of the algorithms, and keys too weak to, are left out with a reason in
// skipped; so is every key of an ID that two different keys claim. A set of
// which nothing remains is an error.
func parseKeys(raw []byte, algorithms []string) (keys map[string]*key, skipped []string, err error) {
	var set struct {
		Keys []jws.JWK `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, nil, errors.New("not a JWK set")
	}
	if len(set.Keys) > maxKeys {
		return nil, nil, fmt.Errorf("more than %d keys", maxKeys)
	}
	keys = make(map[string]*key, len(set.Keys))
	contested := make(map[string]bool)
	for _, j := range set.Keys {
		k, err := keyOf(&j, algorithms)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("%.64q: %v", j.ID, err))
			continue
		}
		if other, ok := keys[j.ID]; ok && !other.equal(&k) {
			contested[j.ID] = true
		}
		keys[j.ID] = &k
	}
	for id := range contested {
		delete(keys, id)
		skipped = append(skipped, fmt.Sprintf("%.64q: two different keys have this ID", id))
	}
	if len(keys) == 0 {
		return nil, skipped, fmt.Errorf("no usable key among %d: %s", len(set.Keys), strings.Join(skipped, "; "))
	}
	return keys, skipped, nil
}

func (k *key) equal(other *key) bool {
	public, ok := k.public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.algorithm == other.algorithm && public.Equal(other.public)
}

func keyOf(j *jws.JWK, algorithms []string) (key, error) {
	if !identity.IsIdentifier(j.ID) {
		return key{}, errors.New("kid is missing or odd")
	}
	public, err := j.PublicKey()
	if err != nil {
		return key{}, err
	}
	k := key{public: public, algorithm: j.Algorithm}
	if !slices.ContainsFunc(algorithms, k.fits) {
		return key{}, errors.New("for none of this issuer's algorithms")
	}
	return k, nil
}
