package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/importing"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// appendTo acts as another program that keeps writing to a file.
func appendTo(t *testing.T, path, content string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
}

// ignore looks at no line.
func ignore(uint64, []*seqledgerv1.Operation) {}

// begunImport is the state of an import that has not opened a session.
func begunImport(clientID, mode string, summary importing.Summary) *importing.State {
	return &importing.State{Format: importing.Format, ClientID: clientID, Mode: mode, Summary: summary}
}

// reopen makes a finished import an unfinished one.
func reopen(t *testing.T, path string) {
	t.Helper()
	state, err := importing.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	state.Done = false
	if err := state.Save(path); err != nil {
		t.Fatal(err)
	}
}

// TestImportGrowingFile imports a log that is written to all the while. The
// import is what was there when it began, and the rest must not stop it.
func TestImportGrowingFile(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := writeFile(t, "app.log", "first\nsec")
	args := importArgs(input, "--append-lines")
	r := s.do(t, args...).expect(t, exitDone, "all 2 lines")
	if r.stderr != "" {
		t.Errorf("want nothing said about a file that has not grown, got %v", r)
	}
	appendTo(t, input, "ond\nthird\n")
	grown := []string{"has grown by 10 bytes", "only its first 9 bytes",
		"tail -c +10 " + input, "line 2 was imported without its end"}
	s.do(t, args...).expect(t, exitDone, append(grown, "already imported: all 2 lines")...)
	reopen(t, input+".seqledger-import")
	s.do(t, args...).expect(t, exitDone, grown...)
	last := s.do(t, "state", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
	if got := last.field(t, "lastCommittedSequence"); got != "2" {
		t.Errorf("want the two lines once, got sequence %v", got)
	}
	if err := os.Truncate(input, 4); err != nil {
		t.Fatal(err)
	}
	r = s.do(t, args...).expect(t, exitRefused, "input has changed", "a second time")
	if strings.Contains(r.stderr, "--state-file") {
		t.Errorf("another state file would write every line again, and must not be proposed: %v", r)
	}
}

// TestImportGrowsBetweenPasses: what the first pass has not seen is not sent.
func TestImportGrowsBetweenPasses(t *testing.T) {
	t.Parallel()
	s := serve(t)
	begun := "first\nsec" // a line is being written
	summary, err := importing.Survey(t.Context(), strings.NewReader(begun), importing.ModeLines, ignore)
	if err != nil {
		t.Fatal(err)
	}
	c := importCommand{File: "in", StateFile: writeFile(t, "state", ""),
		clientFlags: clientFlags{connectionFlags: connectionFlags{Server: s.address}, Timeout: hangs}}
	c.ClientID = "loader"
	state := begunImport(c.ClientID, importing.ModeLines, summary)
	e := &environment{ctx: t.Context(), stderr: new(lockedBuffer)}
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	sent, err := c.resume(e, s.client(t), scope, state, strings.NewReader(begun+"ond\nthird\n"))
	if err != nil || sent != 2 || !state.Done {
		t.Errorf("want 2 lines and the import done, got %d, %+v, %v", sent, state, err)
	}
}

// TestImportResumesSlowly: passing over the committed lines may take longer
// than --timeout, which is about the server. Otherwise a large import could
// never be resumed.
func TestImportResumesSlowly(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := importCommand{File: "in", StateFile: writeFile(t, "state", ""),
		clientFlags: clientFlags{connectionFlags: connectionFlags{Server: s.address}, Timeout: 2 * time.Second}}
	c.ClientID = "loader"
	e := &environment{ctx: t.Context(), stderr: new(lockedBuffer)}
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	conn := s.client(t)
	state := &importing.State{Format: importing.Format, ClientID: c.ClientID, Mode: importing.ModeLines}
	content := ""
	for n := range 2 {
		content += fmt.Sprintln("line", n)
		summary, err := importing.Survey(t.Context(), strings.NewReader(content), importing.ModeLines, ignore)
		if err != nil {
			t.Fatal(err)
		}
		// The second import has one line more than what is committed.
		state.Summary = summary
		input := &hookReader{content: strings.NewReader(content)}
		if n == 1 {
			input.hook = func() { <-time.After(c.Timeout + c.Timeout/4) }
		}
		if sent, err := c.resume(e, conn, scope, state, input); err != nil || sent != 1 {
			t.Fatalf("pass %d: want one line sent, got %d, %v", n, sent, err)
		}
	}
}

// TestImportStateAlone: two imports with one state file would overwrite each other's state.
func TestImportStateAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	unlock, err := importing.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	seqledger(t, importArgs(numberedLines(t, 5), "--state-file", path)...).expect(t, exitFailed,
		"another import is using the state file")
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("want nothing left behind, got %v, %v", left, err)
	}
	// A lock file that a killed import left behind does not block others.
	if err := os.WriteFile(path+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unlock, err = importing.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

// hookReader calls a function before the first byte.
type hookReader struct {
	content *strings.Reader
	hook    func()
}

func (r *hookReader) Read(p []byte) (int, error) {
	if r.hook != nil {
		r.hook()
		r.hook = nil
	}
	return r.content.Read(p)
}

// TestImportStallsAtOnce: a server that goes away before the first line must
// end the import too, although there was no progress to wait for another of.
func TestImportStallsAtOnce(t *testing.T) {
	t.Parallel()
	s := serve(t)
	content := "line\n"
	summary, err := importing.Survey(t.Context(), strings.NewReader(content), importing.ModeLines, ignore)
	if err != nil {
		t.Fatal(err)
	}
	c := importCommand{File: "in", StateFile: writeFile(t, "state", ""),
		clientFlags: clientFlags{connectionFlags: connectionFlags{Server: s.address}, Timeout: 2 * time.Second}}
	c.ClientID = "loader"
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	e := &environment{ctx: ctx, stderr: new(lockedBuffer)}
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	state := begunImport(c.ClientID, importing.ModeLines, summary)
	_, err = c.resume(e, s.client(t), scope, state, &hookReader{strings.NewReader(content), s.kill})
	if !errors.Is(err, importing.ErrStalled) {
		t.Errorf("want no progress within --timeout, got %v", err)
	}
}
