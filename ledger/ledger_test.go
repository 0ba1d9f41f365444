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
)

var scope = machine.Scope{Organization: "acme", Vault: "main"}

func appendWrite(client string, sequence uint64, payload []byte) *machine.Write {
	return &machine.Write{
		Scope: scope, ClientID: client, Actor: "system:test", Sequence: sequence,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: payload}},
	}
}

// open opens a ledger and closes it with the test.
func open(t testing.TB, o ledger.Options) *ledger.Ledger {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := must.Get(ledger.Open(t.Context(), o))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustWrite(t testing.TB, l *ledger.Ledger, w *machine.Write, want machine.Code) machine.Outcome {
	t.Helper()
	out := must.Get(l.Write(context.Background(), w))(t)
	must.Equal(t, out.Code, want, "write %s/%d: %s", w.ClientID, w.Sequence)
	return out
}

func closeLedger(t testing.TB, l *ledger.Ledger) {
	t.Helper()
	must.Do(t, l.Close())
}

// With the cache off, every answer is the same.
func TestCacheChangesNoAnswer(t *testing.T) {
	t.Parallel()
	var answers [2][]string
	for i, bytes := range []int64{1 << 20, -1} {
		l := open(t, ledger.Options{CacheBytes: bytes, Config: machine.Config{ReceiptWindow: 4}})
		ask := func(w *machine.Write) {
			out, err := l.Write(context.Background(), w)
			// What differs from run to run: the ledger's id and the time.
			out.Receipt.LedgerID, out.Receipt.CommittedAt = 0, 0
			answers[i] = append(answers[i], fmt.Sprint(out.Code, out.Receipt, err))
		}
		for sequence := uint64(1); sequence <= 8; sequence++ {
			for range 3 { // the second asks the window, the third the cache
				ask(appendWrite("c", sequence, []byte("x")))
			}
			ask(appendWrite("c", sequence, []byte("other")))
		}
		for sequence := uint64(1); sequence <= 8; sequence++ {
			ask(appendWrite("c", sequence, []byte("x")))
		}
		must.Get(l.OpenSession(t.Context(), &machine.OpenSession{Scope: scope, ClientID: "c", Actor: "a",
			AttemptID: [16]byte{1}}))(t)
		ask(appendWrite("c", 8, []byte("x"))) // SESSION_REQUIRED, also for what is cached
		if stats := l.Stats(); (stats.CacheHits > 0) != (bytes > 0) {
			t.Errorf("cache of %d bytes: %d hits", bytes, stats.CacheHits)
		}
	}
	for i := range answers[0] {
		if answers[0][i] != answers[1][i] {
			t.Errorf("answer %d: with cache %s, without %s", i, answers[0][i], answers[1][i])
		}
	}
}

// A retry of a committed write does not touch the log.
func TestRetryIsAnsweredWithoutLog(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	mustWrite(t, l, appendWrite("c", 1, nil), machine.Committed)
	before := l.Stats().Entries
	for range 3 {
		mustWrite(t, l, appendWrite("c", 1, nil), machine.Replayed)
	}
	if after := l.Stats().Entries; after != before {
		t.Errorf("three retries made %d log entries", after-before)
	}
}

// commandsOf encodes valid writes.
func commandsOf(t testing.TB, writes ...*machine.Write) []machine.Command {
	t.Helper()
	commands := must.Get(machine.Commands(writes...))(t)
	return commands
}

func TestSubmitMixesRetriesAndRefusals(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	mustWrite(t, l, appendWrite("c", 1, nil), machine.Committed)
	s := must.Get(l.Submit(t.Context(), commandsOf(t,
		appendWrite("c", 2, nil), appendWrite("c", 1, nil), appendWrite("c", 9, nil), appendWrite("c", 3, nil),
	)))(t)
	outcomes := must.Get(s.Wait(t.Context()))(t)
	want := []machine.Code{machine.Committed, machine.Replayed, machine.SequenceGap, machine.Committed}
	for i, out := range outcomes {
		check.Equal(t, out.Code, want[i], "outcome %d is %s", i)
	}
}

func TestDeadlineLeavesOutcomeUnknown(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// Nothing is applied during a View. Without it, the answer may be there first, and is given then.
	viewed := l.View(t.Context(), func(machine.View) error {
		_, err := l.Write(ctx, appendWrite("c", 1, nil))
		return err
	})
	if !errors.Is(viewed, ledger.ErrOutcomeUnknown) || !errors.Is(viewed, context.Canceled) {
		t.Fatalf("error %v", viewed)
	}
	// The same request learns what became of it.
	must.Equal(t, must.Get(l.Write(t.Context(), appendWrite("c", 1, nil)))(t).Receipt.Sequence, 1, "retry: %+v")
}

// A call that begins after Close proposes nothing, and says so.
func TestWriteAfterClose(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	closeLedger(t, l)
	_, err := l.Write(t.Context(), appendWrite("c", 1, nil))
	if !errors.Is(err, ledger.ErrDraining) || errors.Is(err, ledger.ErrOutcomeUnknown) {
		t.Errorf("error %v", err)
	}
}

func TestCloseFinishesWhatWasAccepted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, ledger.Options{Dir: dir})
	var wg sync.WaitGroup
	var mu sync.Mutex
	committed := uint64(0)
	started := make(chan struct{}, 4)
	for i := range 4 {
		wg.Go(func() {
			for sequence := uint64(1); ; sequence++ {
				out, err := l.Write(context.Background(), appendWrite(fmt.Sprint(i), sequence, nil))
				if sequence == 10 {
					started <- struct{}{}
				}
				if err != nil {
					check.Is(t, err, ledger.ErrDraining, "writer %d", i)
					return
				}
				if out.Code == machine.Committed {
					mu.Lock()
					committed++
					mu.Unlock()
				}
			}
		})
	}
	for range 4 {
		<-started
	}
	closeLedger(t, l)
	wg.Wait()
	l = open(t, ledger.Options{Dir: dir})
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		if v.Index() != committed+1 { // and the command that created the ledger
			t.Errorf("index %d after %d acknowledged writes", v.Index(), committed)
		}
		return nil
	}))
}

