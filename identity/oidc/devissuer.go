package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/golang-jwt/jwt/v5"

	"github.com/sallyport-ai/sallyport/identity"
)

// DevConfig describes a development issuer.
type DevConfig struct {
	// Address is a loopback host:port to serve keys on; empty is
	// 127.0.0.1:0.
	Address string
	// Environment must be demo, development or test.
	Environment string
	// Logger receives the warning that this is no real issuer. Required.
	Logger *slog.Logger
}

// DevIssuer is an issuer inside the process, for demonstrations and tests. It
// signs whatever it is asked to.
type DevIssuer struct {
	key    *ecdsa.PrivateKey
	url    string
	server *http.Server
}

// devKeyID names the development issuer's key.
const devKeyID = "development"

// NewDevIssuer makes a key and serves it.
func NewDevIssuer(config DevConfig) (*DevIssuer, error) {
	if err := identity.RefuseProduction(config.Environment); err != nil {
		return nil, err
	}
	if config.Logger == nil {
		return nil, errors.New("development issuer: no logger for its warning")
	}
	if config.Address == "" {
		config.Address = "127.0.0.1:0"
	}
	if err := requireSecure("http://" + config.Address); err != nil {
		return nil, fmt.Errorf("development issuer: address %q is not a loopback address", config.Address)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("development issuer: %w", err)
	}
	keys, err := publish(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("development issuer: %w", err)
	}
	listener, err := net.Listen("tcp", config.Address)
	if err != nil {
		return nil, fmt.Errorf("development issuer: %w", err)
	}
	d := &DevIssuer{key: key, url: "http://" + listener.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /jwks.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		_, _ = w.Write(keys) // a client that left needs no answer
	})
	d.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second}
	go func() {
		if err := d.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			config.Logger.Error("development issuer stopped", "error", err)
		}
	}()
	config.Logger.Warn("DEVELOPMENT ISSUER: this process signs access tokens for anybody it is asked to; never use it for real data",
		"issuer", d.url, "environment", config.Environment)
	return d, nil
}

func publish(public *ecdsa.PublicKey) ([]byte, error) {
	point, err := public.Bytes() // 4, x, y
	if err != nil {
		return nil, err
	}
	x, y := point[1:33], point[33:]
	encode := base64.RawURLEncoding.EncodeToString
	return json.Marshal(map[string]any{"keys": []any{map[string]string{
		"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": devKeyID, "x": encode(x), "y": encode(y),
	}}})
}

// Config is the configuration of this issuer for an audience, with the tenant
// in the claim "tenant".
func (d *DevIssuer) Config(audience string) Config {
	return Config{
		URL:         d.url,
		Audience:    audience,
		Algorithms:  []string{"ES256"},
		TenantClaim: "tenant",
		JWKSURL:     d.url + "/jwks.json",
	}
}

// Mint signs an access token with the claims given. iss, iat and exp (an hour
// ahead) are added where the claims do not say.
func (d *DevIssuer) Mint(claims map[string]any) (string, error) {
	now := time.Now()
	all := jwt.MapClaims{"iss": d.url, "iat": now.Unix(), "exp": now.Add(defaultMaxLifetime).Unix()}
	maps.Copy(all, claims)
	token := jwt.NewWithClaims(jwt.SigningMethodES256, all)
	token.Header["typ"], token.Header["kid"] = "at+jwt", devKeyID
	signed, err := token.SignedString(d.key)
	if err != nil {
		return "", fmt.Errorf("development issuer: %w", err)
	}
	return signed, nil
}

// Close stops serving the key.
func (d *DevIssuer) Close() error { return d.server.Close() }
