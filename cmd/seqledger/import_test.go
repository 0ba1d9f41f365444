package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/importing"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// importArgs is an import into acme/main by the stream loader.
func importArgs(file string, more ...string) []string {
	return append([]string{"import", "--scope", "acme/main", "--client-id", "loader", file}, more...)
}

func TestImportDoneTwice(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := numberedLines(t, 100)
	s.do(t, importArgs(input)...).expect(t, exitDone, "all 100 lines", "sequences 1 to 100")
	s.do(t, importArgs(input)...).expect(t, exitDone, "already imported")
	again := s.do(t, importArgs(input, "--json")...).expect(t, exitDone)
	if again.field(t, "sent") != "0" || again.field(t, "lines") != "100" || again.stderr != "" {
		t.Errorf("want nothing sent and nothing said but the object, got %v", again)
	}
	audit(t, s, "acme/main", 100)
}

// TestImportBadLine expects nothing written when any line is wrong, and the line
// named.
func TestImportBadLine(t *testing.T) {
	t.Parallel()
	s := serve(t)
	good := `{"append": "x"}`
	for _, test := range []struct{ name, bad, says string }{
		{"blank", "", "blank"},
		{"not JSON", "{", "cut off"},
		{"unknown operation", `{"st": {"key": "a"}}`, "st"},
		{"unknown field", `{"set": {"key": "a", "value": "", "ttl": 5}}`, "ttl"},
		{"named twice", `{"append": "a", "append": "b"}`, "twice"},
		{"empty key", `{"delete": {"key": ""}}`, "key"},
	} {
		input := writeFile(t, "in", good+"\n"+good+"\n"+test.bad+"\n"+good+"\n")
		s.do(t, importArgs(input)...).expect(t, exitUsage, "line 3", test.says, "nothing was written")
		if _, err := os.Stat(input + ".seqledger-import"); err == nil {
			t.Errorf("%s: want no state file", test.name)
		}
	}
	if r := s.do(t, "list", "clients", "--json"); r.stdout != "" {
		t.Errorf("want no stream, got %v", r)
	}
	s.do(t, importArgs(writeFile(t, "empty", ""))...).expect(t, exitDone, "nothing to import")
	s.do(t, importArgs(t.TempDir())...).expect(t, exitUsage, "regular file")
}

// TestImportRefusedLine stops at a failed condition, names the line, and continues once the
// condition holds.
func TestImportRefusedLine(t *testing.T) {
	t.Parallel()
	s := serve(t)
	var b strings.Builder
	for n := range 500 {
		fmt.Fprintf(&b, `{"append": "line %d"}`+"\n", n+1)
	}
	b.WriteString(`{"set": {"key": "gate", "value": "shut", "condition": {"value_equals": "open"}}}` + "\n")
	for n := range 500 {
		fmt.Fprintf(&b, `{"append": "line %d"}`+"\n", n+501)
	}
	input := writeFile(t, "in", b.String())
	s.do(t, importArgs(input)...).expect(t, exitRefused, "line 501", "KEY_NOT_FOUND", "500 of 1001 lines are committed")
	s.do(t, importArgs(input)...).expect(t, exitRefused, "line 501", "500 of 1001 lines are committed")
	s.do(t, "write", "--scope", "acme/main", "--client-id", "porter", "--set", "gate=open").expect(t, exitDone)
	s.do(t, importArgs(input)...).expect(t, exitDone, "sequences 1 to 1001", "this run sent 501")
	s.do(t, "get", "--scope", "acme/main", "gate").expect(t, exitDone, "shut")
}

