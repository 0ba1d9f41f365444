package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/cmd/seqledger/importing"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func refusal(code seqledgerv1.WriteErrorCode) *failure.Error { return &failure.Error{Code: code} }

// TestExplainSend goes through the ways in which an import can end early. Each
// has its exit code, says how far it came, and says what to do.
func TestExplainSend(t *testing.T) {
	t.Parallel()
	at := func(err error) error { return &importing.LineError{Line: 8, Err: err} }
	unknown := func(cause error) error { return &failure.OutcomeUnknownError{Sequence: 8, Cause: cause} }
	for _, test := range []struct {
		name    string
		unknown bool
		err     error
		code    int
		says    string // in the message or the hint
	}{
		{"changed input", false, importing.ErrInputChanged, exitFailed, "compare"},
		{"fenced", true, at(unknown(refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED))),
			exitRefused, "another process writes"},
		{"evicted", true, at(unknown(refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED))),
			exitRefused,
			"evicted"},
		{"refused line", false, at(
			&failure.NotExecutedError{Sequence: 8,
				Cause: refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS)}),
			exitRefused,
			"then run the same command again, or put this line, corrected, and those behind it into a new file"},
		{"invalid line", false, at(
			&failure.NotExecutedError{Sequence: 8,
				Cause: refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)}),
			exitRefused,
			"nothing of this line was written; correct it, put this line and those behind it into a new file"},
		{"invalid field", false, at(
			&failure.NotExecutedError{Sequence: 8, Cause: &failure.Error{
				Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, Field: "operations[0].set.key"}}),
			exitRefused, "written; correct operations[0].set.key, put this line and those behind it"},
		{"full queue", false, at(
			&failure.NotExecutedError{Sequence: 8,
				Cause: refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)}),
			exitFailed, "nothing was done; run the same command again later"},
		{"stalled with lines under way", true, at(importing.ErrStalled), exitUnknown,
			"see that the server at here is running"},
		{"stalled before any", false, at(importing.ErrStalled), exitFailed, "see that the server at here is running"},
		{"interrupted", false, at(interruptedError{}), exitFailed, "run the same command again"},
		{"interrupted with lines under way", true, at(interruptedError{}), exitFailed, "run the same command again"},
		{"turned away", true, at(unknown(&failure.Error{ConnectCode: connect.CodeUnimplemented})),
			exitUnknown, "run the same command again"},
	} {
		if i, ok := errors.AsType[interruptedError](test.err); ok {
			i.signal = testSignal{}
			test.err = at(i)
		}
		c := importCommand{File: "in.ndjson",
			clientFlags: clientFlags{connectionFlags: connectionFlags{Server: "here"}}}
		run := &importing.Run{State: &importing.State{Summary: importing.Summary{Lines: 20}}, Committed: 7,
			Unknown: test.unknown}
		err := c.explainSend(run, test.err)
		code, hint := classify(err)
		if code != test.code || !strings.Contains(err.Error()+hint, test.says) {
			t.Errorf("%s: want exit code %d and %q, got %d, %v, %q", test.name, test.code, test.says, code, err, hint)
		}
		if !strings.Contains(err.Error(), "7 of 20 lines are committed") ||
			!strings.Contains(err.Error(), "in.ndjson") {
			t.Errorf("%s: want the file and how far it came, got %v", test.name, err)
		}
	}
}

// testSignal stands for any signal.
type testSignal struct{}

func (testSignal) String() string { return "test" }
func (testSignal) Signal()        {}

func TestExplainOpen(t *testing.T) {
	t.Parallel()
	fenced := fmt.Errorf("opening: %w", refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED))
	expired := fmt.Errorf("opening: %w", refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED))
	for _, test := range []struct {
		name    string
		session uint64
		err     error
		code    int
		says    string
	}{
		{"fenced before any line", 0, fenced, exitRefused, "delete state"},
		{"fenced later", 5, fenced, exitRefused, "--take-session"},
		{"evicted", 5, expired, exitRefused, "new file"},
		{"no server", 5, context.DeadlineExceeded, exitFailed, "is the server running"},
	} {
		c := importCommand{StateFile: "state"}
		err := c.explainOpen(&importing.State{Session: test.session}, test.err)
		code, hint := classify(err)
		if code != test.code || !strings.Contains(hint, test.says) || !errors.Is(err, test.err) {
			t.Errorf("%s: want exit code %d and %q, got %d, %v, %q", test.name, test.code, test.says, code, err, hint)
		}
	}
}