// Invariant 9: a read that begins after an acknowledgement sees the write.
func TestInvariant9_ReadsSeeWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	for sequence := uint64(1); sequence <= 200; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, nil), machine.Committed)
		must.Do(t, l.View(t.Context(), func(v machine.View) error {
			s, _, err := v.Stream(scope, "c")
			if s.Last < sequence {
				t.Errorf("state says %d after %d was acknowledged", s.Last, sequence)
			}
			return err
		}))
	}
}

func TestWatchSeesEveryBlock(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	const writes = 100
	mustWrite(t, l, appendWrite("c", 1, nil), machine.Committed)
	done := make(chan error, 1)
	go func() { // joined by <-done
		next := uint64(1)
		for header, err := range l.Watch(t.Context(), scope, 0) {
			var chain *machine.Chain
			if err == nil {
				chain, err = l.Chain(t.Context(), scope)
			}
			if err == nil {
				_, err = l.VisitBlock(t.Context(), chain, header.Height, 0, func(tx machine.Transaction) bool {
					if tx.Sequence != next {
						t.Errorf("sequence %d came where %d was due", tx.Sequence, next)
					}
					next++
					return true
				})
			}
			if err != nil {
				done <- err
				return
			}
			if next > writes {
				done <- nil
				return
			}
		}
	}()
	for sequence := uint64(2); sequence <= writes; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, nil), machine.Committed)
	}
	must.Do(t, <-done)
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	errs := make(chan error, 2)
	watch := func(ctx context.Context) {
		for _, err := range l.Watch(ctx, scope, 1) {
			errs <- err
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go watch(ctx) // ended by cancel, joined by the receive
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled watch ended with %v", err)
	}
	go watch(t.Context()) // ended by Close, joined by the receive
	closeLedger(t, l)
	if err := <-errs; !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("watch of a closed ledger ended with %v", err)
	}
}

