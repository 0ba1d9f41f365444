package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// What stands between the marks is in docs/clients.md, line by line.

// docs/clients.md: a transfer
var bank = &seqledgerv1.Scope{Organization: "acme", Vault: "main"}

// pay moves an amount between two accounts: once for each id, however often it is called.
func pay(ctx context.Context, c *client.Client, w *writer.Writer, id, from, to string, amount int64) error {
	payment := fmt.Sprintf("%d from %s to %s", amount, from, to)
	for {
		payer, payerVersion, err1 := balance(ctx, c, from)
		payee, payeeVersion, err2 := balance(ctx, c, to)
		done, err3 := c.GetEntity(ctx, &seqledgerv1.GetEntityRequest{Scope: bank, Key: "payment/" + id})
		switch {
		case err3 == nil && string(done.GetValue()) == payment:
			return nil // an earlier call made it
		case err3 == nil:
			return fmt.Errorf("payment %s is another one: %s", id, done.GetValue())
		case !errors.Is(err3, failure.ErrNotFound) || err1 != nil || err2 != nil:
			return errors.Join(err1, err2, err3)
		case amount <= 0 || from == to || payer < amount:
			return fmt.Errorf("payment %s of %s is refused: the balance is %d", id, payment, payer)
		}
		_, err := w.Write(ctx, // all three operations, or none
			op.Set("payment/"+id, []byte(payment), op.IfAbsent()),
			op.Set("balance/"+from, fmt.Append(nil, payer-amount), op.IfVersion(payerVersion)),
			op.Set("balance/"+to, fmt.Append(nil, payee+amount), op.IfVersion(payeeVersion)))
		switch {
		case errors.Is(err, writer.ErrStopped): // a write before this one was refused
			if err := w.Resume(ctx); err != nil {
				return err
			}
		case !errors.Is(err, failure.ErrConditionFailed):
			return err // nil: paid. Otherwise call again with the same id: it cannot pay twice.
		}
	} // another payment changed a balance first: read again
}

func balance(ctx context.Context, c *client.Client, name string) (amount int64, version uint64, err error) {
	account, err := c.GetEntity(ctx, &seqledgerv1.GetEntityRequest{Scope: bank, Key: "balance/" + name})
	if err == nil {
		amount, err = strconv.ParseInt(string(account.GetValue()), 10, 64)
	}
	return amount, account.GetVersion(), err
}

// docs/clients.md: end

// documentScripts returns what a section of a document has a user type into a shell,
// a script for each block. The path is relative to the project.
func documentScripts(t *testing.T, document, section string) []string {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join("../..", document)))(t)
	_, text, ok := strings.Cut(string(content), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", document, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := regexp.MustCompile("(?m)^```(.*)\n((?:.*\n)*?)```$").FindAllStringSubmatch(text, -1)
	blocks = append(blocks, regexp.MustCompile(`(?m)^()\n((?:    .*\n)+)`).FindAllStringSubmatch(text, -1)...)
	var scripts []string
	for _, block := range blocks {
		language, script := block[1], block[2]
		typed := regexp.MustCompile(`(?m)^ *(seqledger|curl|printf|for|call) `).MatchString(script)
		if typed && slices.Contains([]string{"", "sh", "bash"}, language) {
			scripts = append(scripts, script)
		}
	}
	if len(scripts) == 0 {
		t.Fatalf("%s: the section %q has nothing to type", document, section)
	}
	return scripts
}

// shell runs a script in a directory with the program installed and the server running.
func shell(t *testing.T, dir, address, script string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"), "SEQLEDGER_SERVER="+address)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code says it
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestReadmeStart runs what the README and the section Start of docs/start.md say in a shell, twice. No numbered write
// may happen twice.
func TestReadmeStart(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	dir := t.TempDir()
	s := serveOn(t, filepath.Join(dir, "seqledger-data"), "127.0.0.1:0")
	online, offline := 0, ""
	for range 2 {
		scripts := slices.Concat(
			documentScripts(t, "README.md", "I write a client"), documentScripts(t, "docs/start.md", "Start"))
		for _, script := range scripts {
			if strings.Contains(script, "verify --data") {
				offline = script // with the server stopped
				continue
			}
			script = regexp.MustCompile(`(?m)^go install.*$`).ReplaceAllString(script, "")
			script = strings.ReplaceAll(script, "127.0.0.1:7450", s.address)
			if r := shell(t, dir, s.address, script); r.code != exitDone {
				t.Fatalf("%s\n%v", script, r)
			}
			online++
		}
	}
	if online < 10 || offline == "" {
		t.Errorf("%d blocks were typed, and %q: the test tested too little", online, offline)
	}
	blocks := strings.Count(s.do(t, "list", "blocks", "--scope", "acme/main", "--json").expect(t, exitDone).stdout,
		"\n")
	found := s.do(t, "watch", "--scope", "acme/main", "--json", "--limit", strconv.Itoa(blocks)).expect(t,
		exitDone).stdout
	for _, payload := range []string{"c29sZCBvbmU=", "Zmlyc3Q=", "aGVsbG8="} { // sold one, first, hello
		if n := strings.Count(found, payload); n != 1 {
			t.Errorf("%s is in the ledger %d times: %s", payload, n, found)
		}
	}
	must.Do(t, s.cmd.Process.Signal(os.Interrupt))
	s.wait(t)
	if r := shell(t, dir, s.address, offline); r.code != exitDone || !strings.Contains(r.stdout, "problems       0") {
		t.Errorf("%s\n%v", offline, r)
	}
}

// TestReadmeBackup types what the documents say on backups, auth files and proofs.
func TestReadmeBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t)
	s.do(t, "write", "--scope", "acme/main", "--client-id", "till-7", "--append", "x").expect(t, exitDone)
	places := strings.NewReplacer("/mnt/backup", dir, "/var/lib", dir)
	served := regexp.MustCompile(`(?m)^ *seqledger serve .*$`)
	typed := 0
	for _, place := range []struct{ document, section string }{
		{"docs/backup.md", "Backup and restore"},
		{"docs/security.md", "Who may call"},
		{"docs/concepts.md", "Checking what was committed"},
	} {
		for _, script := range documentScripts(t, place.document, place.section) {
			if strings.Contains(script, "…") || strings.Contains(script, " ID") {
				continue // a place for what the user has
			}
			script = served.ReplaceAllString(places.Replace(script), "")
			if r := shell(t, dir, s.address, script); r.code != exitDone {
				t.Errorf("%s\n%v", script, r)
			}
			typed++
		}
	}
	if typed < 3 {
		t.Errorf("%d blocks were typed", typed)
	}
	serveOn(t, filepath.Join(dir, "seqledger-new"), "127.0.0.1:0", "--auth", filepath.Join(dir, "auth.yaml"))
}

