package ledger

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

// TestScrubStopsTheNode: a page that is damaged while the node runs, and that nothing reads, stops
// it; the counters tell before that how far the scrub is.
func TestScrubStopsTheNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := must.Get(Open(t.Context(), Options{Logger: slog.New(slog.DiscardHandler), Dir: dir, ScrubBytes: 1 << 30,
		scrubInterval: time.Nanosecond}))(t)
	for !t.Failed() && l.Stats().ScrubRounds < 2 {
		select {
		case <-l.Failed():
			t.Fatal(l.Err())
		case <-time.After(time.Millisecond):
		}
	}
	if s := l.Stats(); s.ScrubbedPages == 0 || s.ScrubBytes == 0 || s.ScrubRate != 1<<30 || s.LastScrub.IsZero() {
		t.Errorf("%+v", s)
	}
	state := filepath.Join(dir, "state.db")
	file := must.Get(os.OpenFile(state, os.O_RDWR, 0))(t)
	meta, err := boltpage.ReadMeta(file)
	if err == nil {
		_, err = file.WriteAt([]byte{1}, int64(meta.Root)*meta.PageSize+meta.PageSize-1)
	}
	must.Do(t, errors.Join(err, file.Close()))
	<-l.Failed()
	if err := l.Err(); !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), state) ||
		!strings.Contains(err.Error(), "is not what was written") {
		t.Error(err)
	}
	_ = l.Close() // it says the same
	check.Is(t, check.Err(Open(t.Context(), Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})),
		machine.ErrCorrupt, "opened again")
}

// TestScrubOfBlocksStopsTheNode: a block that is damaged while the node runs, and that nothing reads,
// stops it.
func TestScrubOfBlocksStopsTheNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := must.Get(Open(t.Context(), Options{Logger: slog.New(slog.DiscardHandler), Dir: dir, ScrubBytes: 1 << 30,
		scrubInterval: time.Nanosecond}))(t)
	commitPayloads(t, l, "c", strings.Repeat("needle", 1_000))
	for rounds := l.Stats().ScrubRounds; !t.Failed() && l.Stats().ScrubRounds < rounds+2; {
		select {
		case <-l.Failed():
			t.Fatal(l.Err())
		case <-time.After(time.Millisecond):
		}
	}
	if s := l.Stats(); s.ScrubbedBlockBytes < 6_000 || s.ScrubBytes < uint64(s.BlockBytes) || s.BlockBytes < 6_000 {
		t.Errorf("%+v", s)
	}
	name := filepath.Join(dir, "blocks", "0000000001.blocks")
	content := must.Get(os.ReadFile(name))(t)
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err == nil {
		_, err = file.WriteAt([]byte{'m'}, int64(bytes.Index(content, []byte("needle"))))
	}
	must.Do(t, errors.Join(err, file.Close()))
	<-l.Failed()
	if err := l.Err(); !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), filepath.Base(name)) {
		t.Error(err)
	}
	_ = l.Close() // it says the same
}

// TestMissingPageSumsAreMadeAnew: a directory has none whose operator moved a damaged file away.
func TestMissingPageSumsAreMadeAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		l, err := Open(t.Context(), Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			err = l.Close()
		}
		must.Do(t, err)
		sums := boltstore.SumsPath(filepath.Join(dir, "state.db"))
		must.Do(t, os.Remove(sums), "there were none")
	}
}
