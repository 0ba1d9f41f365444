package ledger_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	flipClients = 24
	flipWrites  = 40
)

// flipImage makes a data directory as a crash leaves it: with a state file of
// some hundred pages, and log behind the checkpoint.
func flipImage(t *testing.T) (image, answers string) {
	t.Helper()
	dir := t.TempDir()
	l := open(t, ledger.Options{Dir: dir})
	burst := func(from, to uint64) {
		var writers sync.WaitGroup
		for client := range flipClients {
			// Ends with its writes; waited for below.
			writers.Go(func() {
				for sequence := from; sequence <= to; sequence++ {
					w := appendWrite(fmt.Sprint("client-", client), sequence,
						fmt.Appendf(nil, "%d/%d", client, sequence))
					w.Operations = append(w.Operations, machine.Operation{
						Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "%s/%d/%d", strings.Repeat("k", 100), client,
							sequence), Value: []byte("v"),
					})
					if out, err := l.Write(t.Context(), w); err != nil || out.Code != machine.Committed {
						t.Errorf("write: %v %v", out.Code, err)
					}
				}
			})
		}
		writers.Wait()
	}
	burst(1, flipWrites-5)
	closeLedger(t, l)
	l = open(t, ledger.Options{Dir: dir})
	burst(flipWrites-4, flipWrites)
	image = t.TempDir()
	copySparse(t, image, dir)
	answers, err := allAnswers(t, l)
	if err != nil || strings.Count(answers, "\n") < flipClients*flipWrites {
		t.Fatalf("the answers of a sound ledger: %v, %d lines", err, strings.Count(answers, "\n"))
	}
	closeLedger(t, l)
	return image, answers
}

// copySparse copies a directory without writing the zeros of its log segments.
func copySparse(t *testing.T, to, from string) {
	t.Helper()
	must.Do(t, fs.WalkDir(os.DirFS(from), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, name), 0o700))
		}
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		used := trimZeros(content)
		if err := os.WriteFile(filepath.Join(to, name), used, 0o600); err != nil {
			return err
		}
		return os.Truncate(filepath.Join(to, name), int64(len(content)))
	}))
}

// trimZeros is bytes.TrimRight(content, "\x00"). It compares whole pieces first: the race detector
// takes seconds to look at each byte of a log segment.
func trimZeros(content []byte) []byte {
	zeros := make([]byte, 64<<10)
	for bytes.HasSuffix(content, zeros) {
		content = content[:len(content)-len(zeros)]
	}
	return bytes.TrimRight(content, "\x00")
}

// allAnswers asks a ledger for everything that it knows.
func allAnswers(t *testing.T, l *ledger.Ledger) (string, error) {
	t.Helper()
	var b strings.Builder
	err := l.View(t.Context(), func(v machine.View) error {
		fmt.Fprintln(&b, v.Index(), v.Digest(), v.Streams(), v.Config(), v.LedgerID())
		for client := range flipClients {
			stream, found, err := v.Stream(scope, fmt.Sprint("client-", client))
			receipts, more := ledgermodel.Receipts(v, scope, fmt.Sprint("client-", client), 1_000)
			fmt.Fprintf(&b, "%+v %t %+v\n", stream, found, receipts)
			if err := errors.Join(err, more); err != nil {
				return err
			}
		}
		for index := uint64(2); index <= v.Index(); index++ { // 1 is the creation
			tx, err := v.Transaction(v.TxIDAt(index))
			if err != nil {
				return fmt.Errorf("transaction %d: %w", index, err)
			}
			fmt.Fprintf(&b, "%+v\n", tx)
		}
		return ledgermodel.VisitEntities(v, scope, func(e machine.Entity) bool {
			fmt.Fprintf(&b, "%+v\n", e)
			return true
		})
	})
	return b.String(), err
}

// flip changes one bit of a file.
type flip struct {
	file string // in the data directory
	bit  int
}

// fate is what becomes of a directory in which a bit was flipped.
type fate string

const (
	refusedAtStart fate = "refused at the start"
	noticed        fate = "noticed by a read"
	harmless       fate = "no answer changed"
	unnoticed      fate = "an answer changed"
)

// check flips the bit in a copy and looks at what the ledger makes of it.
func (f flip) check(t *testing.T, image, answers string) fate {
	t.Helper()
	dir := t.TempDir()
	copySparse(t, dir, image)
	path := filepath.Join(dir, f.file)
	content := must.Get(os.ReadFile(path))(t)
	content[f.bit/8] ^= 1 << (f.bit % 8)
	must.Do(t, os.WriteFile(path, content, 0o600))
	options := faultOptions(dir)
	options.CheckpointBytes, options.LogBytes = 0, 0
	l, err := ledger.Open(t.Context(), options)
	if err != nil {
		f.wantMessage(t, err)
		return refusedAtStart
	}
	got, err := f.lives(t, l, options)
	if errors.Is(err, machine.ErrNotFound) {
		got, err = "something is absent", nil // an answer like any other
	}
	if err != nil {
		f.wantMessage(t, err)
		return noticed
	}
	if got == answers {
		return harmless
	}
	t.Errorf("bit %d of %s changed an answer", f.bit, f.file)
	return unnoticed
}

