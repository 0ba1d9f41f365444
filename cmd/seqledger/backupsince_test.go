package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// largeLines writes a file for import of so many lines of 500 KB, after which a block file of 64 MiB is sealed.
func largeLines(t *testing.T, lines int) string {
	t.Helper()
	var b strings.Builder
	for n := range lines {
		fmt.Fprintf(&b, "{\"append\": \"%d %s\"}\n", n, strings.Repeat("v", 500_000))
	}
	return writeFile(t, "large.ndjson", b.String())
}

// TestBackupChainProcesses goes the whole way with real processes: a full backup, two since it, kill -9 of the server,
// a restore of the three, and a server on what was restored.
func TestBackupChainProcesses(t *testing.T) {
	t.Parallel()
	s := serve(t)
	large := !testing.Short()
	if large {
		s.do(t, "import", "--scope", "acme/large", "--client-id", "large", largeLines(t, 140)).expect(t, exitDone)
	}
	write := func(s *testServer, text string) string {
		t.Helper()
		return s.do(t, "write", "--scope", "acme/main", "--client-id", "till", "--json", "--append", text).
			expect(t, exitDone).field(t, "txId").(string)
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	first := write(s, "one")
	full := s.do(t, "backup", path("full"), "--json").expect(t, exitDone)
	second := write(s, "two")
	monday := s.do(t, "backup", "--since", path("full"), path("monday"), "--json").expect(t, exitDone)
	if monday.field(t, "sinceIndex") != full.field(t, "index") {
		t.Errorf("made since %v, want %v", monday, full)
	}
	third := write(s, "three")
	s.do(t, "backup", "--since", path("monday"), path("tuesday")).expect(t, exitDone, "since the backup of index "+
		monday.field(t, "index").(string))
	lost := write(s, "four")
	s.kill()
	if size := sizeOf(t, path("monday")); large && size > sizeOf(t, path("full"))/4 {
		t.Errorf("the incremental backup has %d bytes, and the full one %d", size, sizeOf(t, path("full")))
	}

	chain := []string{path("full"), path("monday"), path("tuesday")}
	seqledger(t, "verify", "--backup", chain[0], "--backup", chain[1], "--backup", chain[2]).
		expect(t, exitDone, "problems       0")
	data := path("restored")
	seqledger(t, "restore", chain[0], chain[1], chain[2], "--data", data).expect(t, exitDone, "it goes on as ledger")
	seqledger(t, "verify", "--data", data).expect(t, exitDone, "problems       0")
	r := serveOn(t, data, s.address)
	for text, tx := range map[string]string{"one": first, "two": second, "three": third} {
		r.do(t, "tx", tx).expect(t, exitDone, text)
	}
	r.do(t, "tx", lost).expect(t, exitRefused)
	// The restored ledger is of another epoch: its chain begins with a full backup.
	r.do(t, "backup", "--since", path("tuesday"), path("wednesday")).
		expect(t, exitFailed, "the epoch before a restore", "make a full backup")
	r.do(t, "backup", path("wednesday")).expect(t, exitDone)
	write(r, "five")
	r.do(t, "backup", "--since", path("wednesday"), "-").expect(t, exitDone)
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info := must.Get(os.Stat(path))(t)
	return info.Size()
}

// Backups that do not go together are refused with what to do, and nothing is made of them.
func TestBackupChainRefusals(t *testing.T) {
	t.Parallel()
	s, other := serve(t), serve(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	s.do(t, "backup", path("full")).expect(t, exitDone)
	s.do(t, "backup", "--since", path("full"), path("monday")).expect(t, exitDone)
	s.do(t, "backup", "--since", path("monday"), path("tuesday")).expect(t, exitDone)
	other.do(t, "backup", path("other")).expect(t, exitDone)

	made := path("made")
	s.do(t, "backup", "--since", path("other"), made).
		expect(t, exitFailed, "it is of ledger "+other.ledgerID, "make a full backup")
	s.do(t, "backup", "--since", path("none"), made).expect(t, exitUsage, path("none"))
	s.do(t, "backup", "--since", writeFile(t, "letter", "dear reader"), made).
		expect(t, exitFailed, "does not begin like a backup", "without --since")
	s.do(t, "backup", "--since", "-", made).expect(t, exitUsage, "standard input")

	for _, test := range []struct {
		files []string
		want  []string
	}{
		{[]string{"monday"}, []string{"one is missing", path("monday"), "name the full backup first"}},
		{[]string{"full", "tuesday"}, []string{"one is missing", path("tuesday") + " was made since a backup"}},
		{[]string{"full", "tuesday", "monday"}, []string{"not in order", path("tuesday") + " was made since " +
			path("monday")}},
		{[]string{"other", "monday"}, []string{"is of ledger " + other.ledgerID}},
		{[]string{"full", "full"}, []string{"are the same backup"}},
	} {
		args, check := []string{"restore", "--data", made}, []string{"verify"}
		for _, name := range test.files {
			args, check = append(args, path(name)), append(check, "--backup", path(name))
		}
		seqledger(t, args...).expect(t, exitFailed, test.want...)
		seqledger(t, check...).expect(t, exitFailed, test.want...)
	}
	seqledger(t, "restore", path("full"), "-", "--data", made).expect(t, exitUsage, "standard input")
	seqledger(t, "restore", path("full"), path("none"), "--data", made).expect(t, exitUsage, path("none"))
	if left, _ := filepath.Glob(made + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	piped := must.Get(os.ReadFile(path("monday")))(t)
	seqledgerInput(t, string(piped), "restore", "-", "--data", made).
		expect(t, exitFailed, "it is incremental", "seqledger restore FULL NEXT")
}
