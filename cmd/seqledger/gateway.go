package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/gateway"
	"github.com/seqledger/seqledger/internal/listen"
	"github.com/seqledger/seqledger/internal/storeurl"
)

type gatewayCommand struct {
	gatewayProcess `embed:""`
	gatewayRoute   `embed:""`
	TrustedProxies []string `help:"Networks of proxies whose --principal-header and X-Forwarded-* headers are trusted." placeholder:"CIDR"`
	Check          bool     `help:"Check the flags and the configuration file, and end." env:"-"`
}

// gatewayProcess holds the flags that a reload does not change.
type gatewayProcess struct {
	scopeFlags    `embed:""`
	Listen        string `help:"Address to listen on; port 0 takes a free one." default:"127.0.0.1:7480"`
	keyStoreFlags `embed:""`
	DebugListen   string `help:"Serve profiles (/debug/pprof/) and /metrics without TLS on this loopback address; off when empty." placeholder:"ADDRESS"`
	MaxRequests   int    `help:"Requests under way at once; further ones are refused with 503." default:"512"`
	MaxPrincipal  int    `help:"Concurrent requests with a key for one principal; more are refused with 429. 0 means half of --max-requests." name:"max-requests-per-principal" default:"0"`
	MaxPeer       int    `help:"Concurrent requests from one address or IPv6 /64, except trusted proxies and this machine; more are refused with 429. 0 means half of --max-requests." name:"max-requests-per-peer" default:"0"`
}

// gatewayRoute holds the flags that a route in the file may override. The fields are those of [gateway.Settings].
type gatewayRoute struct {
	Upstream        string        `help:"The service, such as http://127.0.0.1:8080." placeholder:"URL"`
	Timeout         time.Duration `help:"How long the service may take to answer, and stall within a request with a key; 0 means no limit." name:"upstream-timeout" default:"0"`
	IdleTimeout     time.Duration `help:"How long to keep an unused connection to the service, unless its Keep-Alive is shorter; 0 keeps none. Must be shorter than the service's own timeout." name:"upstream-idle-timeout" default:"4s"`
	Methods         []string      `help:"Methods whose keys count." default:"POST,PATCH"`
	Required        bool          `help:"Refuse requests of these methods that have no key."`
	Strict          bool          `help:"Take a key only as the draft has it, in double quotes."`
	Open            bool          `help:"Forward requests without protection when the store does not answer: they may run twice."`
	Fingerprint     string        `help:"What to compare of a body: raw (its bytes), jcs (its JSON value), pointers (selected values) or none." enum:"raw,jcs,pointers,none" default:"raw"`
	Pointers        []string      `help:"JSON pointers of --fingerprint pointers." placeholder:"/NAME"`
	MaxBody         int64         `help:"How many bytes the body of a request with a key may have." default:"1048576"`
	TTL             time.Duration `help:"How long a response is replayed." name:"ttl" default:"24h" shared:"COMMITTED_TTL_SECONDS"`
	RejectedTTL     time.Duration `help:"How long a 4xx response is replayed." name:"rejected-ttl" default:"60s" shared:"REJECTED_TTL_SECONDS"`
	ForgetAfter     string        `help:"How long a key stays taken after its request has ended, a duration or never: once the response has expired, repeats get 410 and do not run. Default: as long as the response." placeholder:"DURATION"`
	Wait            time.Duration `help:"How long a repeat waits for the first request; at most 60s, 0 does not wait." default:"30s" shared:"PENDING_WAIT_TIMEOUT"`
	Lease           time.Duration `help:"How long a request counts as running after its gateway was killed; then --on-lease-expired applies." default:"60s" shared:"PENDING_TTL_SECONDS"`
	OnLeaseExpired  string        `help:"Outcome after a gateway was killed: indeterminate, or takeover for work that may run again." enum:"indeterminate,takeover" default:"indeterminate"`
	ServerErrors    []string      `help:"Outcome of a response of 500 or more: indeterminate, release (no effects) or store; for one status, 503=release." default:"indeterminate" placeholder:"[STATUS=]WORD"`
	EffectFree      []string      `help:"Which of 401, 403, 407, 408, 409, 423, 425 and 429 the service sends before any effect; these free the key. After the others the outcome is unknown." placeholder:"STATUS"`
	Stored          string        `help:"What to store of a response: response, or outcome (status and Location), where bodies must not be stored; repeats then get 410." enum:"response,outcome" default:"response"`
	StoredHeaders   []string      `help:"Additional response headers to store and replay." placeholder:"NAME"`
	ReplayStatus    string        `help:"Status of a replay: original, or 200 for every stored success." enum:"original,200" default:"original"`
	MismatchStatus  string        `help:"Status for a key that was used for another request: 422 or 409." enum:"422,409" default:"422"`
	FreshFields     []string      `help:"JSON pointers of fields that get a new UUID in a replay, such as /requestId." placeholder:"/NAME"`
	ReplayCheck     string        `help:"Ask the service before each replay, with the caller's headers; 2xx allows it. A method and a path, such as 'GET /may-read'." placeholder:"'METHOD PATH'"`
	CORSOrigins     []string      `help:"Allow pages of these origins, such as https://shop.example, to read responses, replays and refusals; replaces the service's own CORS headers." name:"cors-origins" placeholder:"ORIGIN"`
	PrincipalHeader string        `help:"Header that names the sender, accepted only from --trusted-proxies. Default: the hash of Authorization." placeholder:"NAME"`
	PrincipalClaim  string        `help:"Claim of the session token (JWT) that names the sender, such as sub, or several: sub,org_id; section jwt of the file configures the issuers." placeholder:"NAME"`
	Shared          bool          `help:"Use one principal for all callers, including anonymous ones: anyone who knows a key gets its response."`
	Principal       []string      `help:"What distinguishes senders: authorization, host, any-tenant (the common headers for tenants), authorization-id, and header names. Default: authorization,host." placeholder:"HEADER"`
	RequestHeaders  []string      `help:"Headers to compare with those of a repeat. Default: any-tenant,any-version, the common headers for tenants and versions. Preconditions are always compared." placeholder:"HEADER"`
	VisitorHeader   string        `help:"Header with a secret of a client without a credential; the client must keep sending it once it has one." placeholder:"NAME"`
}

