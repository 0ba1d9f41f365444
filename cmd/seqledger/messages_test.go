package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// mustSay runs a command that is to fail. Its message has the texts, and no word
// that is the program's and not the user's.
func mustSay(t *testing.T, args []string, code int, texts ...string) {
	t.Helper()
	var r result
	if code == exitUsage && !strings.HasPrefix(args[0], "SEQLEDGER_") {
		// In this process, which takes a fifth of the time: nothing happens before the command line is refused.
		var stdout, stderr bytes.Buffer
		r.code = run(args, strings.NewReader(""), &stdout, &stderr)
		r.stdout, r.stderr = stdout.String(), stderr.String()
	} else {
		r = seqledger(t, args...)
	}
	if r.code != code {
		t.Errorf("%v: want exit code %d, got %v", args, code, r)
	}
	for _, text := range texts {
		if !strings.Contains(r.stderr, text) {
			t.Errorf("%v: want %q, got %v", args, text, r)
		}
	}
	if word := innerWord(r.stderr); word != "" {
		t.Errorf("%v: it says %q: %v", args, word, r)
	}
}

// TestFlagMessages: a flag whose value cannot be read is named, with what it
// takes.
func TestFlagMessages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		says []string
	}{
		{"serve --key-ttl 5", []string{`--key-ttl: "5" must be a duration with its unit`,
			"seqledger serve --help"}},
		{"status --timeout soon", []string{`--timeout: "soon" must be a duration`, "seqledger status --help"}},
		{"serve --log-level loud", []string{`--log-level: "loud" must be debug, info`}},
		{"bench --streams 1.5", []string{`--streams: "1.5" must be a whole number`}},
		{"bench --rate x", []string{`--rate: "x" must be a number`}},
		{"state --scope a --client-id c --session 0x1",
			[]string{`--session: "0x1" must be a number from 0 to 18446744073709551615`}},
		{"block --scope a x", []string{`<height>: "x" must be a number`}},
		{"list entities --scope", []string{"--scope: its value is missing", "seqledger list entities --help"}},
		{"SEQLEDGER_TIMEOUT=5 status", []string{`--timeout: "5" must be a duration`, `SEQLEDGER_TIMEOUT="5"`}},
		{"fly", []string{"unexpected argument fly", "seqledger COMMAND --help"}},
		{"--json=false", []string{"expected one of", "next: seqledger --help lists the commands"}},
	} {
		mustSay(t, strings.Fields(test.args), exitUsage, test.says...)
	}
}

// TestNumbersAreDecimal: a zero in front makes no other number of one.
func TestNumbersAreDecimal(t *testing.T) {
	t.Parallel()
	cli := must.Get(parseWith(t, "write", "--client-id", "c", "--append", "x", "--sequence", "010"))(t)
	check.Equal(t, cli.Write.Sequence, 10)
}

// TestUnknownVariables: a mistyped variable is named, and stops nothing.
func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	r := seqledger(t, "SEQLEDGER_TOKNE=secret", "SEQLEDGER_TOKEN=x", "SEQLEDGER_LISTEN=y",
		"SEQLEDGER_DATA=", "version").expect(t, exitDone, "SEQLEDGER_TOKNE")
	if strings.Contains(r.stderr, "secret") || strings.Contains(r.stderr, "SEQLEDGER_TOKEN ") ||
		strings.Contains(r.stderr, "SEQLEDGER_LISTEN") {
		t.Errorf("want the mistyped variable named and nothing else, got %v", r)
	}
}

