package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestEveryCode expects an exit code and a next step for every reason to refuse
// a write that the API knows, so that a new one cannot be forgotten.
func TestEveryCode(t *testing.T) {
	t.Parallel()
	notDecided := map[string]int{"QUEUE_FULL": exitFailed, "NOT_LEADER": exitFailed,
		"DRAINING": exitFailed, "OUTCOME_UNKNOWN": exitUnknown}
	for number, name := range seqledgerv1.WriteErrorCode_name {
		code := seqledgerv1.WriteErrorCode(number)
		short := strings.TrimPrefix(name, "WRITE_ERROR_CODE_")
		if short == "UNSPECIFIED" || short == "PERMISSION_DENIED" {
			continue // one is never sent, the other has no step that a user could take
		}
		want, special := notDecided[short]
		if !special {
			want = exitRefused
		}
		got, hint := classify(fmt.Errorf("wrapped: %w", &failure.Error{Code: code}))
		if got != want || hint == "" {
			t.Errorf("%s: want exit code %d and a next step, got %d and %q", short, want, got, hint)
		}
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
		code int
		hint string
	}{
		{"usage", usage("x"), exitUsage, "--help"},
		{"usage inside", fmt.Errorf("a: %w", usage("x")), exitUsage, "--help"},
		{"own", fail(exitRefused, "do this", "x"), exitRefused, "do this"},
		{"unknown outcome", &failure.OutcomeUnknownError{Sequence: 7, IdempotencyKey: "k",
			Cause: context.DeadlineExceeded},
			exitUnknown, "--sequence 7 --key k"},
		{"unknown outcome without key",
			&failure.OutcomeUnknownError{Sequence: 7, Cause: errors.New("x")}, exitUnknown, "--sequence 7;"},
		{"interrupt", interruptedError{os.Interrupt}, exitFailed, "interrupted"},
		{"timeout", fmt.Errorf("a: %w", context.DeadlineExceeded), exitFailed, "--timeout"},
		{"not found", &failure.Error{ConnectCode: connect.CodeNotFound}, exitRefused, "not found in this scope"},
		{"no leader", &failure.Error{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER}, exitFailed,
			noLeader},
		{"unavailable", &failure.Error{ConnectCode: connect.CodeUnavailable}, exitFailed, "is the server running"},
		{"other program", &failure.Error{ConnectCode: connect.CodeUnimplemented}, exitFailed,
			"seqledger of this version"},
		{"anything", errors.New("x"), exitFailed, ""},
	} {
		code, hint := classify(test.err)
		if code != test.code || !strings.Contains(hint, test.hint) {
			t.Errorf("%s: want exit code %d and %q, got %d and %q", test.name, test.code, test.hint, code, hint)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := report(&out, false, nil); code != exitDone || out.Len() > 0 {
		t.Errorf("want 0 and silence for no error, got %d, %q", code, out.String())
	}
	code := report(&out, false, fmt.Errorf("outer: %w", &failure.Error{
		Code:  seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
		Field: "operations[0].append.payload", Message: "too long",
	}))
	want := "seqledger: outer: INVALID_ARGUMENT (operations[0].append.payload): too long\n" +
		"  next: correct operations[0].append.payload\n"
	if code != exitRefused || out.String() != want {
		t.Errorf("want 3 and\n%sgot %d and\n%s", want, code, out.String())
	}
	out.Reset()
	code = report(&out, true, &failure.Error{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS, Key: "k"})
	var line errorReport
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || code != exitRefused || line.ExitCode != code ||
		line.Code != "KEY_EXISTS" || line.Error == "" || line.Next == "" {
		t.Errorf("with --json: %d, %s (%v)", code, out.String(), err)
	}
}

func TestPlainParseError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`unexpected argument put, did you mean "get"?`:             `unexpected argument put, did you mean "write"?`,
		`unexpected argument get2, did you mean "get"?`:            `unexpected argument get2, did you mean "get"?`,
		`unexpected argument bar, did you mean "tx"?`:              `unexpected argument bar`,
		`unexpected argument zzz`:                                  `unexpected argument zzz`,
		`--timeout: expected string value but got "EOL" (<EOL>)`:   `--timeout: its value is missing`,
		`unexpected argument start, did you mean one of "a", "s"?`: `unexpected argument start, did you mean "serve"?`,
	} {
		check.Equal(t, plainParseError(errors.New(text)).Error(), want, "%s: got %s", text)
	}
}

