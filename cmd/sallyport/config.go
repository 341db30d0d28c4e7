package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/cmd/sallyport/strictyaml"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/valkey"
)

// gatewayConfig is the file of `sallyport serve`. Paths are relative to it.
type gatewayConfig struct {
	Environment string          `yaml:"environment"` // demo or production
	Listen      listenConfig    `yaml:"listen"`
	Admin       adminConfig     `yaml:"admin"`
	Region      string          `yaml:"region"`
	Identity    identityConfig  `yaml:"identity"`
	Policy      policyConfig    `yaml:"policy"`
	Models      []modelConfig   `yaml:"models"`
	Pools       []poolConfig    `yaml:"pools"`
	Audit       auditConfig     `yaml:"audit"`
	Limits      limitsConfig    `yaml:"limits"`
	Telemetry   telemetryConfig `yaml:"telemetry"`

	path   string // of the file
	digest string // its SHA-256, hex
}

type listenConfig struct {
	Address    string `yaml:"address"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ClientSVID bool   `yaml:"client_svid"` // callers may prove an X.509-SVID
	// ClientBinding lets callers show any certificate, for access tokens that are
	// bound to one (RFC 8705). One that is no SVID names nobody.
	ClientBinding bool `yaml:"client_binding"`
}

type adminConfig struct {
	Address string `yaml:"address"` // empty: none
}

type identityConfig struct {
	WorkloadSocket string             `yaml:"workload_socket"`
	Issuers        []oidc.Config      `yaml:"issuers"`
	Resource       resourceConfig     `yaml:"resource"`
	DPoP           dpopConfig         `yaml:"dpop"`
	JWTSVID        jwtSVIDConfig      `yaml:"jwt_svid"`
	APIKeys        apiKeysConfig      `yaml:"api_keys"`
	Valkey         valkey.Config      `yaml:"valkey"` // what gateways share of their callers; no URL: nothing
	Revocations    revocationsConfig  `yaml:"revocations"`
	Federation     []federationConfig `yaml:"federation"`
	// SecretFile holds 32 bytes, base64, that the gateways of a fleet share: it
	// seals conversations and pseudonyms. Without it each process has its own.
	SecretFile string `yaml:"secret_file"`
}

type jwtSVIDConfig struct {
	Audience string `yaml:"audience"` // empty: JWT-SVIDs are not taken
}

type apiKeysConfig struct {
	File       string `yaml:"file"` // empty: API keys are not taken
	PepperFile string `yaml:"pepper_file"`
}

type policyConfig struct {
	Bundle        string `yaml:"bundle"`
	VerifyKeyFile string `yaml:"verify_key_file"`
	Shadow        string `yaml:"shadow"`
	// Timeout bounds one evaluation; one that takes longer denies.
	Timeout time.Duration `yaml:"timeout"`
}

// modelConfig says how prompts of a model become tokens: as on its engines.
type modelConfig struct {
	Name         string           `yaml:"name"` // served name
	Dir          string           `yaml:"dir"`
	Cache        string           `yaml:"cache"`         // folder of tokenizer tables; empty: none are kept
	Memory       strictyaml.Bytes `yaml:"memory"`        // of each tenant's prompts
	Zone         string           `yaml:"zone"`          // of the engine; empty: UTC
	TemplateArgs string           `yaml:"template_args"` // the engine's default chat_template_kwargs, a JSON object
}

type poolConfig struct {
	Name     string          `yaml:"name"`
	Models   []string        `yaml:"models"`
	Members  []string        `yaml:"members"`
	Replicas []replicaConfig `yaml:"replicas"`
	File     string          `yaml:"file"` // further replicas, one a line: address, then perhaps a SPIFFE ID
	DNS      string          `yaml:"dns"`  // host:port; each address behind the name is a replica
}

type replicaConfig struct {
	Address string `yaml:"address"`
	ID      string `yaml:"id"`
}

type auditConfig struct {
	Dir     string `yaml:"dir"`
	Dir2    string `yaml:"dir2"` // the second directory of strict-2
	KeyFile string `yaml:"key_file"`
	Mode    string `yaml:"mode"` // least durability: strict, strict-2 or bounded
	// MACKeys is the directory of the keys of MACs of prompts. Empty: they are in
	// memory, and gone with the process.
	MACKeys string           `yaml:"mac_keys"`
	Segment strictyaml.Bytes `yaml:"segment"`

	Export []export.SinkConfig `yaml:"export"`

	Witnesses tlog.Witnesses   `yaml:"witnesses"`
	Retention time.Duration    `yaml:"retention"` // of records; 0: for ever
	Quota     strictyaml.Bytes `yaml:"quota"`     // of each tenant in an hour; 4 GiB if 0
	Grace     time.Duration    `yaml:"grace"`     // that running requests have when the log takes no more; 10 s if 0
}

// relayConfig is the file of `sallyport relay`.
type relayConfig struct {
	Environment string          `yaml:"environment"`
	Listen      listenAddress   `yaml:"listen"`
	Admin       relayAdmin      `yaml:"admin"`
	Identity    workloadConfig  `yaml:"identity"`
	Engine      engineConfig    `yaml:"engine"`
	Pool        string          `yaml:"pool"`
	Gateways    []gatewayMember `yaml:"gateways"`
	SaltKeyFile string          `yaml:"salt_key_file"`
	SaltDomain  string          `yaml:"salt_domain"`
	Drain       time.Duration   `yaml:"drain"` // how long running requests have to end after a stop was asked for
	Log         relayLogConfig  `yaml:"log"`
}

// relayAdmin is relay.Admin.
type relayAdmin struct {
	Address   string   `yaml:"address"`
	Operators []string `yaml:"operators"`
}

type listenAddress struct {
	Address string `yaml:"address"`
}

type workloadConfig struct {
	WorkloadSocket string             `yaml:"workload_socket"`
	Federation     []federationConfig `yaml:"federation"`
}

type engineConfig struct {
	URL            string       `yaml:"url"`
	Kind           string       `yaml:"kind"` // vllm, sglang or external
	Events         eventsConfig `yaml:"events"`
	Ranks          int          `yaml:"ranks"`           // data-parallel ranks; 0 is 1
	BlockSize      int          `yaml:"block_size"`      // where the engine's metrics do not tell
	NumBlocks      int          `yaml:"num_blocks"`      // likewise
	CredentialFile string       `yaml:"credential_file"` // of an external engine
}

type eventsConfig struct {
	Endpoint string `yaml:"endpoint"`
	Replay   string `yaml:"replay"`
	Mode     string `yaml:"mode"` // connect or listen

	FullReports bool `yaml:"full_reports"` // blocks that are used again are announced
}

type gatewayMember struct {
	ID      string `yaml:"id"`
	LogVKey string `yaml:"log_vkey"`
}

type relayLogConfig struct {
	Dir     string `yaml:"dir"`
	KeyFile string `yaml:"key_file"`
}

// loadGateway reads and checks a gateway's file. The error holds every problem,
// each with its line and column.
func loadGateway(path string) (gatewayConfig, error) {
	var c gatewayConfig
	f, digest, err := load(path, &c)
	if err != nil {
		return c, err
	}
	c.path, c.digest = path, digest
	c.resolve(filepath.Dir(path))
	c.check(checker{f})
	return c, f.Err()
}

// loadRelay reads and checks a relay's file.
func loadRelay(path string) (relayConfig, error) {
	var c relayConfig
	f, _, err := load(path, &c)
	if err != nil {
		return c, err
	}
	c.resolve(filepath.Dir(path))
	c.check(checker{f})
	return c, f.Err()
}

func load(path string, into any) (*strictyaml.File, string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("read configuration: %w", err)
	}
	f, err := strictyaml.Decode(path, bytes.NewReader(b), into)
	if err != nil {
		return nil, "", fmt.Errorf("read configuration: %w", err)
	}
	sum := sha256.Sum256(b)
	return f, hex.EncodeToString(sum[:]), nil
}

// resolve makes relative paths relative to the file's directory.
func (c *gatewayConfig) resolve(dir string) {
	paths := []*string{
		&c.Listen.CertFile, &c.Listen.KeyFile, &c.Identity.SecretFile,
		&c.Identity.APIKeys.File, &c.Identity.APIKeys.PepperFile,
		&c.Identity.Valkey.PasswordFile, &c.Identity.Valkey.CAFile, &c.Identity.Revocations.File, &c.Policy.Bundle, &c.Policy.VerifyKeyFile,
		&c.Policy.Shadow, &c.Audit.Dir, &c.Audit.Dir2, &c.Audit.MACKeys, &c.Audit.KeyFile, &c.Telemetry.CAFile,
	}
	for i := range c.Identity.Issuers {
		paths = append(paths, &c.Identity.Issuers[i].JWKSFile)
	}
	for i := range c.Identity.Federation {
		paths = append(paths, c.Identity.Federation[i].paths()...)
	}
	for i := range c.Models {
		paths = append(paths, &c.Models[i].Dir, &c.Models[i].Cache)
	}
	for i := range c.Pools {
		paths = append(paths, &c.Pools[i].File)
	}
	for i := range c.Audit.Export {
		paths = append(paths, c.Audit.Export[i].Paths()...)
	}
	resolve(dir, paths...)
}

func (c *relayConfig) resolve(dir string) {
	paths := []*string{&c.Engine.CredentialFile, &c.SaltKeyFile, &c.Log.Dir, &c.Log.KeyFile}
	for i := range c.Identity.Federation {
		paths = append(paths, c.Identity.Federation[i].paths()...)
	}
	resolve(dir, paths...)
}

func resolve(dir string, paths ...*string) {
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}
