package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/ticket"
)

// Config describes one relay.
type Config struct {
	Listen   string           // host:port for gateways
	Source   *workload.Source // our own SVID, whose ID is the replica's
	Engine   Engine
	Pool     string
	Gateways []Gateway // who may connect; nobody else completes a handshake
	// AllowUnpinned lets a gateway without a LogVKey register its log's key
	// when it subscribes. For demonstrations.
	AllowUnpinned bool
	// SaltKeyFile holds 32 random bytes, mode 0600, where several engines share
	// a cache tier. Empty: a random key per process.
	SaltKeyFile string
	// SaltDomain is the one cache domain that routes serve whose salt isolation
	// is not proven. Empty: such routes serve nobody.
	SaltDomain string
	// Drain is how long a relay that is to stop lets running requests end; 0: 20 s.
	Drain  time.Duration
	Log    LogFiles     // of tickets served; an empty Dir keeps none
	Admin  Admin        // for health, metrics and the switch
	Logger *slog.Logger // nil discards
}

// Admin is the listener for those who run the relay.
type Admin struct {
	Address string // host:port; empty: none
	// Operators are the SPIFFE IDs that may take the replica out and back. With
	// any, the listener is TLS and shows the relay's SVID; who shows none sees
	// pages only. Without, it is plain HTTP, which must stay on loopback: whoever
	// reaches it may take the replica out.
	Operators []string
}

// authorizer admits the operators; nil if there are none.
func (a *Admin) authorizer() (workload.Authorizer, error) {
	host, _, err := net.SplitHostPort(a.Address)
	switch {
	case a.Address == "" && len(a.Operators) > 0:
		return nil, errors.New("admin: operators without an address")
	case a.Address == "":
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("admin: address: %w", err)
	case len(a.Operators) == 0 && !loopback(host):
		return nil, fmt.Errorf("admin: address %q is not on loopback, and no operators are named: anybody could take the replica out", a.Address)
	case len(a.Operators) == 0:
		return nil, nil
	}
	ids := make([]spiffeid.ID, len(a.Operators))
	for i, operator := range a.Operators {
		if ids[i], err = spiffeid.FromString(operator); err != nil {
			return nil, fmt.Errorf("admin: operator %q: %w", operator, err)
		}
	}
	return workload.AuthorizeIDs(ids...), nil
}

// Check says what is wrong with a.
func (a *Admin) Check() error {
	_, err := a.authorizer()
	return err
}

// Engine is the inference engine beside the relay.
type Engine struct {
	// URL is http://127.0.0.1:port or unix:///path: an engine authenticates
	// nobody, so it must not be reachable from elsewhere. Only an external one
	// is https://host.
	URL    string
	Kind   Kind
	Events Events
	Ranks  int // data-parallel ranks, each publishing at the endpoint's port plus its number; 0 is 1
	// BlockSize and NumBlocks are used where the engine's metrics do not tell
	// them; 0 unknown.
	BlockSize int
	NumBlocks int
	// CredentialFile holds the bearer token for an external engine.
	CredentialFile string
}

// Kind is the dialect an engine speaks. There is no default.
type Kind string

// The kinds.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
	// External is a hosted API: no cache events, no salt.
	External Kind = "external"
)

// Events says where the engine publishes its KV-cache events, as ipc://path or
// tcp://127.0.0.1:port. An empty Endpoint: it publishes none.
type Events struct {
	Endpoint string
	Replay   string // empty: the engine keeps no old batches
	// FullReports says that the engine announces blocks that it uses again as if
	// it stored them. Then a block counts once, however often it is stored: after
	// a gap the mirror fills with what is used, and one removal of several copies
	// takes all credit.
	FullReports bool
	// Listen makes the relay bind the endpoint, for an engine that connects:
	// vLLM does where its endpoint has no *, :: or ipc://.
	Listen bool
}

// Gateway is one gateway process, or several that share an ID. Such a group has
// one entry for each log.
type Gateway struct {
	ID      string // SPIFFE ID
	LogVKey string // verifier key of its log, which signs its tickets
}

// LogFiles places the log of tickets served.
type LogFiles struct{ Dir, KeyFile string }

// pinned is a checked list of gateways.
type pinned struct {
	ids  []spiffeid.ID
	keys map[string][]ticket.Key // by SPIFFE ID
}

