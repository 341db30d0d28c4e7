package detect

import (
	"hash/crc32"
	"slices"
	"strings"
)

// key is the published form of a provider's credential.
type key struct {
	prefix string
	class  func(byte) bool
	least  int // characters after the prefix
	most   int
}

// keys are the providers' documented prefixes.
var keys = []key{
	{"sk-", isToken, 20, open},     // OpenAI, Anthropic and those that copied them
	{"AKIA", isUpperAlnum, 16, 16}, // AWS, long-lived
	{"ASIA", isUpperAlnum, 16, 16}, // AWS, temporary
	{"ghp_", isAlnum, 36, open},    // GitHub
	{"gho_", isAlnum, 36, open},
	{"ghu_", isAlnum, 36, open},
	{"ghs_", isAlnum, 36, open},
	{"ghr_", isAlnum, 36, open},
	{"github_pat_", isToken, 22, open},
	{"glpat-", isToken, 20, open}, // GitLab
	{"AIza", isToken, 35, 35},     // Google
	{"GOCSPX-", isToken, 28, 28},
	{"xoxb-", isToken, 10, open}, // Slack
	{"xoxp-", isToken, 10, open},
	{"xoxa-", isToken, 10, open},
	{"xoxr-", isToken, 10, open},
	{"xoxs-", isToken, 10, open},
	{"xapp-", isToken, 10, open},
	{"sk_live_", isAlnum, 16, open}, // Stripe
	{"rk_live_", isAlnum, 16, open},
	{"hf_", isAlnum, 30, 64}, // Hugging Face
	{"npm_", isAlnum, 36, 36},
	{"dop_v1_", isAlnum, 64, 64}, // DigitalOcean
	{"SG.", isDotToken, 60, 80},  // SendGrid
}

func isToken(b byte) bool      { return isAlnum(b) || b == '_' || b == '-' }
func isDotToken(b byte) bool   { return isToken(b) || b == '.' }
func isUpperAlnum(b byte) bool { return isUpper(b) || isDigit(b) }
func isBase64(b byte) bool     { return isAlnum(b) || b == '+' || b == '/' }

// keyFirst returns the first bytes of all prefixes.
func keyFirst() string {
	var first []byte
	for _, k := range keys {
		if !slices.Contains(first, k.prefix[0]) {
			first = append(first, k.prefix[0])
		}
	}
	return string(first)
}

// providerKey matches a prefix and enough of a random tail: both digits and
// letters, since "sk-" also begins words.
func providerKey(v []byte, i int) (int, int, bool) {
	for _, k := range keys {
		if len(v)-i < len(k.prefix) || string(v[i:i+len(k.prefix)]) != k.prefix {
			continue
		}
		if end, ok := k.tail(v, i+len(k.prefix)); ok {
			return i, end, true
		}
	}
	return 0, 0, false
}

// tail returns the end of the key whose tail begins at start. Its first
// characters decide, so that prefixes in a row are not each read to the end.
func (k key) tail(v []byte, start int) (int, bool) {
	head := v[start:run(v, start, min(k.most, k.least+telling), k.class)]
	if len(head) < k.least || !slices.ContainsFunc(head, isDigit) || !slices.ContainsFunc(head, isAlpha) {
		return 0, false
	}
	end := run(v, start, k.most, k.class)
	return end, k.most == open || !k.class(at(v, end))
}

// The form of this gateway's own API keys: prefix, id, secret and checksum.
const (
	ownPrefix = "sp_"
	ownBody   = len(ownPrefix) + 11 + 1 + 43 // what the checksum is of
	ownCheck  = 6
	base62    = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// sallyportKey matches an API key of this gateway, whose checksum tells it from
// whatever else begins so: sp_<id>_<secret>_<CRC-32 of all before, base 62>.
func sallyportKey(v []byte, i int) (int, int, bool) {
	end := i + ownBody + 1 + ownCheck
	if len(v) < end || string(v[i:i+len(ownPrefix)]) != ownPrefix || v[i+ownBody] != '_' || isAlnum(at(v, end)) {
		return 0, 0, false
	}
	sum := crc32.ChecksumIEEE(v[i : i+ownBody])
	for n := end - 1; n >= end-ownCheck; n-- {
		if v[n] != base62[sum%uint32(len(base62))] {
			return 0, 0, false
		}
		sum /= uint32(len(base62))
	}
	return i, end, true
}

const (
	open    = 255 // most characters of a key whose form has no length
	telling = 16
)

const pemBegin = "-----BEGIN "

// privateKey matches the first line of a PEM or PGP private key.
func privateKey(v []byte, i int) (int, int, bool) {
	if len(v)-i < len(pemBegin) || string(v[i:i+len(pemBegin)]) != pemBegin {
		return 0, 0, false
	}
	end := run(v, i+len(pemBegin), 48, func(b byte) bool { return isUpperAlnum(b) || b == ' ' })
	if !strings.Contains(string(v[i:end]), "PRIVATE KEY") {
		return 0, 0, false
	}
	return i, end, true
}

const (
	leastJWT = 16
	mostJWT  = 8 << 10
)

// jsonWebToken matches a compact JWS or JWE whose header and claims are JSON
// objects: base64url of {" is eyJ.
func jsonWebToken(v []byte, i int) (int, int, bool) {
	// After - or _ it would be the middle of a segment, which was read before.
	if at(v, i+1) != 'y' || at(v, i+2) != 'J' || at(v, i-1) == '-' || at(v, i-1) == '_' {
		return 0, 0, false
	}
	header := run(v, i, mostJWT, isToken)
	if at(v, header) != '.' || header-i < leastJWT {
		return 0, 0, false
	}
	claims := run(v, header+1, mostJWT, isToken)
	if at(v, claims) != '.' || claims-header < leastJWT || string(v[header+1:header+4]) != "eyJ" {
		return 0, 0, false
	}
	end := run(v, claims+1, mostJWT, isToken)
	return i, end, true
}

var (
	secretAccessKey = []string{"secret", "access", "key"}
	secretKey       = []string{"secret", "key"}
)

// awsSecret matches the 40 characters that follow a name such as
// aws_secret_access_key; alone they look like any base64.
func awsSecret(v []byte, i int) (int, int, bool) {
	past, ok := phrase(v, i, secretAccessKey)
	if !ok {
		past, ok = phrase(v, i, secretKey)
	}
	if !ok {
		return 0, 0, false
	}
	for start := past; start < len(v) && start < past+8; start++ {
		if !isBase64(v[start]) {
			continue
		}
		end := run(v, start, 41, isBase64)
		return start, end, end-start == 40
	}
	return 0, 0, false
}