func TestConfigurationIsSetAtCreation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := machine.DefaultConfig()
	want.ReceiptWindow = 7
	closeLedger(t, open(t, ledger.Options{Dir: dir, Config: machine.Config{ReceiptWindow: 7}}))
	l := open(t, ledger.Options{Dir: dir, Config: machine.Config{ReceiptWindow: 9}})
	config := func() (c machine.Config) {
		_ = l.View(t.Context(), func(v machine.View) error { c = v.Config(); return nil })
		return c
	}
	check.Equal(t, config(), want, "configuration %+v")
	window := uint64(3)
	out, err := l.UpdateConfig(t.Context(), &machine.ConfigUpdate{ReceiptWindow: &window}, "system:test")
	if err != nil || out.Code != machine.Committed || config().ReceiptWindow != 3 {
		t.Errorf("update: %+v %v", out, err)
	}
	window = 0
	out, err = l.UpdateConfig(t.Context(), &machine.ConfigUpdate{ReceiptWindow: &window}, "system:test")
	if err != nil || out.Code != machine.InvalidArgument || out.Field.Field != "receipt_window" {
		t.Errorf("update out of range: %+v %v", out, err)
	}
}

func TestLedgerTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wall := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(l *ledger.Ledger) time.Time {
		out := mustWrite(t, l, appendWrite("c", uint64(time.Now().UnixNano()), nil), machine.SequenceGap)
		_ = out
		var ns int64
		_ = l.View(t.Context(), func(v machine.View) error { ns = v.Time(); return nil })
		return time.Unix(0, ns)
	}
	clock := func() time.Time { return wall }
	l := open(t, ledger.Options{Dir: dir, Clock: clock})
	first := at(l)
	wall = wall.Add(-24 * time.Hour) // while the ledger runs: no effect
	if second := at(l); second.Before(first) {
		t.Error("ledger time ran backwards")
	}
	closeLedger(t, l)
	l = open(t, ledger.Options{Dir: dir, Clock: clock}) // with a clock that is behind
	if third := at(l); third.Before(first) {
		t.Error("ledger time ran backwards over a restart")
	}
	check.Equal(t, l.Stats().TimeJumps, 0, "%d jumps counted")
	closeLedger(t, l)
	wall = wall.Add(72 * time.Hour)
	l = open(t, ledger.Options{Dir: dir, Clock: clock})
	check.Equal(t, l.Stats().TimeJumps, 1, "%d jumps counted after two days")
}

func TestDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, dir, message string) {
		t.Helper()
		l, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			_ = l.Close()
			t.Fatal("it was opened")
		}
		if !strings.Contains(err.Error(), message) {
			t.Errorf("error %q does not say %q", err, message)
		}
	}
	filled := func(t *testing.T) string {
		dir := t.TempDir()
		l := open(t, ledger.Options{Dir: dir})
		mustWrite(t, l, appendWrite("c", 1, nil), machine.Committed)
		closeLedger(t, l)
		return dir
	}
	t.Run("in use", func(t *testing.T) {
		dir := t.TempDir()
		_ = open(t, ledger.Options{Dir: dir})
		refused(t, dir, "in use by another process")
	})
	t.Run("foreign", func(t *testing.T) {
		dir := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(dir, "holiday.jpg"), nil, 0o600))
		refused(t, dir, "not a seqledger data directory")
		if _, err := os.Stat(filepath.Join(dir, "state.db")); err == nil {
			t.Error("a ledger was made in it")
		}
	})
	t.Run("other version", func(t *testing.T) {
		dir := filled(t)
		replaceInFile(t, filepath.Join(dir, "LEDGER"), `"format":1`, `"format":3`)
		refused(t, dir, "format version 3")
	})
	t.Run("damaged marker", func(t *testing.T) {
		dir := filled(t)
		must.Do(t, os.WriteFile(filepath.Join(dir, "LEDGER"), []byte("{"), 0o600))
		refused(t, dir, "damaged")
	})
	for _, name := range []string{"LEDGER", "state.db", "log/segments", "log"} {
		t.Run("lost "+name, func(t *testing.T) {
			dir := filled(t)
			must.Do(t, os.RemoveAll(filepath.Join(dir, name)))
			refused(t, dir, "backup")
			refused(t, dir, "backup") // a second start must not find it mended
		})
	}
	t.Run("parts of two ledgers", func(t *testing.T) {
		one, two := filled(t), filled(t)
		must.Do(t, os.Rename(filepath.Join(two, "state.db"), filepath.Join(one, "state.db")))
		refused(t, one, "state")
	})
}

