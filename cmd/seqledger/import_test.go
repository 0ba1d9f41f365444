package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
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
	// It says on which ledger, because it may be asked about another.
	seqledger(t, importArgs(input, "--server", "127.0.0.1:1")...).expect(t, exitDone, "on ledger "+s.ledgerID,
		"no server was asked")
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
		{"late expiry", `{"set": {"key": "k", "value": "v", "expires_at": "9999-12-31T23:59:59Z"}}`, "expires_at"},
	} {
		input := writeFile(t, "in", good+"\n"+good+"\n"+test.bad+"\n"+good+"\n")
		s.do(t, importArgs(input)...).expect(t, exitUsage, "line 3", test.says, "nothing was written")
	}
	check.Equal(t, s.do(t, "list", "clients", "--json").stdout, "", "want no stream: got %v")
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

// stopped is an import of lines and a last one that is refused until the entity gate is open. It has been run.
func stopped(t *testing.T, s *testServer, lines int) (input string) {
	t.Helper()
	content := strings.Repeat(`{"append": "line"}`+"\n", lines)
	input = writeFile(t, "in", content+`{"set": {"key": "gate", "value": "x", "condition": {"value_equals": "open"}}}`)
	s.do(t, importArgs(input)...).expect(t, exitRefused, fmt.Sprintf("line %d", lines+1))
	return input
}

// loaderState returns a field of the state of the import's stream.
func loaderState(t *testing.T, s *testServer, field string) string {
	t.Helper()
	r := s.do(t, "state", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
	return fmt.Sprint(r.field(t, field))
}

// TestImportNotTheSame goes through everything that may have changed since an
// import was begun. Each must stop it before it writes.
func TestImportNotTheSame(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := stopped(t, s, 20)
	path := input + ".seqledger-import"
	refused := func(says string, args ...string) {
		t.Helper()
		s.do(t, args...).expect(t, exitRefused, says)
	}
	other := writeFile(t, "other", strings.Repeat(`{"append": "other"}`+"\n", 60))
	refused("input has changed", importArgs(other, "--journal", path)...)

	serve(t).do(t, importArgs(input)...).expect(t, exitRefused, "another ledger", s.ledgerID)
	check.Equal(t, loaderState(t, s, "lastCommittedSequence"), "20", "%s sequences are committed")

	// Another process writes under the import's session.
	s.do(t, "write", "--scope", "acme/main", "--client-id", "loader", "--session", loaderState(t, s, "session"),
		"--append", "x").expect(t, exitDone)
	refused("committed up to sequence 21", importArgs(input)...)

	// Another process takes the stream.
	s = serve(t)
	input = stopped(t, s, 5)
	s.do(t, "session", "open", "--scope", "acme/main", "--client-id", "loader").expect(t, exitDone)
	refused("SESSION_FENCED", importArgs(input)...)

	// A journal of another program.
	streams := []journal.State{{}, {}}
	if _, err := placeOf(streams); err == nil {
		t.Error("a journal of two streams is taken for an import's")
	}
	streams = []journal.State{{Entries: []journal.Entry{{Sequence: 1, Tag: "invoice-7"}}}}
	if _, err := placeOf(streams); err == nil {
		t.Error("a journal with another program's write is taken for an import's")
	}
}

// A journal that was lost, or set back, does not say that its lines are committed.
func TestImportWithoutItsJournal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := numberedLines(t, 20)
	path := input + ".seqledger-import"
	// The journal of an import of which no line was sent.
	s.do(t, importArgs(writeFile(t, "shut", `{"delete": {"key": "k", "condition": {"must_exist": true}}}`),
		"--journal", path)...).expect(t, exitRefused)
	early := must.Get(os.ReadFile(path))(t)
	s.do(t, importArgs(input)...).expect(t, exitDone)
	session := loaderState(t, s, "session")
	for name, setBack := range map[string]func() error{
		"lost":     func() error { return os.Remove(path) },
		"set back": func() error { return os.WriteFile(path, early, 0o600) },
	} {
		must.Do(t, setBack(), "%v", name)
		s.do(t, importArgs(input)...).expect(t, exitRefused, "has 20 writes", "--client-id")
		if now := loaderState(t, s, "session"); now != session || loaderState(t, s, "lastCommittedSequence") != "20" {
			t.Errorf("%s: the stream was changed", name)
		}
	}
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
		must.Do(t, err)
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
	must.Do(t, err)
	seqledger(t, importArgs(input)...).expect(t, exitFailed, "another import")
	must.Do(t, unlock())
	// Nor may another one use its journal.
	j := must.Get(journal.Open(input+".seqledger-import", journal.Options{}))(t)
	defer j.Close()
	seqledger(t, importArgs(input)...).expect(t, exitFailed, "another import", "its own --journal")
}

// importUnderWay starts a server and an import, and lets something happen to them once a part is committed. If the
// import was over too soon for that, it is tried with a longer one.
func importUnderWay(
	t *testing.T, happens func(s *testServer, p *process), args ...string,
) (s *testServer, input string, lines int, p *process) {
	t.Helper()
	for lines = 10_000; ; lines *= 4 {
		s, input = serve(t), numberedLines(t, lines)
		p = start(t, importArgs(input, append(args, "--server", s.address)...)...)
		awaitBlock(t, s, "acme/main")
		happens(s, p)
		if p.wait(t) != exitDone {
			return s, input, lines, p
		}
	}
}