// TestImportEvicted lets the stream of a half-done import be evicted. Its
// sequences then say nothing about the lines any more, so that going on could
// write a line twice.
func TestImportEvicted(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.do(t, "config", "set", "client_ttl", "1s").expect(t, exitDone)
	s.do(t, "config", "set", "eviction_interval", "1").expect(t, exitDone)
	input := numberedLines(t, 10)
	s.do(t, importArgs(input)...).expect(t, exitDone)
	path := input + ".seqledger-import"
	state, err := importing.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	state.Done = false
	if err := state.Save(path); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(hangs)
	for n := 0; ; n++ {
		// Every command runs a round of eviction; ledger time moves with them.
		s.do(t, "write", "--scope", "acme/main", "--client-id", fmt.Sprint("clock-", n),
			"--append", "tick").expect(t, exitDone)
		r := s.do(t, "state", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
		if r.field(t, "status") == "CLIENT_STATUS_UNKNOWN" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the stream is not evicted: %v", r)
		}
	}
	s.do(t, importArgs(input)...).expect(t, exitRefused, "SESSION_EXPIRED", "evicted")
	// Nor is it opened anew behind our back.
	r := s.do(t, "state", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
	if r.field(t, "status") != "CLIENT_STATUS_UNKNOWN" {
		t.Errorf("want no new stream, got %v", r)
	}
}

// TestImportInputChanged changes the input between the two passes, by way of
// the state: the digest there is what the first pass would have read.
func TestImportInputChanged(t *testing.T) {
	t.Parallel()
	s := serve(t)
	conn := s.client(t)
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	first := "{\"append\": \"1\"}\n{\"append\": \"2\"}\n"
	summary, err := importing.Survey(t.Context(), strings.NewReader(first), importing.ModeOperations, ignore)
	if err != nil {
		t.Fatal(err)
	}
	for i, second := range []string{
		"{\"append\": \"1\"}\n{\"append\": \"X\"}\n", // another content
		"{\"append\": \"1\"}\n",                      // shorter
	} {
		c := importCommand{File: "in", StateFile: writeFile(t, "state", ""),
			clientFlags: clientFlags{connectionFlags: connectionFlags{Server: s.address}, Timeout: hangs}}
		c.ClientID = fmt.Sprint("loader-", i)
		state := begunImport(c.ClientID, importing.ModeOperations, summary)
		var stderr lockedBuffer
		e := &environment{ctx: t.Context(), stderr: &stderr}
		_, err := c.resume(e, conn, scope, state, strings.NewReader(second))
		if !errors.Is(err, importing.ErrInputChanged) {
			t.Errorf("%q after %q: want the change noticed, got %v", second, first, err)
		}
		if saved, err := importing.Load(c.StateFile); err != nil || saved.Done {
			t.Errorf("%q: want the import not done, got %+v, %v", second, saved, err)
		}
	}
}

func TestSameImport(t *testing.T) {
	t.Parallel()
	input := importing.Summary{SHA256: strings.Repeat("ab", 32), Size: 5, Lines: 2}
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	state := &importing.State{Organization: "acme", Vault: "main", ClientID: "c", Mode: importing.ModeLines,
		Summary: input}
	if err := sameImport(state, scope, "c", importing.ModeLines, input); err != nil {
		t.Errorf("want no difference, got %v", err)
	}
	changed := input
	changed.SHA256 = strings.Repeat("cd", 32)
	for name, err := range map[string]error{
		"organization": sameImport(state, &seqledgerv1.Scope{Organization: "other", Vault: "main"}, "c",
			importing.ModeLines, input),
		"vault":  sameImport(state, &seqledgerv1.Scope{Organization: "acme"}, "c", importing.ModeLines, input),
		"client": sameImport(state, scope, "d", importing.ModeLines, input),
		"mode":   sameImport(state, scope, "c", importing.ModeOperations, input),
		"digest": sameImport(state, scope, "c", importing.ModeLines, changed),
	} {
		if err == nil {
			t.Errorf("%s: want a difference", name)
		}
	}
}