// TestImportNotTheSame goes through everything that may have changed since an
// import was begun. Each must stop it before it writes.
func TestImportNotTheSame(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := numberedLines(t, 20)
	path := input + ".seqledger-import"
	s.do(t, importArgs(input)...).expect(t, exitDone)
	state, err := importing.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	state.Done = false
	if err := state.Save(path); err != nil {
		t.Fatal(err)
	}
	refused := func(says string, args ...string) {
		t.Helper()
		s.do(t, args...).expect(t, exitRefused, says)
	}
	refused("scope", "import", "--scope", "acme", "--client-id", "loader", input)
	refused("--client-id", "import", "--scope", "acme/main", "--client-id", "other", input)
	refused("read as", importArgs(input, "--append-lines")...)
	refused("input has changed", importArgs(numberedLines(t, 19), "--state-file", path)...)
	other := writeFile(t, "other", strings.Repeat(`{"append": "other"}`+"\n", 50))
	refused("input has changed", importArgs(other, "--state-file", path)...)

	elsewhere := serve(t)
	elsewhere.do(t, importArgs(input)...).expect(t, exitRefused, "ledger "+state.LedgerID)

	// Another process takes the stream, and even writes.
	opened := s.do(t, "session", "open", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
	session := opened.field(t, "state").(map[string]any)["session"].(string)
	refused("SESSION_FENCED", importArgs(input)...)
	refused("SESSION_FENCED", importArgs(input, "--take-session", "1")...)
	s.do(t, importArgs(input, "--take-session", session)...).expect(t, exitDone, "all 20 lines")

	// The same, with a write that is not the import's.
	state, err = importing.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	s.do(t, "write", "--scope", "acme/main", "--client-id", "loader", "--session",
		fmt.Sprint(state.Session), "--append", "x").expect(t, exitDone)
	state.Done = false
	if err := state.Save(path); err != nil {
		t.Fatal(err)
	}
	refused("last sequence is 21", importArgs(input)...)

	if err := os.WriteFile(path, []byte(`{"format": 1, "surprise": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.do(t, importArgs(input)...).expect(t, exitFailed, "state file", "surprise")
}

// A state file that was lost, or set back, does not say that its lines are committed.
func TestImportWithoutItsState(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := numberedLines(t, 20)
	path := input + ".seqledger-import"
	s.do(t, importArgs(input)...).expect(t, exitDone)
	of := func(name string) any {
		t.Helper()
		r := s.do(t, "state", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
		return r.field(t, name)
	}
	session := fmt.Sprint(of("session"))
	for name, setBack := range map[string]func(state *importing.State) error{
		"lost":    func(*importing.State) error { return os.Remove(path) },
		"attempt": func(state *importing.State) error { return state.Save(path) },
	} {
		state, err := importing.Load(path)
		if err == nil {
			state.Done, state.Session, state.AttemptID, state.Base = false, 0, strings.Repeat("ab", 16), 0
			err = setBack(state)
		}
		if err != nil {
			t.Fatal(name, err)
		}
		s.do(t, importArgs(input)...).expect(t, exitRefused, "has 20 writes", "--client-id", "--take-session "+session)
		if of("session") != session || of("lastCommittedSequence") != "20" {
			t.Errorf("%s: the stream was changed: %v, %v", name, of("session"), of("lastCommittedSequence"))
		}
		if err := state.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	more := numberedLines(t, 3)
	s.do(t, importArgs(more, "--take-session", "1")...).expect(t, exitRefused, "SESSION_FENCED")
	s.do(t, importArgs(more, "--take-session", session)...).expect(t, exitDone, "as sequences 21 to 23")
}

// TestImportLines appends a text file unchanged, including blank lines, bytes that are not text
// and a last line without a newline.
func TestImportLines(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := writeFile(t, "app.log", "first\n\n\xff\xfe\r\nlast")
	s.do(t, importArgs(input, "--append-lines")...).expect(t, exitDone, "all 4 lines")
	var got []string
	request := &seqledgerv1.WatchRequest{Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}}
	for block, err := range s.client(t).Watch(t.Context(), request) {
		if err != nil {
			t.Fatal(err)
		}
		for _, tx := range block.GetTransactions() {
			got = append(got, string(tx.GetOperations()[0].GetAppend().GetPayload()))
		}
		if len(got) >= 4 {
			break
		}
	}
	if want := []string{"first", "", "\xff\xfe\r", "last"}; !slices.Equal(got, want) {
		t.Errorf("want the payloads %q, got %q", want, got)
	}
}

// TestImportAlone expects a second import of the same file to wait its turn
// rather than to take the stream from the first.
func TestImportAlone(t *testing.T) {
	t.Parallel()
	input := numberedLines(t, 5)
	_, unlock, err := openInput(input)
	if err != nil {
		t.Fatal(err)
	}
	seqledger(t, importArgs(input)...).expect(t, exitFailed, "another import")
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

// TestImportInterrupted expects Ctrl-C to count what is committed, and the next
// run to finish.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := numberedLines(t, 50_000)
	p := start(t, append(importArgs(input), "--server", s.address)...)
	watch := start(t, "watch", "--server", s.address, "--scope", "acme/main", "--json", "--limit", "1")
	if code := watch.wait(t); code != exitDone {
		t.Fatalf("watch ended with %d", code)
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != exitSignal+2 || !strings.Contains(p.stderr.String(), "of 50000 lines are committed") {
		t.Fatalf("want exit code 130 and the number of lines, got %d: %s", code, p.stderr.String())
	}
	s.do(t, importArgs(input)...).expect(t, exitDone)
	audit(t, s, "acme/main", 50_000)
}

// TestImportStalls takes the server away for good.
func TestImportStalls(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := numberedLines(t, 50_000)
	p := start(t, append(importArgs(input), "--server", s.address, "--timeout", "1s")...)
	watch := start(t, "watch", "--server", s.address, "--scope", "acme/main", "--json", "--limit", "1")
	if code := watch.wait(t); code != exitDone {
		t.Fatalf("watch ended with %d", code)
	}
	s.kill()
	if code := p.wait(t); code != exitUnknown || !strings.Contains(p.stderr.String(), "no progress within --timeout") {
		t.Fatalf("want exit code 4 and the reason, got %d: %s", code, p.stderr.String())
	}
	s = serveOn(t, s.data, s.address)
	s.do(t, importArgs(input)...).expect(t, exitDone)
	audit(t, s, "acme/main", 50_000)
}
