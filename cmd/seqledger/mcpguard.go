package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/mcp/guard"
	"github.com/seqledger/seqledger/internal/storeurl"
)

type mcpGuardCommand struct {
	scopeFlags    `embed:""`
	Command       []string `arg:"" optional:"" help:"The server and its arguments, after --."`
	Upstream      string   `help:"Endpoint of a server over streamable HTTP, instead of a command." placeholder:"URL"`
	UpstreamToken string   `help:"File with the bearer token for --upstream." name:"upstream-token-file" type:"path" placeholder:"FILE"`
	Principal     string   `help:"Principal that the agent acts for. Default: the holder of the ledger's key; others need the role delegate." placeholder:"TEXT"`
	keyStoreFlags `embed:""`
	MaxCalls      int           `help:"Concurrent guarded calls; more are refused without effect." default:"64"`
	Lease         time.Duration `help:"Default lease: how long the ledger waits for a guard that was killed." default:"60s" shared:"PENDING_TTL_SECONDS"`
	Wait          time.Duration `help:"Default wait of a repeat for the first call; 0 does not wait." default:"30s" shared:"PENDING_WAIT_TIMEOUT"`
	KeyWindow     time.Duration `help:"Default time during which a call with the key of an earlier one is a repeat." default:"24h" shared:"COMMITTED_TTL_SECONDS"`
}

// ownConfig marks --config as a file in this command's own format.
func (*mcpGuardCommand) ownConfig() {}

func (*mcpGuardCommand) Help() string {
	return `An agent that plans anew after a timeout calls a tool again, and pays twice. The guard lets the tools that its
configuration names run once for a key: the one in _meta of the call, else one of the call's arguments, for as long as
the configuration says. A repeat gets the first result, with "replayed": true in its _meta. When the server or the
guard was killed in the middle of a call, the outcome is unknown: repeats are told so, and the tool is not run again
by itself; seqledger key resolve settles it. Everything else passes as it is.

Here --config names the guard's own file, and not one with values for flags:

    server: payments
    tools:
      create_charge:
        arguments: [order, customer]
        window: 1h

Put the guard where the agent's configuration has the server:

    seqledger mcp guard --config guard.yaml -- npx -y @example/payments-mcp
    seqledger mcp guard --config guard.yaml --upstream https://payments.example.com/mcp
    seqledger mcp guard --config guard.yaml --ledger 127.0.0.1:7450 --scope acme/agents -- ./payments-mcp

Standard error is the server's and the guard's log, signals reach the server, and its exit code is the guard's.`
}

// defaultGuardScope is the scope of a guard's records unless --scope is set.
const defaultGuardScope = "mcp/main"

func (c *mcpGuardCommand) Run(e *environment, config *configSource) (err error) {
	options, err := c.options(config.path)
	if err != nil {
		return err
	}
	options.Logger = e.log
	store, err := c.open(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.stop()) }()
	options.Store, options.Journal = store.Store, store.journal
	if c.Upstream != "" {
		return c.guardHTTP(e, options)
	}
	return c.guardProcess(e, options)
}

