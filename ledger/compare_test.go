package ledger_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
	"github.com/seqledger/seqledger/ledger/verify"
)

// writeOnLeader commits the writes of a client from one sequence to another one.
func writeOnLeader(t *testing.T, nodes []*clusterNode, from, to uint64) {
	t.Helper()
	for sequence := from; sequence <= to; sequence++ {
		must.Do(t, onLeader(t, nodes, func(leader *clusterNode) error {
			_, err := leader.Write(t.Context(), appendWrite("c", sequence, fmt.Append(nil, "write ", sequence)))
			return err
		}))
	}
}

// crashed copies the directory of an open ledger to which nothing is written, as a kill would leave it.
func crashed(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "crashed")
	must.Do(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// compare compares two directories in which nothing is damaged.
func compare(t *testing.T, one, other string) *verify.Comparison {
	t.Helper()
	c := must.Get(verify.Compare(t.Context(), one, other, verify.Options{}))(t)
	for i, r := range c.Reports {
		if len(r.Problems) > 0 {
			t.Errorf("directory %d: %v", i, r.Problems)
		}
	}
	return c
}

// Nodes of a cluster have the same, up to where both reach, wherever each of them stopped.
func TestCompareNodes(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	writeOnLeader(t, nodes, 1, 20)
	var third *clusterNode // a follower, which stops before the others
	rest := []*clusterNode{}
	leader := awaitLeader(t, nodes...)
	for _, n := range nodes {
		if third == nil && n != leader {
			third = n
		} else {
			rest = append(rest, n)
		}
	}
	must.Do(t, third.Fresh(t.Context()))
	closeLedger(t, third.Ledger)
	writeOnLeader(t, rest, 21, 40)
	for _, n := range rest {
		must.Do(t, n.Fresh(t.Context()))
	}
	one, other := crashed(t, rest[0].dir), crashed(t, rest[1].dir)
	for _, pair := range [][2]string{{one, other}, {one, third.dir}, {third.dir, other}} {
		c := compare(t, pair[0], pair[1])
		if len(c.Differences) > 0 || c.Blocks != 1 {
			t.Errorf("%s: %d chains, %v", pair, c.Blocks, c.Differences)
		}
		if c.Index < 20 { // the log of the two that were killed has all entries
			t.Errorf("%s: digests are compared up to index %d", pair, c.Index)
		}
	}
}

// Two histories of one ledger are told apart, and the first block that differs is named.
func TestCompareFindsADifference(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "one")
	l := open(t, ledger.Options{Dir: dir})
	mustWrite(t, l, faultWrite(1), machine.Committed)
	mustWrite(t, l, faultWrite(2), machine.Committed)
	closeLedger(t, l)
	other := crashed(t, dir)
	for i, dir := range []string{dir, other} {
		l := open(t, ledger.Options{Dir: dir})
		w := faultWrite(3)
		w.Operations = append(w.Operations, machine.Operation{Kind: machine.OpAppend, Value: []byte{byte(i)}})
		mustWrite(t, l, w, machine.Committed)
		mustWrite(t, l, faultWrite(4), machine.Committed)
		closeLedger(t, l)
	}
	c := compare(t, dir, other)
	check.Contains(t, fmt.Sprint(c.Differences), "block 3 of", "the differences are")
	if _, err := verify.Compare(t.Context(), dir, dir, verify.Options{}); err == nil {
		t.Error("a directory was compared with itself")
	}
	stranger := filepath.Join(t.TempDir(), "stranger")
	closeLedger(t, open(t, ledger.Options{Dir: stranger}))
	if text := fmt.Sprint(compare(t, dir, stranger).Differences); !strings.Contains(text, "two ledgers") {
		t.Errorf("another ledger is told apart by %s", text)
	}
}

// A block that the directory with the longer history lacks is a difference, and damage in one directory hides nothing.
func TestCompareFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "one")
	l := open(t, ledger.Options{Dir: dir})
	mustWrite(t, l, faultWrite(1), machine.Committed)
	closeLedger(t, l)
	other := crashed(t, dir)
	l = open(t, ledger.Options{Dir: dir})
	mustWrite(t, l, faultWrite(2), machine.Committed)
	closeLedger(t, l)
	l = open(t, ledger.Options{Dir: other})
	for sequence := range uint64(3) {
		w := appendWrite("elsewhere", sequence+1, []byte("x"))
		w.Scope = machine.Scope{Organization: "elsewhere"}
		mustWrite(t, l, w, machine.Committed)
	}
	closeLedger(t, l)
	text := fmt.Sprint(compare(t, dir, other).Differences)
	if want := fmt.Sprint("blocks of ", faultWrite(1).Scope); !strings.Contains(text, want) {
		t.Errorf("no %q in %s", want, text)
	}

	blocks := must.Get(filepath.Glob(filepath.Join(other, "blocks", "*")))(t)
	content := must.Get(os.ReadFile(blocks[0]))(t)
	content[len(content)/2] ^= 1
	must.Do(t, os.WriteFile(blocks[0], content, 0o600))
	c, err := verify.Compare(t.Context(), dir, other, verify.Options{})
	if err != nil || len(c.Reports[0].Problems) > 0 || len(c.Reports[1].Problems) == 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// What is at the end of a node's log, and may not have been committed, is not taken for what was.
func TestVerifyLeavesOutWhatIsUndecided(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	writeOnLeader(t, nodes, 1, 10)
	for _, n := range nodes {
		must.Do(t, n.Fresh(t.Context()))
	}
	dir := crashed(t, nodes[0].dir)
	for _, n := range nodes { // so that the machine has time for the rest
		closeLedger(t, n.Ledger)
	}
	before := must.Get(verify.Directory(t.Context(), dir, verify.Options{}))(t)
	w := appendWrite("c", 11, []byte("perhaps"))
	appendToLog(t, dir, machine.AppendEntry(nil, 1, machine.AppendWrite(nil, w)))
	after := must.Get(verify.Directory(t.Context(), dir, verify.Options{}))(t)
	if after.Undecided != before.Undecided+1 || after.Index != before.Index || after.Digest != before.Digest ||
		len(after.Problems) > 0 || before.Index < 10 {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// appendToLog appends an entry to the log of a closed directory.
func appendToLog(t *testing.T, dir string, data []byte) {
	t.Helper()
	d := must.Get(datadir.OpenLedger(dir))(t)
	log := must.Get(segment.Open(segment.Options{
		Disk: segment.OpenDirectory(filepath.Join(d.Log(), "segments")), Identity: d.Identity(), SegmentBytes: 1 << 20,
		Random: rand.Reader, Logger: slog.New(slog.DiscardHandler),
	}))(t)
	entry := segment.Entry{Index: log.Last().Index + 1, Term: log.State().Term, Kind: 1, Data: data} // a command
	must.Do(t, errors.Join(log.Append(nil, []segment.Entry{entry}), log.Sync(), log.Close(), d.Close()))
}