// awaitBlock returns once a scope has a block.
func awaitBlock(t *testing.T, s *testServer, scope string) {
	t.Helper()
	organization, vault, _ := strings.Cut(scope, "/")
	request := &seqledgerv1.WatchRequest{Scope: &seqledgerv1.Scope{Organization: organization, Vault: vault}}
	for _, err := range s.client(t).Watch(t.Context(), request) {
		must.Do(t, err)
		return
	}
}

// TestImportInterrupted expects Ctrl-C to count what is committed, and the next
// run to finish.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	s, input, lines, p := importUnderWay(t, func(_ *testServer, p *process) { _ = p.cmd.Process.Signal(os.Interrupt) })
	if code := p.wait(t); code != exitSignal+2 ||
		!strings.Contains(p.stderr.String(), fmt.Sprintf("of %d lines are committed", lines)) {
		t.Fatalf("want exit code 130 and the number of lines, got %d: %s", code, p.stderr)
	}
	s.do(t, importArgs(input)...).expect(t, exitDone)
	audit(t, s, "acme/main", uint64(lines))
}

// TestImportStalls takes the server away for good.
func TestImportStalls(t *testing.T) {
	t.Parallel()
	s, input, lines, p := importUnderWay(t, func(s *testServer, _ *process) { s.kill() }, "--timeout", "1s")
	if code := p.wait(t); code != exitUnknown || !strings.Contains(p.stderr.String(), "no progress within --timeout") {
		t.Fatalf("want exit code 4 and the reason, got %d: %s", code, p.stderr)
	}
	s = serveOn(t, s.data, s.address)
	s.do(t, importArgs(input)...).expect(t, exitDone)
	audit(t, s, "acme/main", uint64(lines))
}

// TestImportWithAnOlderJournal puts a copy of a journal back after the import went on. The advice must not lead to
// lines that are committed twice: the copy does not say how many are committed.
func TestImportWithAnOlderJournal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := stopped(t, s, 20)
	path := input + ".seqledger-import"
	older := must.Get(os.ReadFile(path))(t)
	s.do(t, "write", "--scope", "acme/main", "--client-id", "porter", "--set", "gate=open").expect(t, exitDone)
	s.do(t, importArgs(input)...).expect(t, exitDone)
	must.Do(t, os.WriteFile(path, older, 0o600))
	s.do(t, importArgs(input)...).expect(t, exitRefused, "the stream is not where the journal left it",
		"do not go by the journal: if it is an older copy", "up to the one that seqledger state shows",
		"import only the lines that are missing")
}

// TestImportJournalCannotBeOpened: a journal is never to be deleted because of an error that does not say that it is
// lost, nor is the input. Nothing is asked of a server before the journal is there.
func TestImportJournalCannotBeOpened(t *testing.T) {
	t.Parallel()
	input, dir := numberedLines(t, 5), t.TempDir()
	linked, inNoPlace := filepath.Join(t.TempDir(), "linked"), filepath.Join(dir, "no", "such")
	dangling, damaged := filepath.Join(t.TempDir(), "dangling"), writeFile(t, "damaged", "no journal")
	must.Do(t, errors.Join(os.Link(input, linked), os.Symlink("/no/such", dangling)))
	const keep = "keep it, because it tells which lines are committed"
	for _, test := range []struct {
		journal string
		code    int
		says    string
	}{
		{input, exitUsage, "is the input: name another path"},
		{linked, exitUsage, "is the input: name another path"},
		{dir, exitUsage, "--journal " + dir + ": is a directory"},
		{inNoPlace, exitUsage, "--journal " + inNoPlace + ": stat " + filepath.Join(dir, "no") + ": no such file"},
		{dangling, exitFailed, keep},
		{damaged, exitFailed, "restore it; if no line was imported, name another path with --journal"},
	} {
		r := seqledger(t, importArgs(input, "--journal", test.journal, "--server", "127.0.0.1:1")...)
		r.expect(t, test.code, test.says, test.journal)
		if strings.Contains(r.stderr, "delete") {
			t.Errorf("%s: want nothing deleted, got %v", test.journal, r)
		}
	}
	check.Equal(t, len(must.Get(os.ReadDir(dir))(t)), 0, "%d files are left behind")
}

// TestImportLeavesNothing: what is wrong before a line is written leaves no journal.
func TestImportLeavesNothing(t *testing.T) {
	t.Parallel()
	good := writeFile(t, "in", `{"append": "x"}`+"\n")
	bad := writeFile(t, "in", `{"append": "x"}`+"\n{\n")
	for _, test := range []struct{ input, id, says string }{
		{bad, "loader", "line 2"},
		{good, "", "--client-id: must have 1 to 256 bytes"},
		{good, strings.Repeat("x", 257), "--client-id: must have 1 to 256 bytes"},
		{good, "ü", "--client-id: byte 0 is not printable ASCII"},
	} {
		mustSay(t, []string{"import", "--scope", "acme/main", "--client-id", test.id, test.input, "--server",
			"127.0.0.1:1", "--timeout", "1ms"}, exitUsage, test.says)
		if left, _ := filepath.Glob(test.input + ".*"); left != nil {
			t.Errorf("%s: left %v", test.says, left)
		}
	}
}
