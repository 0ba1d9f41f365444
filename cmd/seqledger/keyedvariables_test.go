package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// parseWith parses a command line with the current environment.
func parseWith(t *testing.T, args ...string) (*commandLine, error) {
	t.Helper()
	cli, source := new(commandLine), new(configSource)
	parser, err := newParser(cli, new(operation.Flags), source, io.Discard, io.Discard)
	must.Do(t, err)
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
	cli = must.Get(parseWith(t, "mcp", "guard", "--config", file, "--", "server"))(t)
	o, err := cli.MCP.Guard.options(string(cli.Config))
	if err != nil || o.Config.Wait >= 0 || o.Config.Lease != 20*time.Second ||
		o.Config.Tools["pay"].KeyWindow != time.Hour {
		t.Errorf("mcp guard without a wait: %+v, %v", o, err)
	}
	t.Setenv("SEQLEDGER_IDEMPOTENCY_MAX_ENTRIES", "many") // which means nothing to serve, and is read all the same
	if _, err := parseWith(t, "serve"); err == nil || !strings.Contains(err.Error(), "MAX_ENTRIES") {
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
		c := must.Get(parseGateway(t, append(args, "--config", file)...))(t)
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
	parser := must.Get(newParser(new(commandLine), new(operation.Flags), new(configSource), io.Discard, io.Discard))(t)
	const good, bad = "SEQLEDGER_IDEMPOTENCY_WAIT_FOR_PENDING", "SEQLEDGER_IDEMPOTENCY_PENDING_TTL"
	const bare, other = "IDEMPOTENCY_PENDING_TTL", "IDEMPOTENCY_TABLE"
	set := []string{good + "=1", pendingTTL + "=1", bad + "=1", bare + "=1", other + "=1"}
	if got := unknownVariables(parser.Model, set); !slices.Equal(got, []string{bare, bad}) {
		t.Errorf("%v are not known", got)
	}
}

// Each variable takes one kind of value, and nothing else; what it is for a flag.
func TestValuesOfKeyedVariables(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, value, want string }{ // want is empty for an error
		{pendingTTL, "20", "20s"}, {pendingTTL, "60.0", "1m0s"}, {pendingTTL, "1.5", "1.5s"},
		{pendingTTL, "010", "10s"}, {committedTTL, "86_400", "24h0m0s"}, {rejectedTTL, "5.0", "5s"},
		{cleanupInterval, "0.5", "500ms"}, {pendingWait, "7", "7s"},
		{maxEntries, "100_000", "100000"}, {maxEntries, "7", "7"},
		{waitForPending, "true", "true"}, {waitForPending, "True", "true"}, {waitForPending, "1", "true"},
		{waitForPending, "false", "false"}, {waitForPending, "False", "false"}, {waitForPending, "0", "false"},
		{pendingTTL, "20s", ""}, {pendingTTL, "false", ""}, {pendingTTL, "", ""}, {pendingTTL, "-1", ""},
		{pendingTTL, "+1", ""}, {pendingTTL, "1e3", ""}, {pendingTTL, "1.", ""}, {pendingTTL, ".5", ""},
		{pendingTTL, "inf", ""}, {pendingTTL, " 60", ""}, {pendingTTL, "99999999999", ""}, {pendingTTL, "6_0.0", ""},
		{committedTTL, "True", ""}, {rejectedTTL, "1m", ""}, {cleanupInterval, "x", ""},
		{pendingWait, "0x1", ""}, {pendingWait, "1__0", ""},
		{maxEntries, "1.0", ""}, {maxEntries, "_1", ""}, {maxEntries, "1_", ""}, {maxEntries, "many", ""},
		{maxEntries, "99999999999999999999", ""},
		{waitForPending, "TRUE", ""}, {waitForPending, "yes", ""}, {waitForPending, "2", ""}, {waitForPending, "", ""},
	} {
		if got, err := sharedReaders[test.name](test.value); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s=%q: want %q, got %q, %v", test.name, test.value, test.want, got, err)
		}
	}
}

// A variable may be set with the prefix and without it, to one value. The test sets the environment, so it cannot run
// in parallel.
func TestFormsOfKeyedVariables(t *testing.T) {
	const prefix = environmentPrefix
	t.Setenv(prefix+pendingTTL, "60")
	t.Setenv(pendingTTL, "60.0") // the same value
	check.Equal(t, must.Get(parseGateway(t))(t).Lease, time.Minute, "both forms: %v")
	t.Setenv(pendingTTL, "61")
	_, err := parseGateway(t)
	check.ErrorContains(t, err, "$"+prefix+pendingTTL+" and $"+pendingTTL, "both forms with different values")
	var output strings.Builder
	if code := run([]string{"gateway", "--upstream", "http://127.0.0.1:1", "--check"}, strings.NewReader(""), &output,
		&output); code != exitUsage || !strings.Contains(output.String(), pendingTTL) {
		t.Errorf("the command: exit code %d, %s", code, output.String())
	}
	if _, err := parseWith(t, "list", "clients"); err != nil && strings.Contains(err.Error(), pendingTTL) {
		t.Errorf("a command without keys: %v", err)
	}
}

// A value beyond its range is told by the variable that has it, not only by the flag. The test sets the environment, so
// it cannot run in parallel.
func TestRangesOfKeyedVariables(t *testing.T) {
	gateway := []string{"gateway", "--upstream", "http://127.0.0.1:1", "--check"}
	rules := writeFile(t, "guard.yaml", "server: s\ntools: {pay: {}}\n")
	guard := []string{"mcp", "guard", "--config", rules, "--", "server"}
	serve := []string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0"}
	for _, test := range []struct {
		args      []string
		variables []string
	}{
		{gateway, []string{pendingTTL, committedTTL, rejectedTTL, pendingWait}},
		{guard, []string{pendingTTL, committedTTL, pendingWait}},
		{serve, []string{pendingTTL, committedTTL, rejectedTTL}},
	} {
		for i, variable := range test.variables {
			form := []string{variable, environmentPrefix + variable}[i%2]
			t.Run(test.args[0]+" "+form, func(t *testing.T) {
				t.Setenv(form, "999999999")
				mustSay(t, test.args, exitUsage, "$"+form+": ")
			})
		}
	}
}