func replaceInFile(t *testing.T, path, old, with string) {
	t.Helper()
	b := must.Get(os.ReadFile(path))(t)
	must.Contains(t, string(b), old, "%s", path)
	must.Do(t, os.WriteFile(path, []byte(strings.Replace(string(b), old, with, 1)), 0o600))
}

// A crash while the directory is being created leaves nothing that was ever
// acknowledged, and the next start begins again.
func TestHalfCreatedDirectory(t *testing.T) {
	t.Parallel()
	whole := t.TempDir()
	closeLedger(t, open(t, ledger.Options{Dir: whole}))
	for _, parts := range [][]string{
		{"CREATING"}, {"CREATING", "state.db"}, {"CREATING", "state.db", "log"}, {"CREATING", "log"},
		{"CREATING", "state.db", "log", "LEDGER"}, {".CREATING-123"},
	} {
		dir := t.TempDir()
		for _, part := range parts {
			source := filepath.Join(whole, part)
			if info, err := os.Stat(source); err == nil && info.IsDir() {
				must.Do(t, os.CopyFS(filepath.Join(dir, part), os.DirFS(source)))
				continue
			}
			b, _ := os.ReadFile(source) // CREATING is empty
			must.Do(t, os.WriteFile(filepath.Join(dir, part), b, 0o600))
		}
		l := open(t, ledger.Options{Dir: dir})
		mustWrite(t, l, appendWrite("c", 1, nil), machine.Committed)
		closeLedger(t, l)
		if _, err := os.Stat(filepath.Join(dir, "CREATING")); err == nil {
			t.Errorf("%v: CREATING is still there", parts)
		}
	}
}

// Disk use is the state and a bounded log, and memory is bounded by checkpoints
// that proposals wait for.
func TestLogAndMemoryAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const checkpointBytes, logBytes = 16 << 10, 64 << 10
	l := open(t, ledger.Options{Dir: dir, CheckpointBytes: checkpointBytes, LogBytes: logBytes})
	const writes, payload = 400, 4 << 10 // much more than either bound
	for sequence := uint64(1); sequence <= writes; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, make([]byte, payload)), machine.Committed)
		// A proposal waits at four times the bound; an entry or two may follow.
		if n := l.Stats().PendingBytes; n > 4*checkpointBytes+4*payload {
			t.Fatalf("%d bytes of changes wait for the state file", n)
		}
	}
	stats := l.Stats()
	if stats.CheckpointSeconds.Count == 0 || stats.Truncations == 0 {
		t.Errorf("flushes %d, truncations %d: want some of each", stats.CheckpointSeconds.Count, stats.Truncations)
	}
	closeLedger(t, l)
	l = open(t, ledger.Options{Dir: dir})
	if n := l.Stats().LogPendingBytes; n > 16*payload {
		t.Errorf("the log holds %d bytes after a clean stop, of %d written", n, writes*payload)
	}
	for sequence := uint64(writes - 63); sequence <= writes; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, make([]byte, payload)), machine.Replayed)
	}
}
