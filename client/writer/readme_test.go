package writer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Books are the application's own.
type Books interface {
	Paid(tag string) bool
	Note(tag string, receipt *seqledgerv1.Receipt) error
}

// What stands between the marks is in docs/clients.md, line by line.

// docs/clients.md: a program that may crash
func pay(ctx context.Context, c *client.Client, path string, books Books) (err error) {
	j, err := journal.Open(path, journal.Options{}) // one file for all Writers of a process
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	w, err := writer.Open(ctx, c, writer.Options{Scope: scope, ClientID: "till-1", Journal: j})
	if err != nil {
		return err // an *UnsettledError lists what is yours to settle
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
	settle := func(p *writer.Pending) error {
		receipt, err := p.Wait(ctx)
		if err == nil {
			err = books.Note(p.Tag(), receipt) // durably, in your own books
		}
		if err == nil {
			err = p.Acknowledge() // only now the journal forgets the write
		}
		return err
	}
	for _, p := range w.Recovered() { // unsettled at a crash: committed before, or sent again now
		if err := settle(p); err != nil {
			return err
		}
	}
	if books.Paid("payment-4711") {
		return nil
	}
	p, err := w.SubmitTagged(ctx, "payment-4711", op.Set("payment/4711", []byte("100")))
	if errors.Is(err, journal.ErrTagInUse) {
		return nil // paid by an earlier run: the journal knows it for 24 hours even if the books do not
	}
	if err != nil {
		return err
	}
	return settle(p)
}

// docs/clients.md: end

// readmeExample returns what stands between the marks in this file.
func readmeExample(t *testing.T) string {
	t.Helper()
	source := must.Get(os.ReadFile("readme_test.go"))(t)
	_, rest, _ := strings.Cut(string(source), "// docs/clients.md: a program that may crash\n")
	example, _, found := strings.Cut(rest, "\n// docs/clients.md: end\n")
	if !found {
		t.Fatal("the marks are gone")
	}
	return example
}

// TestTheReadmeHasTheExample that the tests below run.
func TestTheReadmeHasTheExample(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/clients.md"))(t)
	check.Contains(t, string(page), "```go\n"+readmeExample(t)+"```\n",
		"docs/clients.md does not have this example as it stands:\n%s", readmeExample(t))
}

// notes are records that may lose entries, and fail.
type notes struct {
	forgetful bool
	fail      error
	noted     []string
}

func (n *notes) Paid(tag string) bool { return !n.forgetful && slices.Contains(n.noted, tag) }

func (n *notes) Note(tag string, _ *seqledgerv1.Receipt) error {
	if n.fail == nil {
		n.noted = append(n.noted, tag)
	}
	return n.fail
}

// TestTheReadmesExampleRunTwice pays once, whatever became of the first run, and also when
// the books are lost.
func TestTheReadmesExampleRunTwice(t *testing.T) {
	t.Parallel()
	errKilled := errors.New("killed")
	for name, test := range map[string]struct {
		books notes
		fault fault // that the first copy meets
		noted int
	}{
		"whole":                      {notes{}, faultNone, 1},
		"whole, and the books lost":  {notes{forgetful: true}, faultNone, 1},
		"killed before it was noted": {notes{fail: errKilled}, faultNone, 1},
		"answer lost":                {notes{}, faultLost, 1},
		"never arrived":              {notes{forgetful: true}, faultDrop, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := start(t)
			s.set(func(s *fakeServer) { s.onWrite = first(test.fault) })
			path, books := filepath.Join(t.TempDir(), "till.journal"), &test.books
			for run, want := range []error{books.fail, nil, nil} {
				check.Is(t, pay(t.Context(), c, path, books), want, "run %d ends with", run)
				books.fail = nil
			}
			check.Equal(t, len(s.ledger.history()), 1, "%d payments were made")
			if len(books.noted) != test.noted {
				t.Errorf("noted: %v", books.noted)
			}
		})
	}
}