// TestDocumentCalls types what the pages on clients and keys say, twice. A repeat gets the first answer.
func TestDocumentCalls(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"curl", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool, "is not installed")
		}
	}
	s := serve(t)
	for _, place := range []struct {
		document, section string
		first, again      []string // in the output
	}{
		{"docs/clients.md", "On the wire", []string{`"receipt"`}, []string{`"receipt"`, `"replayed"`}},
		{"docs/keys.md", "A write that has a key", []string{`"txId"`, `"replayed"`}, []string{`"txId"`, `"replayed"`}},
		{"docs/keys.md", "Reserve, do it, complete",
			[]string{"RECORD_OUTCOME_ACQUIRED", "RECORD_STATE_COMMITTED", "Y2hhcmdlZA=="},
			[]string{"RECORD_OUTCOME_REPLAY", "RECORD_STATE_COMMITTED"}},
	} {
		for _, script := range documentScripts(t, place.document, place.section) {
			script = strings.ReplaceAll(script, "127.0.0.1:7450", s.address)
			for _, want := range [][]string{place.first, place.again} {
				r := shell(t, t.TempDir(), s.address, script)
				missing := slices.IndexFunc(want, func(part string) bool { return !strings.Contains(r.stdout, part) })
				if r.code != exitDone || missing >= 0 {
					t.Errorf("%s: %s\n%v\nwant %v", place.document, script, r, want)
				}
			}
		}
	}
}

// TestDocumentTransfer runs the transfer of docs/clients.md as it stands there: each payment twice,
// from many callers at once. No payment is made twice and no money appears or is lost.
func TestDocumentTransfer(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/clients.md"))(t)
	source := must.Get(os.ReadFile("readme_test.go"))(t)
	_, example, _ := strings.Cut(string(source), "\n// docs/clients.md: a transfer\n")
	example, _, found := strings.Cut(example, "\n// docs/clients.md: end\n")
	if !found || !strings.Contains(string(page), "```go\n"+example+"```\n") {
		t.Errorf("docs/clients.md does not have this example as it stands:\n%s", example)
	}
	s := serve(t)
	c := must.Get(client.New(client.Options{Server: s.address}))(t)
	t.Cleanup(func() { _ = c.Close() })
	w := must.Get(writer.Open(t.Context(), c, writer.Options{Scope: bank, ClientID: "till-1"}))(t)
	must.Get(w.Write(t.Context(), op.Set("balance/ann", []byte("100"), op.IfAbsent()),
		op.Set("balance/bob", []byte("0"), op.IfAbsent())))(t)
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			check.Is(t, pay(t.Context(), c, w, strconv.Itoa(i/2), "ann", "bob", 7), nil, "payment %d", i/2)
		})
	}
	callers.Wait()
	for name, want := range map[string]int64{"ann": 30, "bob": 70} {
		if amount, _, err := balance(t.Context(), c, name); err != nil || amount != want {
			t.Errorf("%s has %d, want %d: %v", name, amount, want, err)
		}
	}
	if p, err := w.Submit(t.Context(), op.Set("nobody", nil, op.IfPresent())); err != nil {
		t.Fatal(err)
	} else if _, err := p.Wait(t.Context()); !errors.Is(err, failure.ErrConditionFailed) {
		t.Fatal(err)
	}
	must.Do(t, pay(t.Context(), c, w, "behind a refused write", "bob", "ann", 1))
	if err := pay(t.Context(), c, w, "too much", "ann", "bob", 32); err == nil {
		t.Error("more was paid than there was")
	}
	if err := pay(t.Context(), c, w, "3", "ann", "bob", 8); err == nil {
		t.Error("one payment id stands for two payments")
	}
}
