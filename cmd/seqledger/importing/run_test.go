package importing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// connected serves a ledger until the test ends.
func connected(t *testing.T) *client.Client {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	l, err := ledger.Open(t.Context(), ledger.Options{Dir: t.TempDir(), Logger: quiet, LogBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s, err := server.New(server.Options{Ledger: l, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(s.Handler())
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetHTTP1(true)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	t.Cleanup(h.Close)
	c, err := client.New(client.Options{Server: h.URL, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var scope = &seqledgerv1.Scope{Organization: "acme"}

// beginRun begins to import content, of which the ledger has the first committed lines.
func beginRun(t *testing.T, c *client.Client, content, mode string, committed uint64) (*Run, *[]uint64) {
	t.Helper()
	w, err := writer.Open(t.Context(), c, writer.Options{Scope: scope, ClientID: "loader", NoReopen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close(t.Context()) })
	summary, err := Survey(t.Context(), strings.NewReader(content), mode, nil)
	if err != nil {
		t.Fatal(err)
	}
	told := new([]uint64)
	return &Run{
		Writer: w, Timeout: time.Hour, Committed: committed,
		Progress: func(line uint64) { *told = append(*told, line) },
		State: &State{
			Format: Format, Mode: mode, Summary: summary, Base: w.State().NextSequence - 1 - committed,
		},
	}, told
}

// payloads returns what the ledger has appended, in order.
func payloads(t *testing.T, c *client.Client, blocks int) (texts []string) {
	t.Helper()
	for height := range blocks {
		block, err := c.GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{Scope: scope, Height: uint64(height) + 1})
		if errors.Is(err, failure.ErrNotFound) {
			return texts
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, transaction := range block.GetTransactions() {
			for _, op := range transaction.GetOperations() {
				texts = append(texts, string(op.GetAppend().GetPayload()))
			}
		}
	}
	return texts
}

// TestRunGoesOn: a run sends what is behind the committed lines, each line once and in order, and
// tells of each.
func TestRunGoesOn(t *testing.T) {
	t.Parallel()
	c := connected(t)
	content := "one\ntwo\nthree\n"
	r, told := beginRun(t, c, content[:8], ModeLines, 0)
	if err := r.Send(t.Context(), strings.NewReader(content[:8])); err != nil || r.Committed != 2 ||
		!slices.Equal(*told, []uint64{1, 2}) {
		t.Fatalf("%d lines, told of %v, %v", r.Committed, *told, err)
	}
	if err := r.Writer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The next run begins with the line that the first one has not seen.
	r, told = beginRun(t, c, content, ModeLines, 2)
	if err := r.Send(t.Context(), strings.NewReader(content+"four\n")); err != nil || r.Committed != 3 ||
		!slices.Equal(*told, []uint64{3}) {
		t.Fatalf("%d lines, told of %v, %v", r.Committed, *told, err)
	}
	if got := payloads(t, c, 10); !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("the ledger has %q", got)
	}
}

// TestRunStopsAtARefusal: the line that is refused is named, nothing behind it is committed, and
// what is before it is.
func TestRunStopsAtARefusal(t *testing.T) {
	t.Parallel()
	c := connected(t)
	content := `{"append":"one"}` + "\n" +
		`{"set":{"key":"k","value":"v","condition":{"must_exist":true}}}` + "\n" + `{"append":"three"}` + "\n"
	r, told := beginRun(t, c, content, ModeOperations, 0)
	err := r.Send(t.Context(), strings.NewReader(content))
	bad, ok := errors.AsType[*LineError](err)
	if !ok || bad.Line != 2 || !errors.Is(err, failure.ErrNotExecuted) || !errors.Is(err, failure.ErrConditionFailed) {
		t.Errorf("got %v, want the refusal of line 2", err)
	}
	if r.Committed != 1 || r.Unknown || !slices.Equal(*told, []uint64{1}) {
		t.Errorf("%d lines are committed, unknown %t, told of %v", r.Committed, r.Unknown, *told)
	}
	if got := payloads(t, c, 10); !slices.Equal(got, []string{"one"}) {
		t.Errorf("the ledger has %q", got)
	}
}

// TestRunNoticesAnotherInput: what differs from the first pass ends the import, whether it is longer
// by a line, shorter, or of other words.
func TestRunNoticesAnotherInput(t *testing.T) {
	t.Parallel()
	for i, second := range []string{"a\nb\n\n", "a\n", "a\nX\n", "a\nbb"} {
		c := connected(t)
		r, _ := beginRun(t, c, "a\nbbb", ModeLines, 0)
		if err := r.Send(t.Context(), strings.NewReader(second)); !errors.Is(err, ErrInputChanged) {
			t.Errorf("%d: got %v for %q", i, err, second)
		}
	}
}

// TestSurveyNamesTheLine: a bad line is found before anything is written, and a survey that is
// interrupted says why.
func TestSurveyNamesTheLine(t *testing.T) {
	t.Parallel()
	look := func(uint64, []*seqledgerv1.Operation) {}
	for content, line := range map[string]uint64{
		"{\"append\":\"a\"}\n\n": 2, "[]\n": 1, "{\"append\":\"a\"}\n{\"append\":\"a\"}\n{}": 3,
	} {
		_, err := Survey(t.Context(), strings.NewReader(content), ModeOperations, look)
		bad, ok := errors.AsType[*LineError](err)
		if !ok || bad.Line != line || !strings.HasPrefix(err.Error(), fmt.Sprintf("line %d: ", line)) {
			t.Errorf("%q: got %v, want line %d", content, err, line)
		}
		// Lines that an earlier run has checked are not checked again.
		if _, err := Survey(t.Context(), strings.NewReader(content), ModeOperations, nil); err != nil {
			t.Errorf("%q: unchecked: %v", content, err)
		}
	}
	_, err := Survey(t.Context(), strings.NewReader(strings.Repeat("x", 1<<20+1)), ModeLines, look)
	if bad, ok := errors.AsType[*LineError](err); !ok || bad.Line != 1 {
		t.Errorf("a line that is larger than a value: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupt := errors.New("an operator")
	cancel(interrupt)
	_, err = Survey(ctx, strings.NewReader(strings.Repeat("x\n", 2048)), ModeLines, look)
	if !errors.Is(err, interrupt) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestLockIsForOne: a second import is refused while the first has the lock, and not after it.
func TestLockIsForOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.Is(err, ErrInUse) {
		t.Errorf("a second lock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// The file of a holder that was killed is no lock.
	if err := os.WriteFile(path+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if unlock, err = Lock(path); err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if _, err := Lock(filepath.Join(path, "absent", "state")); err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestAttemptIsKept: until its outcome is known, an attempt to open a session is repeated under its
// name, because a second one would fence the first.
func TestAttemptIsKept(t *testing.T) {
	t.Parallel()
	s := new(State)
	first := s.Attempt()
	if len(first) != 16 || !slices.Equal(s.Attempt(), first) {
		t.Errorf("%x, then %x", first, s.Attempt())
	}
	path := filepath.Join(t.TempDir(), "state")
	s.Format = Format
	if err := s.Save(path); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil || !slices.Equal(again.Attempt(), first) {
		t.Errorf("after a kill %+v, %v", again, err)
	}
	if slices.Equal(new(State).Attempt(), first) {
		t.Error("two imports have the same attempt")
	}
}

// TestLoadExplains: what is wrong with a state file is said in terms of the file.
func TestLoadExplains(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	for content, says := range map[string]string{
		`{"format": "1"}`: "format cannot be a string", `[]`: "must be a JSON object",
		`{"base": -1}`:   "base cannot be a",
		`{"format": 1,}`: "is not JSON", `{"format": 1} x`: "something follows its end",
		`{"format": 2}`:                  "has format 2",
		`{"format": 1, "colour": "red"}`: "colour", "": "empty or cut off",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Load(path); s != nil || err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "json:") || strings.Contains(err.Error(), "Go value") {
			t.Errorf("%s: got %+v, %v, want %q", content, s, err, says)
		}
	}
	if _, err := Load(filepath.Dir(path)); err == nil {
		t.Error("a directory is no state file")
	}
}