// options returns the guard's options, except its store and its server. The errors are usage errors.
func (c *mcpGuardCommand) options(config string) (*guard.Options, error) {
	if !c.given() {
		c.Scope = defaultGuardScope
	}
	scope, err := c.scope()
	if err != nil {
		return nil, err
	}
	upstream, err := url.Parse(c.Upstream)
	switch {
	case config == "":
		return nil, usage("--config is missing: the file that names the tools to guard")
	case (c.Upstream == "") == (len(c.Command) == 0):
		return nil, usage("name one server: a command behind --, or --upstream URL")
	case c.Upstream != "" && (err != nil || upstream.Host == "" || upstream.Scheme != "http" &&
		upstream.Scheme != "https"):
		return nil, usage("--upstream %s: must be an http or https URL", c.Upstream)
	case c.UpstreamToken != "" && c.Upstream == "":
		return nil, usage("--upstream-token-file needs --upstream")
	case c.UpstreamToken != "" && upstream.Scheme == "http" && !loopbackName(upstream.Hostname()):
		return nil, usage("--upstream-token-file: the token would go to %s in clear; use https", upstream.Host)
	case len(c.Principal) > idempotency.MaxPrincipal:
		return nil, usage("--principal: must have at most %d bytes", idempotency.MaxPrincipal)
	case c.MaxCalls < 1:
		return nil, usage("--max-calls: must be at least 1")
	}
	if err := errors.Join(c.checkTimes(), c.keyStoreFlags.check()); err != nil {
		return nil, err
	}
	times := guard.Times{Lease: c.Lease, Wait: c.Wait, KeyWindow: c.KeyWindow, MaxTTL: storeurl.MaxTTL(c.Store)}
	if c.Wait == 0 {
		times.Wait = -1
	}
	rules, err := guard.ReadConfig(config, times)
	if err != nil {
		return nil, usage("--config: %w", err)
	}
	return &guard.Options{
		Config: rules, Principal: c.Principal, MaxCalls: c.MaxCalls,
		Scope: idempotency.Scope{Organization: scope.GetOrganization(), Vault: scope.GetVault()},
	}, nil
}

// checkTimes refuses durations that are not allowed in a file either.
func (c *mcpGuardCommand) checkTimes() error {
	within := func(flag string, d, least, most time.Duration) error {
		if d < least || d > most {
			return usage("--%s: must be from %v to %v, is %v", flag, least, most, d)
		}
		return nil
	}
	return errors.Join(
		within("lease", c.Lease, idempotency.MinLease, idempotency.MaxLease),
		within("wait", c.Wait, 0, idempotency.MaxWait),
		within("key-window", c.KeyWindow, idempotency.MinTTL, idempotency.MaxTTL))
}

// guardProcess guards a child process until it ends.
func (c *mcpGuardCommand) guardProcess(e *environment, o *guard.Options) error {
	// Before the server starts, because a signal between the two would be lost.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, forwardedSignals...)
	defer signal.Stop(signals)
	server, err := guard.StartProcess(c.Command, e.stderr)
	if err != nil {
		return fail(exitFailed, "the command behind -- must be a program on the PATH, or a path", "%s: %w",
			c.Command[0], err)
	}
	ended, forwarded := make(chan struct{}), make(chan struct{})
	// Ends when the server has ended; the receive below waits for it.
	go func() {
		defer close(forwarded)
		stop := e.ctx.Done()
		for {
			select {
			case s := <-signals:
				_ = server.Signal(s) // it may have exited
			case <-stop:
				stop = nil
				if s, ok := errors.AsType[interruptedError](context.Cause(e.ctx)); ok {
					_ = server.Signal(s.signal)
				}
			case <-ended:
				return
			}
		}
	}()
	o.Upstream = server
	in := e.stdin
	if i, ok := in.(interruptible); ok {
		in = i.from // the server decides what a signal means; until it exits, messages pass
	}
	err = guard.New(*o).Run(context.WithoutCancel(e.ctx), in, e.stdout)
	close(ended)
	<-forwarded
	exit, isExit := errors.AsType[*exec.ExitError](err)
	if !isExit {
		return err
	}
	code := exit.ExitCode()
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = exitSignal + int(status.Signal())
	}
	return fail(code, "", "the MCP server ended: %w", err)
}

// guardHTTP guards a server over HTTP until the client has disconnected.
func (c *mcpGuardCommand) guardHTTP(e *environment, o *guard.Options) error {
	header := http.Header{}
	if c.UpstreamToken != "" {
		token, err := (&connectionFlags{TokenFile: c.UpstreamToken}).token()
		if err != nil {
			return usage("%s", strings.ReplaceAll(err.Error(), "--token-file", "--upstream-token-file"))
		}
		header.Set("Authorization", "Bearer "+token)
	}
	o.Upstream = guard.NewHTTP(guard.HTTPOptions{
		Endpoint: c.Upstream, Header: header, DrainTimeout: c.DrainTimeout, Logger: e.log,
	})
	return guard.New(*o).Run(context.WithoutCancel(e.ctx), e.stdin, e.stdout)
}
