package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func refusal(code seqledgerv1.WriteErrorCode) *failure.Error { return &failure.Error{Code: code} }

// TestExplainSend goes through the ways in which an import can end early. Each
// has its exit code, says how far it came, and says what to do.
func TestExplainSend(t *testing.T) {
	t.Parallel()
	at := func(err error) error { return &lineError{8, err} }
	unknown := func(cause error) error { return &failure.OutcomeUnknownError{Sequence: 8, Cause: cause} }
	for _, test := range []struct {
		name    string
		unknown bool
		err     error
		code    int
		says    string // in the message or the hint
	}{
		{"changed input", false, errInputChanged, exitFailed, "compare"},
		{"changed input with lines under way", true, errInputChanged, exitUnknown, "compare"},
		{"fenced", false, at(unknown(refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED))),
			exitRefused, "another process writes"},
		{"fenced with lines under way", true,
			at(unknown(refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED))), exitUnknown,
			"another process writes"},
		{"evicted", false, at(unknown(refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED))),
			exitRefused, "evicted"},
		{"evicted with lines under way", true,
			at(unknown(refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED))), exitUnknown, "evicted"},
		{"refused line", false, at(
			&failure.NotExecutedError{Sequence: 8,
				Cause: refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS)}),
			exitRefused,
			"then run the same command again, or put this line, corrected, and the later ones into a new file"},
		{"invalid line", false, at(
			&failure.NotExecutedError{Sequence: 8,
				Cause: refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)}),
			exitRefused,
			"nothing of this line was written; correct it, put this line and the later ones into a new file"},
		{"invalid field", false, at(
			&failure.NotExecutedError{Sequence: 8, Cause: &failure.Error{
				Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, Field: "operations[0].set.key"}}),
			exitRefused, "written; correct operations[0].set.key, put this line and the later ones"},
		{"full queue", false, at(
			&failure.NotExecutedError{Sequence: 8,
				Cause: refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)}),
			exitFailed, "nothing was done; run the same command again later"},
		{"stalled with lines under way", true, at(errStalled), exitUnknown,
			"see that the server at here is running"},
		{"stalled before any", false, at(errStalled), exitFailed, "see that the server at here is running"},
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
		place := importPlace{sent: 7, committed: 7}
		if test.unknown {
			place.sent++
		}
		err := c.explainSend(place, inputSummary{Lines: 20}, test.err)
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
	for _, test := range []struct {
		err  error
		code int
		says string
	}{
		{refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED), exitRefused, "what else writes there"},
		{refusal(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED), exitRefused, "new file"},
		{failure.ErrOtherLedger, exitRefused, "--server of that ledger"},
		{failure.ErrProtocol, exitRefused, "what else writes there"},
		{context.DeadlineExceeded, exitFailed, "is the server running"},
	} {
		cause := fmt.Errorf("opening: %w", test.err)
		err := new(importCommand).explainOpen(cause)
		code, hint := classify(err)
		if code != test.code || !strings.Contains(hint, test.says) || !errors.Is(err, cause) {
			t.Errorf("%v: want exit code %d and %q, got %d, %v, %q", test.err, test.code, test.says, code, err, hint)
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
	input := stopped(t, s, 10)
	n := 0
	must.Await(t, func() bool {
		n++
		// Every command runs a round of eviction; ledger time moves with them.
		s.do(t, "write", "--scope", "acme/main", "--client-id", fmt.Sprint("clock-", n),
			"--append", "tick").expect(t, exitDone)
		return loaderState(t, s, "status") == "CLIENT_STATUS_UNKNOWN"
	}, "the stream's eviction")
	s.do(t, importArgs(input)...).expect(t, exitRefused, "SESSION_EXPIRED", "evicted")
	// Nor is it opened anew behind our back.
	check.Equal(t, loaderState(t, s, "status"), "CLIENT_STATUS_UNKNOWN", "want no new stream: got %v")
}

// importing prepares an import as Run does, of an input whose first pass has read content.
func importing(
	t *testing.T, s *testServer, clientID, content string,
) (*importCommand, *environment, *journal.File, inputSummary) {
	t.Helper()
	c := &importCommand{clientFlags: clientFlags{connectionFlags: connectionFlags{Server: s.address}, Timeout: hangs}}
	c.Scope, c.ClientID, c.File = "acme/main", clientID, "in"
	c.Journal = filepath.Join(t.TempDir(), "journal")
	j := must.Get(c.openJournal())(t)
	t.Cleanup(func() { _ = j.Close() })
	summary := must.Get(surveyInput(t.Context(), strings.NewReader(content), modeLines, ignore))(t)
	return c, &environment{ctx: t.Context(), stderr: io.Discard}, j, summary
}

// TestImportInputChanged changes the input between the two passes: by content, shorter, and by a line.
func TestImportInputChanged(t *testing.T) {
	t.Parallel()
	s := serve(t)
	conn := s.client(t)
	for i, second := range []string{"a\nX\n", "a\n", "a\n\nb", "a\nbb"} {
		c, e, j, input := importing(t, s, fmt.Sprint("loader-", i), "a\nbbb")
		_, err := c.resume(e, conn, j, importPlace{}, input, strings.NewReader(second))
		check.Is(t, err, errInputChanged, "%q: want the change noticed", second)
	}
}

func TestSameImport(t *testing.T) {
	t.Parallel()
	input := inputSummary{Mode: modeLines, SHA256: strings.Repeat("ab", 32), Size: 5, Lines: 2}
	name := journal.Name{Organization: "acme", Vault: "main", ClientID: "c"}
	place := importPlace{name: name, input: &input, sent: 2}
	check.Is(t, place.differs(name, input), nil, "want no difference")
	lines, changed := input, input
	lines.Mode, changed.SHA256 = modeOperations, strings.Repeat("cd", 32)
	evicted := place
	evicted.sent = 0 // the stream began anew
	for what, err := range map[string]error{
		"organization": place.differs(journal.Name{Organization: "other", Vault: "main", ClientID: "c"}, input),
		"vault":        place.differs(journal.Name{Organization: "acme", ClientID: "c"}, input),
		"client":       place.differs(journal.Name{Organization: "acme", Vault: "main", ClientID: "d"}, input),
		"mode":         place.differs(name, lines),
		"digest":       place.differs(name, changed),
		"evicted":      evicted.differs(name, input),
	} {
		if err == nil {
			t.Errorf("%s: want a difference", what)
		}
	}
}

// TestImportErrorNames: the error of a stalled import names no line as stuck, because an earlier one may be, and that
// of a file not the server.
func TestImportErrorNames(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errStalled)
	err := sendError(ctx, 3, &failure.NotExecutedError{Cause: ctx.Err()})
	if !errors.Is(err, errStalled) || strings.Contains(err.Error(), "line") {
		t.Errorf("want the cause and no line, got %v", err)
	}
	c := &importCommand{File: "in"}
	c.Server = "127.0.0.1:7450"
	e := &environment{ctx: t.Context()}
	full := &fs.PathError{Op: "write", Path: "backup", Err: syscall.ENOSPC}
	for _, err := range []error{c.explainSend(importPlace{}, inputSummary{}, errInputChanged), full} {
		if said := c.explain(e, err).Error(); strings.Contains(said, c.Server) {
			t.Errorf("want no server blamed, got %s", said)
		}
	}
	check.Contains(t, c.explain(e, failure.ErrProtocol).Error(), c.Server, "want the server named")
}
