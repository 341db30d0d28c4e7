package policy

import (
	"archive/tar"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	stdjson "encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/keys"
	"github.com/open-policy-agent/opa/v1/util"
)

// keyID names the one key that signs. The signature's own claim of a key is not
// consulted.
const keyID = "sallyport"

// Build writes the layers, later ones over earlier ones, as a bundle of that
// revision. With a signing key (PEM, ECDSA P-256 or P-384, or RSA of at least
// 2048 bits) it is signed as OPA signs bundles, so that `opa` can verify it too.
// The same layers and revision always have the same digest.
func Build(w io.Writer, layers []fs.FS, revision, signingKeyFile string) error {
	f := make(files)
	for _, l := range layers {
		if err := f.layer(l); err != nil {
			return err
		}
	}
	if err := f.setRevision(revision); err != nil {
		return err
	}
	delete(f, signaturesFile)
	if signingKeyFile != "" {
		if err := f.sign(signingKeyFile); err != nil {
			return err
		}
	}
	return f.writeTarball(w)
}

// Write puts the layers into dir, which is made if absent, as a bundle
// directory that an author can edit.
func Write(dir string, layers []fs.FS) error {
	f := make(files)
	for _, l := range layers {
		if err := f.layer(l); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(f) {
		target := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
		if err := os.WriteFile(target, f[name], 0o644); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
	}
	return nil
}

func (f files) setRevision(revision string) error {
	if revision == "" {
		return errors.New("build bundle: needs a revision")
	}
	manifest := map[string]any{}
	if old, ok := f[bundle.ManifestExt]; ok {
		if err := util.UnmarshalJSON(old, &manifest); err != nil {
			return fmt.Errorf("build bundle: .manifest: %w", err)
		}
	}
	manifest["revision"] = revision
	content, err := stdjson.Marshal(manifest)
	if err != nil {
		return fmt.Errorf("build bundle: .manifest: %w", err)
	}
	f[bundle.ManifestExt] = append(content, '\n')
	return nil
}

func (f files) sign(keyFile string) error {
	alg, err := signingAlgorithm(keyFile)
	if err != nil {
		return fmt.Errorf("sign bundle: %w", err)
	}
	infos, err := f.hashes()
	if err != nil {
		return fmt.Errorf("sign bundle: %w", err)
	}
	token, err := bundle.GenerateSignedToken(infos, bundle.NewSigningConfig(keyFile, alg, ""), keyID)
	if err != nil {
		return fmt.Errorf("sign bundle: %w", err)
	}
	content, err := stdjson.Marshal(map[string][]string{"signatures": {token}})
	if err != nil {
		return fmt.Errorf("sign bundle: %w", err)
	}
	f[signaturesFile] = content
	return nil
}

// hashes are OPA's: JSON and YAML by value, everything else by its bytes.
func (f files) hashes() ([]bundle.FileInfo, error) {
	hasher, err := bundle.NewSignatureHasher(bundle.SHA256)
	if err != nil {
		return nil, err
	}
	infos := make([]bundle.FileInfo, 0, len(f))
	for _, name := range sortedKeys(f) {
		var value any = f[name]
		if bundle.IsStructuredDoc(name) {
			value = nil
			if err := util.Unmarshal(f[name], &value); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		sum, err := hasher.HashFile(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		infos = append(infos, bundle.NewFile(name, hex.EncodeToString(sum), string(bundle.SHA256)))
	}
	return infos, nil
}

func (f files) writeTarball(w io.Writer) error {
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	for _, name := range sortedKeys(f) {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(f[name])), Typeflag: tar.TypeReg}
		if err := tw.WriteHeader(header); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
		if _, err := tw.Write(f[name]); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

// verification reads the PEM public key that bundles must be signed with. The
// algorithm follows from the key, never from the signature.
func verification(keyFile string) (*bundle.VerificationConfig, error) {
	raw, block, err := readPEM(keyFile)
	if err != nil {
		return nil, fmt.Errorf("verify key: %w", err)
	}
	if block.Type != "PUBLIC KEY" {
		return nil, fmt.Errorf("verify key: PEM block is %q, want PUBLIC KEY", block.Type)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("verify key: %w", err)
	}
	alg, err := algorithm(public)
	if err != nil {
		return nil, fmt.Errorf("verify key: %w", err)
	}
	key := &keys.Config{Key: string(raw), Algorithm: alg}
	return bundle.NewVerificationConfig(map[string]*keys.Config{keyID: key}, keyID, "", nil), nil
}

func signingAlgorithm(keyFile string) (string, error) {
	_, block, err := readPEM(keyFile)
	if err != nil {
		return "", err
	}
	switch block.Type {
	case "EC PRIVATE KEY":
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return "", err
		}
		return algorithm(key.Public())
	case "PRIVATE KEY":
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return "", err
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return "", errors.New("private key cannot sign")
		}
		return algorithm(signer.Public())
	}
	return "", fmt.Errorf("PEM block %q is not a private key", block.Type)
}

func algorithm(public crypto.PublicKey) (string, error) {
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return "ES256", nil
		case elliptic.P384():
			return "ES384", nil
		}
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 {
			return "RS256", nil
		}
	}
	return "", errors.New("need an ECDSA P-256 or P-384 key, or RSA of at least 2048 bits")
}

func readPEM(name string) ([]byte, *pem.Block, error) {
	raw, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return nil, nil, err
	}
	block, rest := pem.Decode(raw)
	if block == nil || strings.TrimSpace(string(rest)) != "" {
		return nil, nil, fmt.Errorf("%s: want exactly one PEM block", name)
	}
	return raw, block, nil
}