func (*gatewayCommand) Help() string {
	return `A request with the header Idempotency-Key reaches the service once. A repeat gets the first response, also when the
service answered and the answer was lost, and when the client or this gateway was killed. The key belongs to the sender
(the hash of the Authorization header, or a header that the proxy before this one sets, --principal-header, or a claim
of a session token, --principal-claim), the host, and the other headers of --principal that tell tenants apart.

    seqledger gateway --upstream http://127.0.0.1:8080
    curl -i -H 'Authorization: Bearer demo' -H 'Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"' \
      -d '{"amount":5}' http://127.0.0.1:7480/charge

The file of --config has values of these flags, and routes: paths with values of their own for the flags from
--upstream on. SIGHUP reads it again; requests under way end as they began, and a file with a mistake changes nothing.

    seqledger gateway --config gateway.yaml --check
    seqledger gateway --config gateway.yaml --ledger-listen 127.0.0.1:7450 --debug-listen 127.0.0.1:7481

    # gateway.yaml
    upstream: http://127.0.0.1:8080
    routes:
      - {path: /charges, required: true, fingerprint: jcs, upstream_timeout: 20s}
      - {path: "/jobs/{queue}", methods: [POST, PUT], fresh_fields: [/requestId], mismatch_status: 409}

If this gateway is killed between a request and its response, or the service does not say how a request ended, the
outcome is unknown: repeats get 409 outcome-unknown, and seqledger key resolve settles it, on the --ledger or on
--ledger-listen.

    seqledger key list --server 127.0.0.1:7450 --scope gateway/main --all --state indeterminate`
}

// defaultGatewayScope is the scope of a gateway's records unless --scope is set.
const defaultGatewayScope = "gateway/main"

func (c *gatewayCommand) Run(e *environment, file *configSource) (err error) {
	config, err := c.load(file)
	if err = errors.Join(err, c.check()); err != nil {
		return err
	}
	scope, err := c.scopeOrDefault()
	if err != nil {
		return err
	}
	if c.Check {
		return showCheck(e, config.Routes())
	}
	tuneCollector()
	signal.Ignore(notForServers...)
	listener, err := listenOn("--listen", c.Listen)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // normally the server has already closed it
	store, err := c.open(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.stop()) }()
	o := gateway.Options{
		Config: config, MaxRequests: c.MaxRequests, MaxPerPrincipal: c.MaxPrincipal, MaxPerPeer: c.MaxPeer,
		Store: store.Store, Journal: store.journal, Scope: scope, Logger: e.log,
	}
	g := gateway.New(o)
	defer g.Close()
	defer reloadOnSignal(func() {
		c.reload(e, g)
		store.reload()
	})()
	debug, err := c.startDebug(e, g, store)
	if err != nil {
		return err
	}
	defer debug.stop()
	return c.serve(e, listener, g, store, debug)
}

// gatewayCheckResult is the answer of --check with --json. Mistakes are errors.
type gatewayCheckResult struct {
	Routes int `json:"routes"`
}

