package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/gateway"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
)

// gatewayCommand stands before an HTTP service.
type gatewayCommand struct {
	scopeFlags `embed:""`
	Upstream   string `help:"The service, such as http://127.0.0.1:8080." required:"" placeholder:"URL"`
	Listen     string `help:"Address to listen on; port 0 takes a free one." default:"127.0.0.1:7480"`
	Data       string `help:"help_gateway_data" default:"./seqledger-data" type:"path"`
	Ledger     string `help:"help_gateway_ledger" placeholder:"ADDRESS"`
	TokenFile  string `help:"File with the key to --ledger; its role must be delegate." name:"ledger-token-file" type:"path" placeholder:"FILE"`
	Journal    string `help:"help_gateway_journal" default:"./seqledger-journal" type:"path"`

	Methods         []string      `help:"Methods whose keys count." default:"POST,PATCH"`
	Required        bool          `help:"Refuse requests of these methods that have no key."`
	Strict          bool          `help:"Take a key only as the draft has it, in double quotes."`
	Fingerprint     string        `help:"help_gateway_fingerprint" enum:"raw,jcs,none" default:"raw"`
	PrincipalHeader string        `help:"help_gateway_principal" placeholder:"NAME"`
	TTL             time.Duration `help:"How long a response is replayed." name:"ttl" default:"24h"`
	RejectedTTL     time.Duration `help:"How long a 4xx response is replayed." name:"rejected-ttl" default:"60s"`
	Wait            time.Duration `help:"How long a repeat waits for the first request; at most 60s, 0 does not wait." default:"30s"`
	Lease           time.Duration `help:"How long the ledger waits for a gateway that is silent, because it was killed." default:"60s"`
	OnLeaseExpired  string        `help:"help_gateway_lease" enum:"indeterminate,takeover" default:"indeterminate"`
	ServerErrors    string        `help:"help_gateway_errors" enum:"indeterminate,release,store" default:"indeterminate"`
	Open            bool          `help:"Let requests through without a key when the ledger does not answer: they may run twice."`
	Timeout         time.Duration `help:"How long the service may take to answer; 0 means no limit." name:"upstream-timeout" default:"0"`
	MaxRequests     int           `help:"Requests under way at once; further ones are refused with 503." default:"512"`
	DrainTimeout    time.Duration `help:"How long to wait, when stopped, for what is under way." default:"30s"`
}

// Help is shown below the flags.
func (*gatewayCommand) Help() string {
	return `A request with the header Idempotency-Key reaches the service once. A repeat gets the first response, also when the
service answered and the answer was lost, and when the client or this gateway was killed. The key belongs to who sends
it: the hash of the Authorization header, or a header that the proxy before this one sets (--principal-header).

    seqledger gateway --upstream http://127.0.0.1:8080
    curl -i -H 'Authorization: Bearer demo' -H 'Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"' \
      -d '{"amount":5}' http://127.0.0.1:7480/charge

If this gateway is killed between a request and its response, or the service does not say how a request ended, the
outcome is unknown: repeats get 409 outcome-unknown, and seqledger key resolve settles it, on the --ledger, or on a
seqledger serve of --data while this gateway is stopped.`
}

// defaultGatewayScope is where a gateway keeps its records unless --scope says otherwise.
const defaultGatewayScope = "gateway/main"

// Run is called by kong.
func (c *gatewayCommand) Run(e *environment) (err error) {
	options, err := c.options(e)
	if err != nil {
		return err
	}
	tuneCollector()
	signal.Ignore(notForServers...)
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fail(exitFailed, "", "--listen %s: %w", c.Listen, err)
	}
	defer func() { _ = listener.Close() }() // by then the server has closed it
	conn, failed, stop, err := c.ledger(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	options.Store = idempotency.Ledger(conn)
	journal, err := idempotency.OpenJournal(c.Journal, options.Store, e.log)
	if err != nil {
		return fail(exitFailed, "", "--journal %s: %w", c.Journal, err)
	}
	defer func() { err = errors.Join(err, journal.Close()) }()
	options.Idempotency.Journal = journal
	return c.serve(e, listener, gateway.New(*options), failed)
}

// options returns the gateway's options without its store. The errors are usage errors.
func (c *gatewayCommand) options(e *environment) (*gateway.Options, error) {
	upstream, err := url.Parse(c.Upstream)
	if err != nil || upstream.Host == "" || upstream.Scheme != "http" && upstream.Scheme != "https" {
		return nil, usage("--upstream %s: must be an http or https URL", c.Upstream)
	}
	if upstream.RawQuery != "" || upstream.Fragment != "" || upstream.User != nil {
		return nil, usage("--upstream: must not have a user, a query or a fragment")
	}
	if !c.given() {
		c.Scope = defaultGatewayScope
	}
	scope, err := c.scope()
	if err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	o := idempotency.Options{
		Settings: idempotency.Settings{TTL: c.TTL, RejectedTTL: c.RejectedTTL, Wait: c.Wait, Lease: c.Lease,
			Logger: e.log},
		Scope:    idempotency.Scope{Organization: scope.GetOrganization(), Vault: scope.GetVault()},
		Required: c.Required, Strict: c.Strict, Open: c.Open,
	}
	if c.Wait == 0 {
		o.Wait = -1
	}
	for _, method := range c.Methods {
		if method = strings.ToUpper(method); method == http.MethodHead || method == http.MethodOptions || method == "" {
			return nil, usage("--methods: %q has no effects to repeat", method)
		}
		o.Methods = append(o.Methods, method)
	}
	switch c.Fingerprint {
	case "jcs":
		o.Fingerprint = idempotency.FingerprintJCS
	case "none":
		o.Fingerprint = idempotency.FingerprintNone
	}
	if c.OnLeaseExpired == "takeover" {
		o.OnLeaseExpired = idempotency.TakeOver
	}
	switch c.ServerErrors {
	case "release":
		o.ServerErrors = idempotency.ReleaseKey
	case "store":
		o.ServerErrors = idempotency.StoreResult
	}
	if c.PrincipalHeader != "" {
		o.Principal = func(_ context.Context, header http.Header) (string, error) {
			values := header.Values(c.PrincipalHeader)
			if len(values) != 1 {
				return "", fmt.Errorf("there are %d headers %s", len(values), c.PrincipalHeader)
			}
			return "header:" + values[0], nil
		}
	}
	return &gateway.Options{Upstream: upstream, Timeout: c.Timeout, MaxRequests: c.MaxRequests, Idempotency: o,
		Logger: e.log}, nil
}