// TestServeMessages: what serve cannot work with is named by its flag, before
// anything is made.
func TestServeMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := selfSigned(t)
	_, otherKey := selfSigned(t)
	good := filepath.Join(t.TempDir(), "auth.yaml")
	newKeyIn(t, good, "a", "--scope", "*", "--role", "reader")
	file, absent, data := writeFile(t, "file", "garbage"), filepath.Join(dir, "absent"), filepath.Join(dir, "data")
	for _, test := range []struct {
		args []string
		says []string
	}{
		{[]string{"--tls-cert", absent, "--tls-key", key}, []string{"--tls-cert", absent}},
		{[]string{"--tls-cert", cert, "--tls-key", absent}, []string{"--tls-key", absent}},
		{[]string{"--tls-cert", dir, "--tls-key", key}, []string{"--tls-cert", dir, "is a directory"}},
		{[]string{"--tls-cert", file, "--tls-key", key}, []string{"--tls-cert " + file, "failed to find any PEM data"}},
		{[]string{"--tls-cert", key, "--tls-key", cert}, []string{"--tls-cert " + key, "may have been switched"}},
		{[]string{"--tls-cert", cert, "--tls-key", otherKey}, []string{"--tls-key " + otherKey, "does not match"}},
		{[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", file},
			[]string{"--tls-client-ca " + file, "no certificate"}},
		{[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", dir},
			[]string{"--tls-client-ca", dir, "is a directory"}},
		{[]string{"--auth", absent}, []string{"--auth", absent, "no such file"}},
		{[]string{"--auth", dir}, []string{"--auth", dir, "not a regular file"}},
		{[]string{"--auth", file}, []string{"--auth", file + ":1"}},
		{[]string{"--cors-origin", "example.com"}, []string{"--cors-origin", `"example.com"`, "scheme://host"}},
		{[]string{"--auth", good, "--cors-origin", "*"}, []string{"--cors-origin"}},
		{[]string{"--listen", "0.0.0.0:0"}, []string{"loopback", "no authentication"}},
		{[]string{"--listen", ":0", "--auth", good}, []string{"loopback", "no TLS"}},
		{[]string{"--listen", "192.0.2.1:0", "--tls-cert", cert, "--tls-key", key}, []string{"no authentication"}},
		{[]string{"--tls-cert", cert}, []string{"belong together"}},
		{[]string{"--tls-client-ca", cert}, []string{"needs --tls-cert"}},
		{[]string{"--drain-timeout", "0s"}, []string{"--drain-timeout: must be more than 0"}},
		{[]string{"--checkpoint-bytes", "1"}, []string{"--checkpoint-bytes: must be 0 or from 1048576"}},
		{[]string{"--checkpoint-bytes=-1"}, []string{"--checkpoint-bytes: must be"}},
		{[]string{"--backup-rate=-2"}, []string{"--backup-rate: must be"}},
		{[]string{"--listen", "127.0.0.1"}, []string{"--listen 127.0.0.1: must be a host and a port"}},
		{[]string{"--listen", "127.0.0.1:99999"}, []string{"--listen 127.0.0.1:99999:", "from 0 to 65535"}},
		{[]string{"--debug-listen", "127.0.0.1:99999"}, []string{"--debug-listen 127.0.0.1:99999:", "from 0 to 65535"}},
	} {
		mustSay(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--data", data}, test.args...), exitUsage,
			test.says...)
	}
	// The same from a file, with its line.
	config := writeFile(t, "c.yaml", "listen: 127.0.0.1:0\nbackup-rate: 0\n")
	mustSay(t, []string{"serve", "--config", config, "--data", data}, exitUsage, config+":2: --backup-rate: must be")
	if _, err := os.Stat(data); err == nil {
		t.Error("a ledger was made")
	}
	for _, command := range []string{"serve --listen 127.0.0.1:0", "verify", "restore " + file} {
		mustSay(t, append(strings.Fields(command), "--data", file), exitFailed, file+" is a file and no directory")
	}
}

// TestAuthMessages: new-key names its flags, not the fields of the file.
func TestAuthMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"--scope", "a b", "--role", "reader"}, `--scope "a b"`},
		{[]string{"--scope", "a/b/c", "--role", "reader"}, `--scope "a/b/c" has more than one slash`},
		{[]string{"--scope", "a", "--role", "king"}, "--role must be one of"},
		{[]string{"--scope", "a", "--role", "writer"}, "--client-id must have a pattern"},
		{[]string{"--scope", "a", "--role", "writer", "--client-id", ""}, `--client-id "" must have`},
		{[]string{"--scope", "a", "--role", "reader", "--expires", "tomorrow"}, `--expires: "tomorrow" is not a time`},
		{[]string{"--scope", "a", "--role", "reader", "--expires", "2001-01-01T00:00:00Z"},
			"--expires 2001-01-01T00:00:00Z: is in the past"},
		{[]string{"--scope", "a", "--role", "reader", "--append", dir}, "--append: read " + dir},
		{[]string{"--scope", "a", "--role", "reader", "--append", filepath.Join(dir, "no", "such")},
			"--append " + filepath.Join(dir, "no", "such")},
	} {
		mustSay(t, append([]string{"auth", "new-key", "--id", "a"}, test.args...), exitUsage, test.says)
	}
	mustSay(t, []string{"backup", filepath.Join(dir, "no", "such"), "--server", "127.0.0.1:1"}, exitUsage,
		filepath.Join(dir, "no"), "no such file")
}

