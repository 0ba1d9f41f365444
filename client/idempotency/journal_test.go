package idempotency_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
)

// openJournal opens a journal that its test closes.
func openJournal(t *testing.T, dir string, store idempotency.Store) *idempotency.Journal {
	t.Helper()
	j, err := idempotency.OpenJournal(dir, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// filesOf returns the names of the files of a directory with a suffix.
func filesOf(t *testing.T, dir, suffix string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
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
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := openJournal(t, dir, down)
	if err := idempotency.AddToJournal(second, doKey(), []byte("of the second")); err != nil {
		t.Fatal(err)
	}
	if err := idempotency.AddToJournal(first, doKey(), []byte("late")); !errors.Is(err, idempotency.ErrJournalClosed) {
		t.Errorf("a result after Close: %v", err)
	}
	files := filesOf(t, dir, ".result")
	if len(files) != 1 {
		t.Fatalf("files %q", files)
	}
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
		if err := idempotency.AddToJournal(j, doKey(), nil); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		names = append(names, filesOf(t, own, ".result")...)
		if err := os.Rename(filepath.Join(own, names[len(names)-1]),
			filepath.Join(dir, names[len(names)-1])); err != nil {
			t.Fatal(err)
		}
	}
	if len(names) != 2 || names[0] == names[1] {
		t.Fatalf("names %q", names)
	}
	if err := os.Rename(filepath.Join(dir, names[0]), filepath.Join(dir, "00000000000000000007.result")); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, dir, down)
	if j.Len() != 2 {
		t.Errorf("%d results of %q are read", j.Len(), filesOf(t, dir, ".result"))
	}
	if err := idempotency.AddToJournal(j, doKey(), nil); err != nil {
		t.Fatal(err)
	}
	if after := filesOf(t, dir, ".result"); len(after) != 3 || after[2] < "00000000000000000008" {
		t.Errorf("files %q", after)
	}
}
