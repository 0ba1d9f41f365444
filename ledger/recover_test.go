package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/recovery"
	"github.com/seqledger/seqledger/ledger/verify"
)

// survivor returns a copy of a follower's directory, taken while the cluster ran, as a kill leaves it, and the writes
// that the cluster had acknowledged until then.
func survivor(t *testing.T) (dir string, receipts []machine.Receipt, clients []string) {
	t.Helper()
	nodes := startCluster(t)
	var o machine.Outcome
	for i := range 20 {
		client := fmt.Sprint("client-", i%3)
		w := appendWrite(client, uint64(1+i/3), fmt.Append(nil, i))
		err := onLeader(t, nodes, func(leader *clusterNode) (err error) {
			o, err = leader.Write(t.Context(), w)
			return err
		})
		if err != nil || o.Code != machine.Committed && o.Code != machine.Replayed {
			t.Fatalf("%+v, %v", o, err)
		}
		o.Receipt.Replayed = false // the first response may have been lost
		receipts, clients = append(receipts, o.Receipt), append(clients, client)
	}
	follower := nodes[1]
	if follower == awaitLeader(t, nodes...) {
		follower = nodes[2]
	}
	// It has the log on its disk, and need not know that the log is committed.
	awaitLeaderStatus(t, nodes, "a follower with the whole log", func(s cluster.Status) bool {
		return slices.ContainsFunc(s.Members, func(m cluster.Member) bool {
			return m.ID == follower.Cluster().Status().Self && m.Matched >= s.Last
		})
	})
	dir = filepath.Join(t.TempDir(), "survivor")
	copySparse(t, dir, follower.dir)
	for _, n := range nodes {
		closeLedger(t, n.Ledger)
	}
	return dir, receipts, clients
}

// TestRecover makes a ledger of one of three nodes. It kills the recovery after each step, and starts it again.
// Everything that the node had is there under another ledger id, and the ledger admits other nodes under new numbers.
func TestRecover(t *testing.T) {
	t.Parallel()
	source, receipts, clients := survivor(t)
	quiet := slog.New(slog.DiscardHandler)
	found, err := recovery.Inspect(source)
	if err != nil || found.Node == 0 || len(found.Members) != 3 || found.Last.Index < uint64(len(receipts)) ||
		found.Committed > found.Last.Index || found.Time.Unix() < 1e9 || found.Members[0].Peer == "" {
		t.Fatalf("%+v, %v", found, err)
	}
	var killed []string
	var steps []string
	dir := filepath.Join(t.TempDir(), "whole")
	copySparse(t, dir, source)
	whole, err := recovery.Run(t.Context(), dir, slog.New(stepHandler(func(what string) {
		left := filepath.Join(t.TempDir(), "before-"+what) // what a kill would leave before the step
		copySparse(t, left, dir)
		killed, steps = append(killed, left), append(steps, what)
	})))
	if err != nil || whole.LedgerID == found.LedgerID || whole.Before.Last != found.Last {
		t.Fatalf("%+v, %v", whole, err)
	}
	wantRecovered(t, dir, whole, receipts, clients)
	if len(steps) < 6 {
		t.Fatalf("the steps are %q", steps)
	}
	for i, dir := range killed {
		_, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: quiet})
		_, look := recovery.Inspect(dir)
		_, reads := verify.Directory(t.Context(), dir, verify.Options{})
		for _, err := range []error{err, look, reads} {
			if i > 0 && !errors.Is(err, datadir.ErrRecovering) {
				t.Errorf("killed before %q: %v", steps[i], err)
			}
		}
		if testing.Short() && i%2 == 0 {
			continue
		}
		again, err := recovery.Run(t.Context(), dir, quiet)
		if err != nil || again.Before.Interrupted != (i > 0) {
			t.Fatalf("killed before %q and run again: %+v, %v", steps[i], again, err)
		}
		if testing.Short() || steps[i] == "open" || steps[i] == "end" { // each start takes a while
			wantRecovered(t, dir, again, receipts, clients)
		}
	}
}

// stepHandler is a log that is told each step at which an epoch is begun, before it is taken.
type stepHandler func(next string)

func (h stepHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h stepHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h stepHandler) WithGroup(string) slog.Handler            { return h }

func (h stepHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "an epoch is being begun" {
		r.Attrs(func(a slog.Attr) bool { h(a.Value.String()); return true })
	}
	return nil
}

// wantRecovered opens a recovered ledger and checks it.
func wantRecovered(t *testing.T, dir string, r recovery.Result, receipts []machine.Receipt, clients []string) {
	t.Helper()
	if report, err := verify.Directory(t.Context(), dir, verify.Options{}); err != nil || len(report.Problems) > 0 ||
		report.Index != r.Index || report.Digest != r.Digest || report.LedgerID != r.LedgerID {
		t.Errorf("%+v, %v, want %+v", report, err, r)
	}
	check.Is(t, check.Err(recovery.Run(t.Context(), dir, slog.New(slog.DiscardHandler))), recovery.ErrNothingToRecover,
		"recovered twice")
	n := startNode(t, dir, anyAddress)
	mustHoldReceipts(t, n.Ledger, receipts, clients)
	if s := n.Cluster().Status(); len(s.Members) != 1 || s.Members[0].ID != r.Before.Node || !s.Leader.Self {
		t.Errorf("its cluster is %+v", s)
	}
	o := mustWrite(t, n.Ledger, appendWrite("new", 1, []byte("x")), machine.Committed)
	if o.Receipt.LedgerID != r.LedgerID || o.Receipt.Index <= r.Index {
		t.Errorf("a new write got %+v, and the epoch begins at %d", o.Receipt, r.Index)
	}
	awaitAddress(t, n)
	a, err := n.Cluster().Admit(t.Context(),
		cluster.JoinRequest{Nonce: [16]byte{9}, Peer: "127.0.0.1:9"})
	if err != nil || a.ID != 4 || a.Ledger != r.LedgerID {
		t.Errorf("a node that joins is told %+v, %v", a, err)
	}
	closeLedger(t, n.Ledger)
}

// TestRecoverRefuses: a directory that is not of a cluster node, or is in use, is refused and stays unchanged.
func TestRecoverRefuses(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	single := t.TempDir()
	l := open(t, ledger.Options{Dir: single})
	check.Is(t, check.Err(recovery.Run(t.Context(), single, quiet)), datadir.ErrInUse, "a ledger that is open")
	closeLedger(t, l)
	before := contents(t, single)
	check.Is(t, check.Err(recovery.Run(t.Context(), single, quiet)), recovery.ErrNothingToRecover,
		"a ledger of one node")
	if s, err := recovery.Inspect(single); err != nil || len(s.Members) != 1 || s.Node != 1 {
		t.Errorf("it is %+v, %v", s, err)
	}
	if after := contents(t, single); after != before {
		t.Errorf("it was changed from\n%sto\n%s", before, after)
	}
	empty := t.TempDir()
	if _, err := recovery.Run(t.Context(), empty, quiet); err == nil {
		t.Error("an empty directory was recovered")
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
}