func showCheck(e *environment, routes int) error {
	if e.json {
		return e.showObject(gatewayCheckResult{routes})
	}
	_, err := fmt.Fprintf(e.stdout, "no mistakes; %d routes\n", routes)
	return err
}

// scopeOrDefault returns the scope of the records.
func (c *gatewayCommand) scopeOrDefault() (idempotency.Scope, error) {
	if !c.given() {
		c.Scope = defaultGatewayScope
	}
	scope, err := c.scope()
	return idempotency.Scope{Organization: scope.GetOrganization(), Vault: scope.GetVault()}, err
}

// load reads the configuration: the flags and the sections of the file. Every mistake is a usage error, with the line
// number if it is in the file.
func (c *gatewayCommand) load(file *configSource) (*gateway.Config, error) {
	config, err := gateway.Load(&gateway.File{
		Default: gateway.Settings(c.gatewayRoute), TrustedProxies: c.TrustedProxies,
		Path: file.path, Routes: file.sections["routes"], JWT: file.sections["jwt"], Listen: c.Listen,
		MaxTTL: storeurl.MaxTTL(c.Store),
	})
	var problems []error
	for _, mistake := range mistakes(err) {
		if flag, ok := errors.AsType[*gateway.SettingError](mistake); ok {
			mistake = file.locate(fmt.Errorf("--%s: %s", strings.ReplaceAll(flag.Field, "_", "-"), flag.Problem))
		}
		problems = append(problems, usage("%w", mistake))
	}
	return config, errors.Join(problems...)
}

// mistakes returns the errors joined in an error.
func mistakes(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, mistakes(one)...)
	}
	return all
}

// reload applies the current configuration to the gateway, if it has no mistakes.
func (c *gatewayCommand) reload(e *environment, g *gateway.Gateway) {
	var config *gateway.Config
	again, file, err := e.parse()
	if err == nil {
		config, err = again.Gateway.load(file)
	}
	if err != nil {
		for _, mistake := range mistakes(err) {
			e.log.Error("the configuration was not taken; the one before it holds on", "error", mistake)
		}
		g.Reloaded(false)
		return
	}
	if _, err := again.Gateway.scopeOrDefault(); err != nil || again.Gateway.gatewayProcess != c.gatewayProcess {
		e.log.Warn("what is not about requests was changed, too: that needs a restart")
	}
	g.Reload(config)
	g.Reloaded(true)
	e.log.Info("the configuration was read again", "routes", config.Routes())
}

// check refuses invalid flag values.
func (c *gatewayCommand) check() error {
	var found flagMistakes
	found.when(c.MaxRequests < 1, "--max-requests: must be at least 1")
	found.when(c.MaxPrincipal < 0, "--max-requests-per-principal: must not be negative")
	found.when(c.MaxPeer < 0, "--max-requests-per-peer: must not be negative")
	return errors.Join(append(found, c.keyStoreFlags.check(), checkLoopback("--debug-listen", c.DebugListen))...)
}

// gatewayReady is the single line that gateway prints with --json.
type gatewayReady struct {
	Address  string `json:"address"`
	Upstream string `json:"upstream,omitempty"`
	Routes   int    `json:"routes"`
	Ledger   string `json:"ledger,omitempty"` // listening address of --ledger-listen
	Debug    string `json:"debug,omitempty"`  // listening address of --debug-listen
}

// serve serves requests until the process is told to stop.
func (c *gatewayCommand) serve(
	e *environment, listener net.Listener, g *gateway.Gateway, store *keyStore, debug *debugServer,
) (err error) {
	s := listen.Server(g, 64<<10, e.log)
	ready := gatewayReady{listener.Addr().String(), c.Upstream, g.Routes(), store.address, debug.address}
	if e.json {
		err = e.showObject(ready)
	} else {
		_, err = fmt.Fprintf(e.stdout, "gateway on %s before %s, %d routes\n", ready.Address,
			cmp.Or(c.Upstream, "the services of its routes"), ready.Routes)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	ended := make(chan error, 1)
	// Ends when the server is told to stop; serve waits for it.
	go func() { ended <- listen.ServeLetIn(s, listener, listen.Connections().Gateway) }()
	select {
	case err := <-ended:
		return err
	case <-store.failed(): // the ledger's own error is returned
		return s.Close()
	case <-e.ctx.Done():
	}
	e.log.Info("stopping: answering what is under way", "reason", context.Cause(e.ctx), "at most", c.DrainTimeout)
	limited, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	if err := s.Shutdown(limited); err != nil {
		return fail(exitFailed, "--drain-timeout waits longer; the outcome of what was cut off is unknown",
			"not everything was answered: %w", errors.Join(err, s.Close()))
	}
	return nil
}