// check refuses values that make no sense.
func (c *gatewayCommand) check() error {
	switch {
	case c.TokenFile != "" && c.Ledger == "":
		return usage("--ledger-token-file needs --ledger")
	case c.Timeout < 0:
		return usage("--upstream-timeout: must not be negative")
	case c.MaxRequests < 1:
		return usage("--max-requests: must be at least 1")
	case c.DrainTimeout <= 0:
		return usage("--drain-timeout: must be more than 0")
	case c.Wait < 0 || c.Wait > idempotency.MaxWait:
		return usage("--wait: must be from 0 to %v", idempotency.MaxWait)
	case c.Lease < idempotency.MinLease || c.Lease > idempotency.MaxLease:
		return usage("--lease: must be from %v to %v", idempotency.MinLease, idempotency.MaxLease)
	case c.TTL < idempotency.MinTTL || c.TTL > idempotency.MaxTTL:
		return usage("--ttl: must be from %v to %v", idempotency.MinTTL, idempotency.MaxTTL)
	case c.RejectedTTL < idempotency.MinTTL || c.RejectedTTL > idempotency.MaxTTL:
		return usage("--rejected-ttl: must be from %v to %v", idempotency.MinTTL, idempotency.MaxTTL)
	}
	return nil
}

// ledger connects to the ledger that keeps the records: a running one, or one in this process.
// failed is closed when the one in this process ends by itself; nil for another.
func (c *gatewayCommand) ledger(e *environment) (conn *client.Client, failed <-chan struct{}, stop func() error,
	err error) {
	if c.Ledger != "" {
		o, err := (&connectionFlags{Server: c.Ledger, TokenFile: c.TokenFile}).options()
		if err != nil {
			text := strings.NewReplacer("--server", "--ledger", "--token-file",
				"--ledger-token-file").Replace(err.Error())
			return nil, nil, nil, usage("%s", text)
		}
		o.Logger = e.log
		conn, err := client.New(o)
		if err != nil {
			return nil, nil, nil, err
		}
		return conn, nil, conn.Close, nil
	}
	// Not e.ctx: what is under way is answered after the signal.
	l, err := ledger.Open(context.WithoutCancel(e.ctx), ledger.Options{Dir: c.Data, Logger: e.log})
	if err != nil {
		return nil, nil, nil, fail(exitFailed, storageHint(err, c.Data), "--data %s: %w", c.Data, err)
	}
	// Insecure, because only this process can reach it.
	s, err := server.New(server.Options{
		Ledger: l, Version: buildVersion().Version, Logger: e.log, DrainTimeout: c.DrainTimeout, DiskReserve: -1,
		StoredFile: filepath.Join(c.Data, storedName), Insecure: true,
	})
	if err != nil {
		return nil, nil, nil, errors.Join(err, l.Close())
	}
	pipe, ended := gateway.NewPipe(), make(chan struct{})
	var served error // belongs to the goroutine until ended is closed
	ctx, end := context.WithCancel(context.WithoutCancel(e.ctx))
	// Ends with end; stop waits for it.
	go func() {
		defer close(ended)
		served = s.Serve(ctx, pipe)
	}()
	conn, err = client.New(client.Options{
		Server: "http://127.0.0.1", Logger: e.log,
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: pipe.Dial, MaxIdleConnsPerHost: 1_024}},
	})
	stop = func() error {
		var closed error
		if conn != nil {
			closed = conn.Close()
		}
		end()
		<-ended
		err := errors.Join(closed, served, l.Close())
		if failure := l.Err(); failure != nil {
			return fail(exitFailed, storageHint(failure, c.Data), "%w", failure)
		}
		return err
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, stop())
	}
	return conn, ended, stop, nil
}

// gatewayReady is the one line that gateway prints, with --json.
type gatewayReady struct {
	Address  string `json:"address"`
	Upstream string `json:"upstream"`
}

// serve answers until the process is told to stop.
func (c *gatewayCommand) serve(
	e *environment, listener net.Listener, handler http.Handler, failed <-chan struct{},
) (err error) {
	s := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10}
	if e.json {
		err = e.showObject(gatewayReady{listener.Addr().String(), c.Upstream})
	} else {
		_, err = fmt.Fprintf(e.stdout, "gateway on %s before %s\n", listener.Addr(), c.Upstream)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	ended := make(chan error, 1)
	// Ends when the server is told to stop, which serve waits for.
	go func() { ended <- s.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-failed: // the error is that of the ledger
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
