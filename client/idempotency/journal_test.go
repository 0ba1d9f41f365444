package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// openJournal opens a journal that its test closes.
func openJournal(t *testing.T, dir string, store idempotency.Store) *idempotency.Journal {
	t.Helper()
	j := must.Get(idempotency.OpenJournal(dir, store, nil))(t)
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// filesOf returns the names of the files of a directory with a suffix.
func filesOf(t *testing.T, dir, suffix string) (names []string) {
	t.Helper()
	paths := must.Get(filepath.Glob(filepath.Join(dir, "*"+suffix)))(t)
	for _, path := range paths {
		names = append(names, filepath.Base(path))
	}
	return names
}

// Work that ends after its journal was closed changes nothing in the directory, which may be another process's then.
func TestJournalIsClosed(t *testing.T) {
	t.Parallel()
	dir, down := t.TempDir(), idempotency.NewStore(failingBackend{})
	first := openJournal(t, dir, down)
	must.Do(t, first.Close())
	second := openJournal(t, dir, down)
	must.Do(t, idempotency.AddToJournal(second, doKey(), []byte("of the second")))
	check.Is(t, idempotency.AddToJournal(first, doKey(), []byte("late")), idempotency.ErrJournalClosed,
		"a result after Close")
	files := filesOf(t, dir, ".result")
	must.Equal(t, len(files), 1, "files %q: %v", files)
	if content, err := os.ReadFile(filepath.Join(dir, files[0])); err != nil ||
		!bytes.Contains(content, []byte("b2YgdGhlIHNlY29uZA==")) { // "of the second" in base64
		t.Errorf("the file has %q, %v", content, err)
	}
}

// Two journals never name a file alike, also when the second one knows nothing of the first one's. What versions before
// have named by a number alone is read.
func TestJournalNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	var names []string
	dir, down := t.TempDir(), idempotency.NewStore(failingBackend{})
	for range 2 {
		own := t.TempDir()
		j := openJournal(t, own, down)
		must.Do(t, idempotency.AddToJournal(j, doKey(), nil))
		must.Do(t, j.Close())
		names = append(names, filesOf(t, own, ".result")...)
		must.Do(t, os.Rename(filepath.Join(own, names[len(names)-1]),
			filepath.Join(dir, names[len(names)-1])))
	}
	if len(names) != 2 || names[0] == names[1] {
		t.Fatalf("names %q", names)
	}
	must.Do(t, os.Rename(filepath.Join(dir, names[0]), filepath.Join(dir, "00000000000000000007.result")))
	j := openJournal(t, dir, down)
	if j.Len() != 2 {
		t.Errorf("%d results of %q are read", j.Len(), filesOf(t, dir, ".result"))
	}
	must.Do(t, idempotency.AddToJournal(j, doKey(), nil))
	if after := filesOf(t, dir, ".result"); len(after) != 3 || after[2] < "00000000000000000008" {
		t.Errorf("files %q", after)
	}
}

// What a store refuses for good is kept beside the journal, and offered once.
func TestJournalSetsAside(t *testing.T) {
	t.Parallel()
	own := idempotency.Memory()
	for name, test := range map[string]struct {
		store    idempotency.Store
		response string
		reason   string
	}{
		"of another store":    {idempotency.Memory(), "charged", "LEASE_LOST"},
		"one with a result":   {own, "another", "ALREADY_COMPLETED"},
		"that no store takes": {own, strings.Repeat("x", idempotency.MaxResponse+1), "Response must have at most"},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir, log := filepath.Join(t.TempDir(), "journal"), new(bytes.Buffer)
			owner := idempotency.Ownership{
				Key:       idempotency.RecordKey{Key: strings.ReplaceAll(name, " ", "-")},
				AttemptID: idempotency.NewAttemptID(),
			}
			owned := must.Get(own.Reserve(t.Context(), &idempotency.ReserveRequest{
				Key: owner.Key, AttemptID: owner.AttemptID,
			}))(t)
			owner.Token = owned.Token
			if test.reason == "ALREADY_COMPLETED" {
				must.Get(own.Complete(t.Context(), &owner, idempotency.Result{Response: []byte("x")}))(t)
			}
			calls := 0
			j := must.Get(idempotency.OpenJournal(dir, watchingStore{test.store, func() { calls++ }},
				slog.New(slog.NewTextHandler(log, nil))))(t)
			must.Do(t, idempotency.AddOwned(j, owner, []byte(test.response)))
			pass(time.Hour)
			must.Do(t, j.Close())
			refused := filesOf(t, dir, ".refused")
			if j.Len() != 0 || calls != 1 || len(refused) != 1 || len(filesOf(t, dir, ".result")) != 0 ||
				strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), test.reason) {
				t.Fatalf("%s: %d wait after %d calls, %q are set aside: %s", name, j.Len(), calls, refused, log)
			}
			// The next start leaves it alone, and numbers go on behind it.
			j = openJournal(t, dir, idempotency.NewStore(failingBackend{}))
			must.Do(t, idempotency.AddToJournal(j, doKey(), nil))
			if waiting := filesOf(t, dir, ".result"); j.Len() != 1 || waiting[0] < refused[0] {
				t.Errorf("%s: %q wait, %q are set aside", name, waiting, refused)
			}
			_ = j.Close()
		})
	}
}

// A journal that was opened with the wrong store loses nothing: with its files named as before, the right one has them.
func TestJournalGoesBackToItsStore(t *testing.T) {
	t.Parallel()
	dir, own := t.TempDir(), idempotency.Memory()
	j := openJournal(t, dir, idempotency.NewStore(failingBackend{}))
	key := doKey()
	settings := idempotency.Settings{Journal: j}
	must.Get((idempotency.DoOptions{Settings: settings}).Do(t.Context(), completeFails{own}, key,
		answering("charged", nil)))(t)
	_ = j.Close()
	j = openJournal(t, dir, idempotency.Memory())
	eventually(t, "the result to be set aside", func() bool { return j.Len() == 0 })
	_ = j.Close()
	for _, name := range filesOf(t, dir, ".refused") {
		must.Do(t, os.Rename(filepath.Join(dir, name),
			filepath.Join(dir, strings.TrimSuffix(name, ".refused")+".result")))
	}
	j = openJournal(t, dir, own)
	eventually(t, "the result to be taken", func() bool { return j.Len() == 0 })
	check.Equal(t, string(must.Get(own.Get(t.Context(), &key))(t).Response), "charged")
}

// completeFails is a store that is down when the work is done.
type completeFails struct{ idempotency.Store }

func (completeFails) Complete(
	context.Context, *idempotency.Ownership, idempotency.Result,
) (*idempotency.Answer, error) {
	return nil, errDown
}

// What is set aside is bounded: the oldest goes.
func TestJournalBoundsWhatIsSetAside(t *testing.T) {
	t.Parallel()
	const most = 1024
	dir := t.TempDir()
	for i := range most {
		must.Do(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%020d.refused", i)), nil, 0o600))
	}
	j := openJournal(t, dir, idempotency.Memory())
	must.Do(t, idempotency.AddToJournal(j, doKey(), nil))
	eventually(t, "the result to be set aside", func() bool { return j.Len() == 0 })
	_ = j.Close()
	files := filesOf(t, dir, ".refused")
	if len(files) != most || !strings.HasPrefix(files[0], "00000000000000000001") ||
		!strings.HasPrefix(files[most-1], "00000000000000001024-") {
		t.Errorf("%d files, from %s to %s", len(files), files[0], files[len(files)-1])
	}
}