// TestConnectionMessages: what keeps a command from a server is told as what it is,
// and where trying again does not help the command does not wait for its timeout.
func TestConnectionMessages(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t)
	otherCert, otherKey := selfSigned(t)
	plain := serve(t)
	encrypted := serve(t, "--tls-cert", cert, "--tls-key", key)
	mutual := serve(t, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
	_, port, err := net.SplitHostPort(encrypted.address)
	must.Do(t, err)
	for _, test := range []struct {
		server string
		flags  []string
		says   []string
	}{
		{"https://" + plain.address, nil, []string{"does not speak TLS", "omit https://"}},
		{plain.address, []string{"--tls-ca", cert}, []string{"does not speak TLS"}},
		{encrypted.address, nil, []string{"speaks TLS", "https://" + encrypted.address}},
		{"https://" + encrypted.address, nil, []string{"not signed by a trusted authority", "--tls-ca"}},
		{"https://" + encrypted.address, []string{"--tls-ca", otherCert},
			[]string{"not signed by a trusted authority"}},
		{"https://localhost:" + port, []string{"--tls-ca", cert},
			[]string{`not for "localhost" but for ["127.0.0.1"]`}},
		{"https://" + mutual.address, []string{"--tls-ca", cert}, []string{"certificate required", "--tls-cert"}},
		{"https://" + mutual.address, []string{"--tls-ca", cert, "--tls-cert", otherCert, "--tls-key", otherKey},
			[]string{"TLS handshake", "--tls-client-ca"}},
	} {
		commands := [][]string{{"status", "--timeout", "1h"}, {"status", "--ready"}}
		if test.server == encrypted.address { // of the other kinds of commands one cause is enough
			commands = [][]string{
				{"status", "--timeout", "1h"}, {"list", "--scope", "a", "--timeout", "1h"}, {"watch", "--scope", "a"},
				{"backup", filepath.Join(t.TempDir(), "b")},
				{"import", "--timeout", "1h", "--scope", "a", "--client-id", "c", numberedLines(t, 1)},
			}
		}
		for _, command := range commands {
			args := append(append(command, "--server", test.server), test.flags...)
			t.Run(strings.Join(args, " "), func(t *testing.T) {
				t.Parallel() // they wait most of the time
				mustSay(t, args, exitFailed, append(test.says, test.server+": ")...)
			})
		}
	}
	for server, says := range map[string]string{
		"127.0.0.1:99999": `"99999" must be a port`, "x:y": "must be host:port",
		":7450": "the host is missing", "ftp://x:1": `"ftp" must be http`,
		"https://user:secret@x:1": "must not have a user name or password",
		"http://x:1?a=b":          "nothing may follow", "127.0.0.1:0": "must have the port",
	} {
		mustSay(t, []string{"status", "--server", server}, exitUsage, "--server ", says)
	}
	if r := seqledger(t, "status", "--server", "http://user:secret@x:1"); strings.Contains(r.stderr, "secret") {
		t.Errorf("the password is repeated: %v", r)
	}
}

// freeAddress is one at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	address := must.Get(freeport.Address())(t)
	return address
}

// TestCommandsWaitForTheServer: a command tries for as long as --timeout says, and prints why
// it waits.
func TestCommandsWaitForTheServer(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	input := numberedLines(t, 10)
	var waiting []*process
	for _, command := range [][]string{
		{"status"}, {"list", "--scope", "a"},
		{"write", "--scope", "a", "--client-id", "w", "--sequence", "1", "--append", "x"},
		{"import", "--scope", "a", "--client-id", "i", input},
		{"bench", "--streams", "1", "--duration", "2s", "--rate", "20"}, // long enough for one write on any disk
	} {
		waiting = append(waiting, start(t, append(command, "--server", address, "--timeout", "1h")...))
	}
	for _, p := range waiting {
		awaitLog(t, p, address+": connection refused; trying again for up to 1h0m0s (--timeout)")
	}
	serveOn(t, t.TempDir(), address)
	for _, p := range waiting {
		if code := p.wait(t); code != exitDone {
			t.Errorf("%v: want it done once there is a server, got %d: %s", p.cmd.Args, code, p.stderr.String())
		}
	}
}

// TestAddressIsSaidOnce: an error names the address that refused a connection, and only once where the user has given
// that address.
func TestAddressIsSaidOnce(t *testing.T) {
	t.Parallel()
	why := &unreachableError{what: "connection refused", at: "127.0.0.1:7450"}
	for server, want := range map[string]string{
		"127.0.0.1:7450":           "127.0.0.1:7450: connection refused",
		"http://127.0.0.1:7450":    "http://127.0.0.1:7450: connection refused",
		"https://127.0.0.1:7450/":  "https://127.0.0.1:7450/: connection refused",
		"127.0.0.1":                "127.0.0.1: connection refused at 127.0.0.1:7450",
		"localhost:7450":           "localhost:7450: connection refused at 127.0.0.1:7450",
		"127.0.0.1:7450,ledger:80": "127.0.0.1:7450,ledger:80: connection refused at 127.0.0.1:7450",
	} {
		check.Equal(t, why.from(server), want)
	}
	check.Equal(t, (&unreachableError{what: "is away"}).from("ledger"), "ledger: is away", "without an address: %q")
}

