package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
)

// parseWith parses a command line with the current environment.
func parseWith(t *testing.T, args ...string) (*commandLine, error) {
	t.Helper()
	cli, source := new(commandLine), new(configSource)
	parser, err := newParser(cli, new(operation.Flags), source, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return cli, err
}

// parseGateway parses a gateway's command line with the current environment.
func parseGateway(t *testing.T, args ...string) (*gatewayCommand, error) {
	t.Helper()
	cli, err := parseWith(t, append([]string{"gateway", "--upstream", "http://127.0.0.1:1"}, args...)...)
	return &cli.Gateway, err
}

// Each program reads the variables that apply to it. The test sets the environment, so it cannot run in parallel.
func TestKeyedVariablesOfEachProgram(t *testing.T) {
	for name, value := range map[string]string{
		"PENDING_TTL_SECONDS": "20", "COMMITTED_TTL_SECONDS": "3600", "REJECTED_TTL_SECONDS": "5",
		"PENDING_WAIT_TIMEOUT": "7", "MAX_ENTRIES": "9", "CLEANUP_INTERVAL_SECONDS": "11",
	} {
		t.Setenv("SEQLEDGER_IDEMPOTENCY_"+name, value)
	}
	cli, err := parseWith(t, "serve")
	if s := &cli.Serve; err != nil || s.KeyLease != 20*time.Second || s.KeyTTL != time.Hour ||
		s.KeyRejectedTTL != 5*time.Second {
		t.Errorf("serve: %v, %v, %v, %v", s.KeyLease, s.KeyTTL, s.KeyRejectedTTL, err)
	}
	cli, err = parseWith(t, "mcp", "guard", "--config", "guard.yaml", "--", "server")
	g := &cli.MCP.Guard
	if err != nil || g.Lease != 20*time.Second || g.KeyWindow != time.Hour || g.Wait != 7*time.Second ||
		g.MaxEntries != 9 || g.Cleanup != 11*time.Second {
		t.Errorf("mcp guard: %+v, %v", g, err)
	}
	gateway, err := parseGateway(t)
	if err != nil || gateway.MaxEntries != 9 || gateway.Cleanup != 11*time.Second {
		t.Errorf("gateway: %d entries, %v, %v", gateway.MaxEntries, gateway.Cleanup, err)
	}
	t.Setenv("SEQLEDGER_IDEMPOTENCY_WAIT_FOR_PENDING", "false")
	file := writeFile(t, "guard.yaml", "server: s\ntools: {pay: {}}\n")
	cli, err = parseWith(t, "mcp", "guard", "--config", file, "--", "server")
	if err != nil {
		t.Fatal(err)
	}
	o, err := cli.MCP.Guard.options(string(cli.Config))
	if err != nil || o.Config.Wait >= 0 || o.Config.Lease != 20*time.Second ||
		o.Config.Tools["pay"].KeyWindow != time.Hour {
		t.Errorf("mcp guard without a wait: %+v, %v", o, err)
	}
	t.Setenv("SEQLEDGER_IDEMPOTENCY_MAX_ENTRIES", "many")
	if _, err := parseGateway(t); err == nil || !strings.Contains(err.Error(), "MAX_ENTRIES") {
		t.Error("many entries:", err)
	}
}

// The variables shared by all programs with keys set the gateway's times. They have lower precedence than the flags and
// the flags' own variables, and higher precedence than the file. The test sets the environment, so it cannot run in
// parallel.
func TestKeyedVariables(t *testing.T) {
	for name, value := range map[string]string{
		"PENDING_TTL_SECONDS": "20", "COMMITTED_TTL_SECONDS": "3600", "REJECTED_TTL_SECONDS": "5",
		"PENDING_WAIT_TIMEOUT": "7", "WAIT_FOR_PENDING": "true",
	} {
		t.Setenv("SEQLEDGER_IDEMPOTENCY_"+name, value)
	}
	file := writeFile(t, "gateway.yaml", "lease: 1h\nttl: 2h\n")
	check := func(wait, rejected time.Duration, args ...string) {
		t.Helper()
		c, err := parseGateway(t, append(args, "--config", file)...)
		if err != nil {
			t.Fatal(err)
		}
		if c.Lease != 20*time.Second || c.TTL != time.Hour || c.RejectedTTL != rejected || c.Wait != wait {
			t.Errorf("%v: lease %v, TTL %v, of refusals %v, wait %v", args, c.Lease, c.TTL, c.RejectedTTL, c.Wait)
		}
	}
	check(7*time.Second, 5*time.Second)
	check(7*time.Second, time.Minute, "--rejected-ttl", "1m")
	t.Setenv("SEQLEDGER_REJECTED_TTL", "3s")
	check(7*time.Second, 3*time.Second)
	t.Setenv("SEQLEDGER_IDEMPOTENCY_WAIT_FOR_PENDING", "false")
	check(0, 3*time.Second)
	check(4*time.Second, 3*time.Second, "--wait", "4s")
	for name, value := range map[string]string{"WAIT_FOR_PENDING": "maybe", "PENDING_TTL_SECONDS": "20 s"} {
		name = "SEQLEDGER_IDEMPOTENCY_" + name
		t.Setenv(name, value)
		if _, err := parseGateway(t); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
		t.Setenv(name, "1")
	}
	parser, err := newParser(new(commandLine), new(operation.Flags), new(configSource), io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	const good, bad = "SEQLEDGER_IDEMPOTENCY_PENDING_WAIT_TIMEOUT", "SEQLEDGER_IDEMPOTENCY_PENDING_TTL"
	if got := unknownVariables(parser.Model, []string{good + "=1", bad + "=1"}); len(got) != 1 || got[0] != bad {
		t.Errorf("%v are not known", got)
	}
}
