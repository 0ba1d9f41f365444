package datadir

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// What a steadyWriter writes is in the file as it was given, nothing much of it waits for a sync, and a file that takes
// nothing is an error.
func TestSteadyWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	f := must.Get(os.Create(path))(t)
	w := &steadyWriter{file: f}
	var want []byte
	for i := range 40 {
		piece := bytes.Repeat([]byte{byte(i)}, 100_000)
		want = append(want, piece...)
		n, err := w.Write(piece)
		if n != len(piece) || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if w.unsynced >= steadyBytes {
			t.Fatalf("%d bytes wait for a sync", w.unsynced)
		}
	}
	if synced := len(want) - w.unsynced; synced < 3*steadyBytes {
		t.Errorf("only %d of %d bytes were synced", synced, len(want))
	}
	must.Do(t, f.Close())
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
	}
	if n, err := w.Write(want); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed file took %d bytes: %v", n, err)
	}
}