// TestNothingWasSent: a write or a session that no server was asked for is not told
// as one whose outcome is unknown, unless an earlier run may have asked for it.
func TestNothingWasSent(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	stream := []string{"--scope", "a", "--client-id", "c", "--server", address, "--timeout", "2s"}
	mustSay(t, append([]string{"write", "--append", "x", "--sequence", "3"}, stream...), exitUnknown,
		"this run has not sent sequence 3, but an earlier one may have", address, "connection refused", "--sequence 3")
	mustSay(t, append([]string{"write", "--append", "x"}, stream...), exitFailed, address, "connection refused")
	r := seqledger(t, append([]string{"session", "open"}, stream...)...).expect(t, exitFailed, "connection refused")
	if strings.Contains(r.stderr, "attempt") {
		t.Errorf("no session was asked for: %v", r)
	}
}

// TestNotSent: what the error of a write means for it.
func TestNotSent(t *testing.T) {
	t.Parallel()
	refused := &failure.Error{ConnectCode: connect.CodeUnavailable, Message: "dial tcp: connection refused"}
	draining := &failure.Error{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING,
		ConnectCode: connect.CodeUnavailable}
	for _, test := range []struct {
		name  string
		given uint64
		err   error
		code  int
		says  string
	}{
		{"numbered here", 0, refused, exitFailed, "sequence 7 was not executed"},
		{"numbered here, as the client says it", 0, &failure.NotExecutedError{Sequence: 7, Cause: refused},
			exitFailed, "sequence 7 was not executed"},
		{"numbered before", 7, refused, exitUnknown, "an earlier one may have"},
		{"wrong certificate", 0, &unreachableError{what: "x"}, exitFailed, "sequence 7 was not executed"},
		{"unknown", 0, &failure.OutcomeUnknownError{Sequence: 7, Cause: refused}, exitUnknown, "outcome of write 7"},
		{"refused", 0, draining, exitFailed, "DRAINING"},
		{"another error", 0, errors.New("disk"), exitFailed, "disk"},
	} {
		err := (&writeCommand{Sequence: test.given}).notSent(7, test.err)
		if code, _ := classify(err); code != test.code || !strings.Contains(err.Error(), test.says) ||
			!errors.Is(err, test.err) {
			t.Errorf("%s: want exit code %d and %q, got %d, %v", test.name, test.code, test.says, code, err)
		}
	}
}

// openerOfUnknown answers OpenSession as a server does that lost its disk meanwhile.
type openerOfUnknown struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler
}

func (openerOfUnknown) GetClientState(
	context.Context, *connect.Request[seqledgerv1.GetClientStateRequest],
) (*connect.Response[seqledgerv1.GetClientStateResponse], error) {
	return connect.NewResponse(&seqledgerv1.GetClientStateResponse{State: new(seqledgerv1.ClientState)}), nil
}

func (openerOfUnknown) OpenSession(
	context.Context, *connect.Request[seqledgerv1.OpenSessionRequest],
) (*connect.Response[seqledgerv1.OpenSessionResponse], error) {
	err := connect.NewError(connect.CodeUnavailable, errors.New("unknown"))
	detail, detailErr := connect.NewErrorDetail(
		&seqledgerv1.WriteError{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN})
	if detailErr != nil {
		return nil, detailErr
	}
	err.AddDetail(detail)
	return nil, err
}

// TestSessionOpenUnknown: what settles it is the attempt, and not a sequence.
func TestSessionOpenUnknown(t *testing.T) {
	t.Parallel()
	attempt := strings.Repeat("ab", 16)
	r := seqledger(t, "session", "open", "--scope", "a", "--client-id", "c", "--attempt-id", attempt, "--timeout",
		"100ms",
		"--server", serveHandler(t, openerOfUnknown{})).expect(t, exitUnknown, "may have been opened")
	_, next, _ := strings.Cut(r.stderr, "next:")
	if !strings.Contains(next, "--attempt-id "+attempt) || strings.Contains(next, "--sequence") {
		t.Errorf("want advice to repeat the attempt, got %v", r)
	}
}

// innerWord returns a part of a message that users must not see: words of Go and of libraries,
// or unprintable characters. It returns "" if there is none.
func innerWord(message string) string {
	for _, word := range []string{
		"Go value", "main.", "json:", "proto:", "strconv", "parsing time", "2006-01-02", "time:",
		"slog:", "client:", "server:", "Options.",
		"x509:", "tls:", "app:secret", "\ufffd", "\u00a0", "%!", "nil",
	} {
		if strings.Contains(message, word) {
			return word
		}
	}
	return ""
}
