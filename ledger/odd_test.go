package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
)

// TestDirectoryNames: a data directory may have any name, as every file of
// the operating system may.
func TestDirectoryNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "a[b", "a[1]", "a*?", `a\`} {
		dir := filepath.Join(t.TempDir(), name)
		for start := range 2 {
			l, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Errorf("%q, start %d: %v", name, start+1, err)
				break
			}
			mustWrite(t, l, appendWrite("c", uint64(start)+1, []byte("x")), machine.Committed)
			closeLedger(t, l)
		}
	}
}

// TestLeftoversInAnyDirectory: the state file of an interrupted restore, as
// large as the ledger, goes with the next one, whatever the directory is called.
func TestLeftoversInAnyDirectory(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "a[1]"} {
		dir := filepath.Join(t.TempDir(), name)
		must.Do(t, os.Mkdir(dir, 0o700))
		for file, content := range map[string]string{"CREATING": "restore\n", "state.db.new-1": "half a state"} {
			must.Do(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
		}
		// It fails, but not before what was left is removed.
		_, err := restore.Backup(t.Context(), strings.NewReader("no backup"), restore.Options{
			Dir: dir, Logger: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			t.Fatal("restored from nothing")
		}
		check.Is(t, check.Err(os.Stat(filepath.Join(dir, "state.db.new-1"))), os.ErrNotExist,
			"in %q the leftover is still there", name)
	}
}

// TestConfigurationChangesUnderLoad : somebody has the ledger catch up
// with what has expired, while others write. No entry may be filled by the old
// configuration and evict by the new one, because its blocks might not fit.
func TestConfigurationChangesUnderLoad(t *testing.T) {
	t.Parallel()
	const limit = uint64(20_000)
	backlog, rounds := 100_000, 10
	if testing.Short() {
		backlog, rounds = 30_000, 3 // still more than one pass may evict
	}
	dir, began := t.TempDir(), time.Now()
	var expired []*machine.Write
	l := open(t, ledger.Options{Dir: dir, Clock: func() time.Time { return began }})
	for first := 0; first < backlog; first += machine.MaxOperations {
		w := appendWrite("loader", uint64(first/machine.MaxOperations)+1, nil)
		w.Operations = nil
		for i := range machine.MaxOperations {
			w.Operations = append(w.Operations, machine.Operation{
				Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "%08d", first+i),
				ExpiresAt: began.Add(time.Hour).UnixNano(),
			})
		}
		expired = append(expired, w)
	}
	for _, w := range expired {
		mustWrite(t, l, w, machine.Committed)
	}
	closeLedger(t, l)

	l = open(t, ledger.Options{Dir: dir, Clock: func() time.Time { return began.Add(2 * time.Hour) }})
	var writers sync.WaitGroup
	busy := make(chan struct{}, 1)
	for i := range 8 {
		// Each ends with its last submission; waited for below.
		writers.Go(func() {
			for round := range rounds {
				writes := make([]*machine.Write, 500)
				for j := range writes {
					writes[j] = appendWrite(fmt.Sprint("writer", i), uint64(round*len(writes)+j)+1, nil)
				}
				s, err := l.Submit(context.Background(), commandsOf(t, writes...))
				if err == nil {
					_, err = s.Wait(context.Background())
				}
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case busy <- struct{}{}:
				default:
				}
			}
		})
	}
	<-busy
	change := &machine.ConfigUpdate{EvictionInterval: new(uint64(1)), EvictionLimit: new(limit)}
	must.Get(l.UpdateConfig(context.Background(), change, "admin"))(t)
	writers.Wait()
	chain := must.Get(l.Chain(t.Context(), scope))(t)
	most := 0
	for height := uint64(1); ; height++ {
		gone := 0
		_, err := l.VisitBlock(t.Context(), chain, height, 0, func(x machine.Transaction) bool {
			if x.Actor == "system:gc" {
				gone += len(x.Operations)
			}
			return true
		})
		if errors.Is(err, machine.ErrNotFound) {
			break
		}
		must.Do(t, err)
		most = max(most, gone)
	}
	if most > int(limit) {
		t.Errorf("one block has %d expired entities, want at most %d", most, limit)
	}
}
