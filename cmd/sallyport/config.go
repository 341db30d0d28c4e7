package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/audit/export"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/cmd/sallyport/strictyaml"
	"github.com/sallyport-ai/sallyport/identity/oidc"
	"github.com/sallyport-ai/sallyport/identity/valkey"
	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/relay"
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

type limitsConfig struct {
	BodyBytes     strictyaml.Bytes `yaml:"body_bytes"`
	InflightBytes strictyaml.Bytes `yaml:"inflight_bytes"` // of all bodies together
	HeaderBytes   strictyaml.Bytes `yaml:"header_bytes"`
	JSONDepth     int              `yaml:"json_depth"`
	Connect       time.Duration    `yaml:"connect"`     // longest time to connect to a replica
	FirstToken    time.Duration    `yaml:"first_token"` // longest wait for an answer to begin
	Idle          time.Duration    `yaml:"idle"`        // longest pause inside an answer
	Total         time.Duration    `yaml:"total"`       // longest time for a whole request
	Count         time.Duration    `yaml:"count"`       // longest time for an engine to count a prompt
	Drain         time.Duration    `yaml:"drain"`       // how long running requests have to end after a stop was asked for
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

func (c *gatewayConfig) check(k checker) {
	k.environment(c.Environment)
	k.address("listen.address", c.Listen.Address)
	k.file("listen.cert_file", c.Listen.CertFile)
	k.file("listen.key_file", c.Listen.KeyFile)
	if c.Admin.Address != "" {
		k.address("admin.address", c.Admin.Address)
	}
	k.required("region", c.Region)
	k.socket("identity.workload_socket", c.Identity.WorkloadSocket)
	k.federation(c.Identity.Federation)
	if len(c.Identity.Issuers) == 0 && !c.Listen.ClientSVID && c.Identity.JWTSVID.Audience == "" && c.Identity.APIKeys.File == "" {
		k.f.Problem("identity.issuers", "no issuer, no client_svid, no jwt_svid and no api_keys: nobody could authenticate")
	}
	if keys := c.Identity.APIKeys; keys != (apiKeysConfig{}) {
		k.file("identity.api_keys.file", keys.File)
		k.file("identity.api_keys.pepper_file", keys.PepperFile)
	}
	c.checkResource(k)
	c.checkShared(k)
	for i, issuer := range c.Identity.Issuers {
		c.checkBound(k, fmt.Sprintf("identity.issuers[%d].sender_constraint", i), issuer.SenderConstraint)
		k.issuer(fmt.Sprintf("identity.issuers[%d]", i), issuer)
	}
	if c.Identity.SecretFile != "" {
		k.file("identity.secret_file", c.Identity.SecretFile)
	}
	k.path("policy.bundle", c.Policy.Bundle)
	if c.Environment == "production" {
		k.required("policy.verify_key_file", c.Policy.VerifyKeyFile)
		k.required("identity.secret_file", c.Identity.SecretFile)
	}
	for i, m := range c.Models {
		k.required(fmt.Sprintf("models[%d].name", i), m.Name)
		k.path(fmt.Sprintf("models[%d].dir", i), m.Dir)
		if _, err := time.LoadLocation(m.Zone); err != nil {
			k.f.Problem(fmt.Sprintf("models[%d].zone", i), "%v", err)
		}
	}
	c.checkPools(k)
	c.Telemetry.check(k, c.Environment)
	k.required("audit.dir", c.Audit.Dir)
	k.file("audit.key_file", c.Audit.KeyFile)
	k.oneOf("audit.mode", c.Audit.Mode, "", "strict", "strict-2", "bounded")
	if c.Audit.Mode == "strict-2" {
		k.required("audit.dir2", c.Audit.Dir2)
	}
	for _, problem := range each(export.Check(c.Audit.Export, c.Environment == "production")) {
		field, what, _ := strings.Cut(problem.Error(), ": ")
		k.f.Problem("audit.export"+field, "%s", what)
	}
	if r := c.Audit.Retention; r < 0 || r > 0 && r < leastRetention && c.Environment == "production" {
		k.f.Problem("audit.retention", "%s is less than the %s that records must be kept in production", r, leastRetention)
	}
	for _, problem := range each(c.Audit.Witnesses.Check()) {
		k.f.Problem("audit.witnesses", "%s", strings.TrimPrefix(problem.Error(), "witnesses: "))
	}
}

// leastRetention is six months: what the EU's AI Act asks of the logs of
// high-risk systems, in articles 19 and 26.
const leastRetention = 183 * 24 * time.Hour

// issuer leaves to package oidc what only it can tell, such as algorithms.
func (k checker) issuer(at string, i oidc.Config) {
	if i.JWKSFile != "" {
		k.file(at+".jwks_file", i.JWKSFile)
	}
	for _, problem := range each(i.Check()) {
		field, what, _ := strings.Cut(problem.Error(), ": ")
		k.f.Problem(at+"."+field, "%s", what)
	}
}

// each takes joined errors apart.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

func (c *gatewayConfig) checkPools(k checker) {
	if len(c.Pools) == 0 {
		k.f.Problem("pools", "required")
	}
	seen := make(map[string]bool)
	for i, p := range c.Pools {
		if p.File != "" {
			k.file(fmt.Sprintf("pools[%d].file", i), p.File)
		}
		if p.DNS != "" {
			k.address(fmt.Sprintf("pools[%d].dns", i), p.DNS)
		}
		at := fmt.Sprintf("pools[%d]", i)
		k.required(at+".name", p.Name)
		if seen[p.Name] {
			k.f.Problem(at+".name", "pool %s stands twice", p.Name)
		}
		seen[p.Name] = true
		if len(p.Members) == 0 {
			k.f.Problem(at+".members", "required: the SPIFFE IDs, or patterns of them, that may serve this pool")
		}
		for j, m := range p.Members {
			if _, err := workload.ParsePattern(m); err != nil {
				k.f.Problem(fmt.Sprintf("%s.members[%d]", at, j), "%v", err)
			}
		}
		for j, r := range p.Replicas {
			place := fmt.Sprintf("%s.replicas[%d]", at, j)
			r.check(k, place, p.Members)
			for _, same := range []string{r.Address, r.ID} {
				if same != "" && seen["replica "+same] {
					k.f.Problem(place, "%s stands twice", same)
				}
				seen["replica "+same] = true
			}
		}
	}
}

func (r replicaConfig) check(k checker, at string, members []string) {
	k.address(at+".address", r.Address)
	if r.ID == "" {
		return
	}
	id, err := spiffeid.FromString(r.ID)
	if err != nil {
		k.f.Problem(at+".id", "%v", err)
		return
	}
	for _, m := range members {
		if p, err := workload.ParsePattern(m); err == nil && p.Matches(id) {
			return
		}
	}
	k.f.Problem(at+".id", "%s is not one of the pool's members", r.ID)
}

func (c *relayConfig) check(k checker) {
	k.environment(c.Environment)
	k.address("listen.address", c.Listen.Address)
	admin := relay.Admin(c.Admin)
	if err := admin.Check(); err != nil {
		k.f.Problem("admin", "%s", strings.TrimPrefix(err.Error(), "admin: "))
	}
	k.socket("identity.workload_socket", c.Identity.WorkloadSocket)
	k.federation(c.Identity.Federation)
	for i, f := range c.Identity.Federation {
		if len(f.Callers) > 0 {
			k.f.Problem(fmt.Sprintf("identity.federation[%d].callers", i), "only gateways have callers; a relay's gateways are named under gateways")
		}
	}
	engine := c.relayEngine()
	for _, problem := range each(engine.Check()) {
		k.f.Problem("engine", "%s", strings.TrimPrefix(problem.Error(), "engine: "))
	}
	k.oneOf("engine.events.mode", c.Engine.Events.Mode, "", "connect", "listen")
	k.required("pool", c.Pool)
	if len(c.Gateways) == 0 {
		k.f.Problem("gateways", "required: the SPIFFE IDs of the gateways that may use this replica")
	}
	for i, g := range c.Gateways {
		at := fmt.Sprintf("gateways[%d]", i)
		if _, err := spiffeid.FromString(g.ID); err != nil {
			k.f.Problem(at+".id", "%v", err)
		}
		if c.Environment == "production" {
			k.required(at+".log_vkey", g.LogVKey)
		}
	}
	if c.SaltKeyFile != "" {
		k.file("salt_key_file", c.SaltKeyFile)
	}
	if c.Log.Dir != "" {
		k.file("log.key_file", c.Log.KeyFile)
	}
}

// checker adds problems of meaning to those of form.
type checker struct{ f *strictyaml.File }

func (k checker) required(path, v string) bool {
	if v == "" {
		k.f.Problem(path, "required")
	}
	return v != ""
}

func (k checker) oneOf(path, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		k.f.Problem(path, "want one of %s, got %q", strings.Join(slices.DeleteFunc(slices.Clone(allowed), func(s string) bool { return s == "" }), ", "), v)
	}
}

func (k checker) environment(v string) { k.oneOf("environment", v, "demo", "production") }

func (k checker) address(path, v string) {
	if !k.required(path, v) {
		return
	}
	if _, _, err := net.SplitHostPort(v); err != nil {
		k.f.Problem(path, "want host:port: %v", err)
	}
}

func (k checker) url(path, v string) {
	if !k.required(path, v) {
		return
	}
	if u, err := url.Parse(v); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		k.f.Problem(path, "want an http or https URL, got %q", v)
	}
}

func (k checker) socket(path, v string) {
	if k.required(path, v) && !strings.HasPrefix(v, "unix:///") {
		k.f.Problem(path, "want unix:///path/to/socket, got %q", v)
	}
}

func (k checker) path(path, v string) {
	if !k.required(path, v) {
		return
	}
	if _, err := os.Stat(v); err != nil {
		k.f.Problem(path, "%v", err)
	}
}

func (k checker) file(path, v string) {
	if !k.required(path, v) {
		return
	}
	if st, err := os.Stat(v); err != nil {
		k.f.Problem(path, "%v", err)
	} else if st.IsDir() {
		k.f.Problem(path, "%s is a directory", v)
	}
}
