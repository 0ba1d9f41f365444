package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

const retainChildEnv = "SEQLEDGER_RETAIN_TEST_DIR"

// retainChild writes as killChild does, in a ledger that keeps 1 MiB and archives the rest. One writer sets long
// values, so that some are alive in files that are dropped.
func retainChild(dir string) error {
	if err := os.Mkdir(archiveOf(dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	l, err := ledger.Open(context.Background(), ledger.Options{
		Dir: filepath.Join(dir, "data"), Logger: slog.New(slog.DiscardHandler),
		Archive:         archive.Directory(archiveOf(dir)),
		CheckpointBytes: 64 << 10, LogBytes: 256 << 10,
		Config: machine.Config{EvictionInterval: 10, RetainBytes: 1 << 20},
	})
	if err != nil {
		return err
	}
	var stdout sync.Mutex
	errs := make(chan error)
	for i := range 4 {
		// The parent ends it, by SIGKILL.
		go func() { errs <- retainForEver(l, i, &stdout) }()
	}
	return <-errs
}

func archiveOf(dir string) string { return filepath.Join(dir, "archive") }

func retainForEver(l *ledger.Ledger, writer int, stdout *sync.Mutex) error {
	w := retainWrite(writer, 1)
	var last uint64
	err := l.View(context.Background(), func(v machine.View) error {
		s, _, err := v.Stream(w.Scope, w.ClientID)
		last = s.Last
		return err
	})
	if err != nil {
		return err
	}
	for sequence := last + 1; ; sequence++ {
		out, err := l.Write(context.Background(), retainWrite(writer, sequence))
		if err != nil {
			return err
		}
		if out.Code != machine.Committed {
			return fmt.Errorf("writer %d sequence %d: %s", writer, sequence, out.Code)
		}
		stdout.Lock()
		fmt.Printf("%d %d %d\n", writer, sequence, out.Receipt.Index)
		stdout.Unlock()
	}
}

// retainWrite sets one of many entities to a long value, which stays for a while.
func retainWrite(writer int, sequence uint64) *machine.Write {
	w := appendWrite(fmt.Sprint("writer-", writer), sequence, make([]byte, 4_000))
	w.Operations = append(w.Operations, machine.Operation{
		Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "%d/%d", writer, sequence%1_000),
		Value: fmt.Appendf(nil, "%040d", sequence),
	})
	return w
}

// A server that is killed again and again while it appends, seals, drops and archives loses nothing: what was
// acknowledged is in the ledger or, before the horizon, in the archive; both are sound, and together they give the
// state.
func TestKillWhileHistoryIsDroppedAndArchived(t *testing.T) {
	t.Parallel()
	rounds := 25
	if testing.Short() {
		rounds = 4
	}
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	acknowledged := map[[2]uint64]uint64{}
	for range rounds {
		runAndKill(t, retainChildEnv, dir, 100+random.IntN(600), acknowledged)
	}
	data := filepath.Join(dir, "data")
	target := archive.Directory(archiveOf(dir))
	ids := must.Get(archive.Ledgers(t.Context(), target))(t)
	report, err := archive.Verify(t.Context(), target, ids[0], nil)
	if err != nil || len(report.Problems) != 0 || report.Files == 0 {
		t.Fatalf("the archive: %v %+v", err, report)
	}
	for _, with := range []archive.Target{nil, target} {
		report := must.Get(verify.Directory(t.Context(), data, verify.Options{Archive: with}))(t)
		must.Equal(t, len(report.Problems), 0, "verify with the archive %v %+v", with)
	}
	auditRetained(t, dir, acknowledged, report.Last)
}

// auditRetained looks up every acknowledged write: in the ledger, or in the archive, which goes up to an index. What
// lies before the horizon and in neither is in a file that is not dropped before it is archived.
func auditRetained(t *testing.T, dir string, acknowledged map[[2]uint64]uint64, archivedUpTo uint64) {
	t.Helper()
	archived := map[uint64]uint64{} // ledger index → sequence
	target := archive.Directory(archiveOf(dir))
	r := must.Get(archive.NewReader(t.Context(), target, must.Get(archive.Ledgers(t.Context(), target))(t)[0]))(t)
	must.Do(t, r.VisitScope(scope, 1, func(
		_ machine.BlockHeader, txs []machine.Transaction,
	) bool {
		for i := range txs {
			archived[txs[i].Index] = txs[i].Sequence
		}
		return true
	}))
	l := open(t, ledger.Options{Dir: filepath.Join(dir, "data")})
	gone := 0
	latest := [4]uint64{}
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		for write, index := range acknowledged {
			latest[write[0]] = max(latest[write[0]], write[1])
			tx, err := v.Transaction(v.TxIDAt(index))
			sequence := tx.Sequence
			if _, ok := errors.AsType[*machine.GoneError](err); ok {
				if gone++; index > archivedUpTo {
					continue
				}
				sequence, err = archived[index], nil
			}
			if err != nil || sequence != write[1] {
				return fmt.Errorf("acknowledged write %v at index %d: sequence %d, %w", write, index, sequence, err)
			}
		}
		for writer, last := range latest {
			for sequence := last; sequence > 0 && sequence+900 > last; sequence-- {
				e, err := v.Entity(scope, fmt.Sprintf("%d/%d", writer, sequence%1_000))
				if err != nil || len(e.Value) != 40 {
					return fmt.Errorf("entity of writer %d, sequence %d: %q, %w", writer, sequence, e.Value, err)
				}
			}
		}
		return nil
	}))
	t.Logf("%d acknowledged, %d of them before the horizon", len(acknowledged), gone)
	if gone == 0 && !testing.Short() {
		t.Error("the horizon has not moved: the test tested nothing")
	}
}