// lives returns the answers of an open ledger, unless they change once it has
// written two checkpoints: a page that is taken for free is overwritten by them.
func (f flip) lives(t *testing.T, l *ledger.Ledger, options ledger.Options) (answers string, err error) {
	t.Helper()
	answers, err = allAnswers(t, l)
	if err := errors.Join(err, l.Close()); err != nil {
		return answers, err
	}
	for round := range uint64(2) {
		l, err := ledger.Open(t.Context(), options)
		if err != nil {
			return answers, err
		}
		w := appendWrite("later", round+1, make([]byte, 40<<10))
		w.Scope.Vault = "later"
		if out, err := l.Write(t.Context(), w); err != nil || out.Code != machine.Committed {
			return answers, errors.Join(fmt.Errorf("write: %v: %w", out.Code, err), l.Close())
		}
		if err := l.Close(); err != nil {
			return answers, err
		}
	}
	l, err = ledger.Open(t.Context(), options)
	if err != nil {
		return answers, err
	}
	again, err := allAnswers(t, l)
	// The head has moved, and the ledger has two transactions more.
	_, before, _ := strings.Cut(answers, "\n")
	_, after, _ := strings.Cut(again, "\n")
	if err == nil && !sameLines(before, after) {
		answers = "changed by a checkpoint"
	}
	return answers, errors.Join(err, l.Close())
}

// sameLines tells whether every line of before is in after.
func sameLines(before, after string) bool {
	lines := map[string]bool{}
	for line := range strings.Lines(after) {
		lines[line] = true
	}
	for line := range strings.Lines(before) {
		if !lines[line] {
			return false
		}
	}
	return true
}

// wantMessage wants to hear where the damage is and what to do.
func (f flip) wantMessage(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if !strings.Contains(text, filepath.Base(f.file)) && !strings.Contains(text, "the log in") &&
		!strings.Contains(text, "table ") &&
		!strings.Contains(text, "not a seqledger data directory") && !strings.Contains(text, "state.db") &&
		!strings.Contains(text, "has format version") && !errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("%s, bit %d: the message names no place: %v", f.file, f.bit, err)
	}
}

// flipRow is one row of the table in DESIGN.md: where bits are flipped, and what
// may come of it.
type flipRow struct {
	file    string
	place   func(random *rand.Rand, content []byte) int
	samples int
}

// TestFault_FlippedBit flips single bits of a large directory, some in each kind of
// place: a start or a read notices, or no answer changes. SEQLEDGER_FAULT_ALL makes
// it more than one of each, and SEQLEDGER_FAULT_SAMPLES any number. The tests whose
// names begin with TestDamage_ flip every bit of small files.
func TestFault_FlippedBit(t *testing.T) {
	t.Parallel()
	image, answers := flipImage(t)
	for name, row := range map[string]flipRow{
		"log":              {"log/segments/*.log", firstHalf, 12},
		"log header":       {"log/segments/*.log", within(4096), 8},
		"marker":           {"LEDGER", anywhere, 8},
		"state":            {"state.db", anywhere, 6},
		"state meta":       {"state.db", inPage(0x04), 6},
		"state branch":     {"state.db", inPage(0x01), 8},
		"state leaf":       {"state.db", inPage(0x02), 8},
		"state free pages": {"state.db", inPage(0x10), 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.check(t, image, answers)
		})
	}
}

func (row flipRow) check(t *testing.T, image, answers string) {
	t.Helper()
	file := matching(t, image, row.file)
	content := must.Get(os.ReadFile(filepath.Join(image, file)))(t)
	// The same each time, unless a soak sets another.
	seed, samples := uint64(1), 1
	if os.Getenv("SEQLEDGER_FAULT_ALL") != "" {
		samples = row.samples
	}
	if text := os.Getenv("SEQLEDGER_FAULT_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	if text := os.Getenv("SEQLEDGER_FAULT_SAMPLES"); text != "" {
		samples, _ = strconv.Atoi(text)
	}
	// The image has random ids of its own, so that a bit says more than the seed.
	t.Logf("repeat with: SEQLEDGER_FAULT_SEED=%d SEQLEDGER_FAULT_SAMPLES=%d go test -run '^%s$' ./ledger", seed,
		samples, t.Name())
	random := rand.New(rand.NewPCG(seed, 0))
	fates := map[fate]int{}
	for range samples {
		f := flip{file, row.place(random, content)}
		fates[f.check(t, image, answers)]++
	}
	t.Logf("of %d flipped bits in %s: %v", samples, file, fates)
}

// matching returns the one file in a directory that a pattern names.
func matching(t *testing.T, dir, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v %v", pattern, names, err)
	}
	name := must.Get(filepath.Rel(dir, names[len(names)-1]))(t)
	return name
}

// anywhere in what a file uses.
func anywhere(random *rand.Rand, content []byte) int {
	return random.IntN(8 * len(trimZeros(content)))
}

// firstHalf of what a file uses: the very last batch of a log looks like a torn
// write when a bit of it changes, and is cut off as one.
func firstHalf(random *rand.Rand, content []byte) int {
	return random.IntN(4 * len(trimZeros(content)))
}

// inPage picks a bit in the used part of a bbolt page with a flag.
func inPage(flag uint16) func(*rand.Rand, []byte) int {
	const pageSize, header, element = 4096, 16, 16
	return func(random *rand.Rand, content []byte) int {
		for {
			page := random.IntN(len(content)/pageSize) * pageSize
			b := content[page:]
			if binary.NativeEndian.Uint16(b[8:]) != flag {
				continue
			}
			return 8*page + random.IntN(8*(header+element*int(binary.NativeEndian.Uint16(b[10:])+4)))
		}
	}
}

// within picks a bit of the first bytes of a file.
func within(n int) func(*rand.Rand, []byte) int {
	return func(random *rand.Rand, content []byte) int { return random.IntN(8 * min(n, len(content))) }
}