func TestWithPort(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"localhost": "localhost:7450", "::1": "[::1]:7450", "[::1]": "[::1]:7450", "10.0.0.1": "10.0.0.1:7450",
		"localhost:1": "localhost:1", "[::1]:1": "[::1]:1", "": "", "host/path": "host/path",
	} {
		check.Equal(t, withPort(server), want, "%q: got %q", server)
	}
}

// TestAwaitSignals: the first signal stops, its echo does nothing, a later one
// leaves at once.
func TestAwaitSignals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, done := make(chan os.Signal), make(chan struct{})
		var stopped, left []os.Signal
		// Ends after the signal that makes it leave.
		go awaitSignals(signals, done, func(s os.Signal) { stopped = append(stopped, s) },
			func(s os.Signal) { left = append(left, s) })
		signals <- os.Interrupt
		<-time.After(echoTime - 1)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if len(stopped) != 1 || len(left) != 0 {
			t.Errorf("after the echo: stopped by %v, left for %v", stopped, left)
		}
		<-time.After(1)
		signals <- syscall.SIGTERM
		synctest.Wait()
		if len(stopped) != 1 || len(left) != 1 || left[0] != syscall.SIGTERM {
			t.Errorf("after the second signal: stopped by %v, left for %v", stopped, left)
		}
	})
}

// TestSignalCode: a command that a signal has ended says so in its exit code,
// unless another code says more.
func TestSignalCode(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(interruptedError{syscall.SIGTERM})
	ended, end := context.WithCancel(t.Context())
	end()
	stopped := fail(exitFailed, "", "line 3: %w", context.Cause(interrupted))
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"by SIGTERM", interrupted, stopped, 143},
		{"a cancelled call", interrupted, fmt.Errorf("a: %w", context.Canceled), 143},
		{"another error at the same time", interrupted, errors.New("disk full"), exitFailed},
		{"unknown", interrupted, fail(exitUnknown, "", "%w", context.Canceled), exitUnknown},
		{"done", interrupted, nil, exitDone},
		{"no signal", ended, context.Canceled, exitFailed},
	} {
		if got := signalCode(test.ctx, test.err, report(io.Discard, false, test.err)); got != test.want {
			t.Errorf("%s: want exit code %d, got %d", test.name, test.want, got)
		}
	}
}

// TestReportKeepsPaths: a path that ends like the program's name is a path.
func TestReportKeepsPaths(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	report(&out, false, fmt.Errorf("restore of /backups/ledger.seqledger: %w", &failure.Error{
		ConnectCode: connect.CodeUnavailable, Message: "open seqledger: no\u00a0such\x1bfile",
	}))
	want := "seqledger: restore of /backups/ledger.seqledger: unavailable: open seqledger: no such\ufffdfile\n"
	if got, _, _ := strings.Cut(out.String(), "  next"); got != want {
		t.Errorf("want %q, got %q", want, got)
	}
}

// TestJSONIsStable prints one message many times: protojson alone would vary its
// spaces between builds.
func TestJSONIsStable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	e := &environment{stdout: &out, json: true}
	must.Do(t, e.show(&seqledgerv1.Scope{Organization: "a b", Vault: "c"}, nil))
	check.Equal(t, out.String(), `{"organization":"a b","vault":"c"}`+"\n")
}

// An error of the command line is an object for each spelling of --json that is one of a flag. The test sets the
// environment, so it cannot run in parallel.
func TestWantsJSON(t *testing.T) {
	for text, want := range map[string]bool{"--json": true, "--json=yes": true, "--json=1": true, "--json=no": false} {
		check.Equal(t, wantsJSON([]string{"put", text}), want, text+": %v")
	}
	t.Setenv("SEQLEDGER_JSON", "Yes")
	check.Equal(t, wantsJSON(nil), true, "the variable: %v")
}