// check returns every problem of the configuration at once.
func (c *Config) check() (pinned, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("relay: "+format, args...)) }
	if c.Source == nil {
		bad("no identity source")
	}
	if c.Listen == "" || c.Pool == "" {
		bad("listen address and pool are required")
	}
	if (c.Log.Dir == "") != (c.Log.KeyFile == "") {
		bad("log needs both a directory and a key file")
	}
	errs = append(errs, c.Engine.Check())
	if err := c.Admin.Check(); err != nil {
		bad("%w", err)
	}
	if len(c.Gateways) == 0 {
		bad("no gateway is allowed")
	}
	p := pinned{keys: make(map[string][]ticket.Key)}
	for _, g := range c.Gateways {
		id, err := spiffeid.FromString(g.ID)
		if err != nil {
			bad("gateway %q: %w", g.ID, err)
			continue
		}
		p.ids = append(p.ids, id)
		switch key, err := ticket.ParseKey(g.LogVKey); {
		case g.LogVKey == "" && c.AllowUnpinned:
		case g.LogVKey == "":
			bad("gateway %s: log key is not pinned", id)
		case err != nil:
			bad("gateway %s: %w", id, err)
		default:
			p.keys[id.String()] = append(p.keys[id.String()], key)
		}
	}
	return p, errors.Join(errs...)
}

// Check returns every problem of e, joined. It asks the engine nothing.
func (e *Engine) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("engine: "+format, args...)) }
	if _, err := e.target(); err != nil {
		errs = append(errs, err)
	}
	switch e.Kind {
	case VLLM, SGLang:
	case External:
		if e.Events != (Events{}) {
			bad("an external engine has no events")
		}
	default:
		bad("kind %q is not vllm, sglang or external", e.Kind)
	}
	if e.Ranks < 0 || e.BlockSize < 0 || e.NumBlocks < 0 {
		bad("ranks, block size and number of blocks must not be negative")
	}
	if e.CredentialFile != "" && e.Kind != External {
		bad("only an external engine has a credential")
	}
	taken := make(map[string]bool)
	for r := range e.ranks() {
		for _, endpoint := range []string{e.Events.Endpoint, e.Events.Replay} {
			at, err := rankEndpoint(endpoint, r)
			switch {
			case err != nil:
				bad("%w", err)
			case taken[at]:
				bad("endpoint %q is used twice: the ports of the ranks' events and replays overlap", at)
			}
			taken[at] = at != ""
		}
	}
	if e.Events.Listen && e.ranks() > 1 {
		bad("several ranks cannot connect to one endpoint")
	}
	if e.Events.Replay != "" && e.Events.Endpoint == "" {
		bad("a replay endpoint without an event endpoint")
	}
	return errors.Join(errs...)
}

func (e *Engine) ranks() int { return max(1, e.Ranks) }

// addressable says whether a request can choose its rank: vLLM has a header for
// it, SGLang balances by itself.
func (e *Engine) addressable() bool { return e.Kind == VLLM && e.ranks() > 1 }

// target parses URL and refuses what others could reach.
func (e *Engine) target() (*url.URL, error) {
	u, err := url.Parse(e.URL)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	switch {
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("engine: url has more than an address")
	case u.Scheme == "unix" && u.Host == "" && u.Path != "" && e.Kind != External:
		return u, nil
	case u.Path != "" && u.Path != "/":
		return nil, fmt.Errorf("engine: url has a path")
	case e.Kind == External && (u.Scheme == "https" || u.Scheme == "http" && loopback(u.Hostname())):
		return u, nil
	case e.Kind != External && u.Scheme == "http" && loopback(u.Hostname()):
		return u, nil
	}
	return nil, fmt.Errorf("engine: url %q is neither http on loopback nor unix (nor https of an external engine)", e.URL)
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// rankEndpoint is where a rank publishes: vLLM and SGLang add the rank to the port. It
// refuses what others could reach.
func rankEndpoint(endpoint string, rank int) (string, error) {
	switch addr, isTCP := strings.CutPrefix(endpoint, "tcp://"); {
	case endpoint == "":
		return "", nil
	case isTCP:
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		if !loopback(host) {
			return "", fmt.Errorf("endpoint %q is not on loopback: events carry prompts, unencrypted", endpoint)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n+uint64(rank) > 65535 {
			return "", fmt.Errorf("endpoint %q: bad port for rank %d", endpoint, rank)
		}
		return "tcp://" + net.JoinHostPort(host, strconv.FormatUint(n+uint64(rank), 10)), nil
	case !strings.HasPrefix(endpoint, "ipc://"):
		return "", fmt.Errorf("endpoint %q is neither ipc:// nor tcp://", endpoint)
	case rank > 0:
		return "", fmt.Errorf("endpoint %q: engines do not publish further ranks over ipc://", endpoint)
	}
	return endpoint, nil
}
