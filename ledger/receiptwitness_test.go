package ledger_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/receipt"
	"github.com/seqledger/seqledger/ledger/witness"
)

// A witness that hangs keeps back no checkpoint and no write, and one that is away no receipt of what was cosigned.
func TestWitnessesThatFail(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), receiptKey(t)
	l := open(t, ledger.Options{Dir: dir})
	id := l.Head().Ledger
	closeLedger(t, l)
	good := must.Get(witness.NewKey(witness.WitnessKey, "witness.example/good"))(t)
	log := fmt.Sprintf("log %s\n", key.As(receipt.Origin(receiptOrigin, id)))
	known := must.Get(witness.ParsePolicy([]byte(log + "quorum none\n")))(t)
	cosigning := must.Get(witness.Open(filepath.Join(t.TempDir(), "w"), good, known, slog.New(slog.DiscardHandler)))(t)
	var away, hang atomic.Bool
	var hanging atomic.Int32
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case away.Load():
			http.Error(w, "away", http.StatusServiceUnavailable)
		case hang.Load():
			hanging.Add(1)
			_, _ = io.Copy(io.Discard, r.Body) // else the end of the request is not seen
			<-r.Context().Done()
		default:
			cosigning.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() { web.Close(); _ = cosigning.Close() })
	policy := must.Get(witness.ParsePolicy(fmt.Appendf([]byte(log), "witness w %s %s\nquorum w\n", good, web.URL)))(t)
	receipts := signedWith(key)
	receipts.Policy = policy
	cosigned := func(l *ledger.Ledger, r machine.Receipt) error {
		got := must.Get(l.OfflineReceipt(t.Context(), machine.NewTxID(id, r.Index), nil))(t)
		return check.Err(got.Verify(policy))
	}
	l = open(t, ledger.Options{Dir: dir, Receipts: receipts})
	write := func(sequence uint64) machine.Receipt {
		return mustWrite(t, l, appendWrite("c", sequence, nil), machine.Committed).Receipt
	}
	first := write(1)
	must.Do(t, cosigned(l, first))

	away.Store(true)
	second := write(2)
	check.ErrorContains(t, cosigned(l, second), "the quorum w is not met: 0 of 1")
	must.Do(t, cosigned(l, first), "the newest checkpoint lacks a cosignature, an older one does not")
	missing := func() bool {
		s := l.Stats()
		return s.Witnesses != nil && s.Witnesses.Cosigned == 0 && !s.Witnesses.QuorumMissing.IsZero() &&
			!s.ReceiptsFailing.IsZero()
	}
	must.Await(t, missing)
	closeLedger(t, l)
	l = open(t, ledger.Options{Dir: dir, Receipts: receipts})
	must.Do(t, cosigned(l, first), "after a start without the witness")
	must.Await(t, missing)
	away.Store(false)
	must.Await(t, func() bool {
		s := l.Stats()
		return cosigned(l, second) == nil && s.Witnesses != nil && s.Witnesses.Cosigned == 1 &&
			s.Witnesses.QuorumMissing.IsZero() && s.ReceiptsFailing.IsZero()
	})

	hang.Store(true)
	write(3)
	must.Await(t, func() bool { return hanging.Load() > 0 })
	before := hanging.Load()
	size := checkpointOf(t, dir, id).N
	third := write(4)
	must.Await(t, func() bool { return checkpointOf(t, dir, id).N > size })
	check.Equal(t, hanging.Load(), before, "the checkpoint waited for a witness: %d were asked")
	must.Do(t, cosigned(l, second))
	closeLedger(t, l) // with the witness still asked
	hang.Store(false)
	l = open(t, ledger.Options{Dir: dir, Receipts: receipts})
	must.Await(t, func() bool { return cosigned(l, third) == nil })
}

// A new leader goes on from what the witnesses say, and a witness that hangs keeps back no hand-over.
func TestWitnessesOfACluster(t *testing.T) {
	t.Parallel()
	key := receiptKey(t)
	nodes := startClusterWith(t, 3, func(dir string) ledger.Options { return ledger.Options{Dir: dir} })
	id := awaitLeader(t, nodes...).Head().Ledger
	log := fmt.Sprintf("log %s\n", key.As(receipt.Origin(receiptOrigin, id)))
	known := must.Get(witness.ParsePolicy([]byte(log + "quorum none\n")))(t)
	logger := slog.New(slog.DiscardHandler)
	var keys []*witness.Key
	for range 2 {
		keys = append(keys, must.Get(witness.NewKey(witness.WitnessKey, "witness.example"))(t))
	}
	good := must.Get(witness.Open(filepath.Join(t.TempDir(), "w"), keys[0], known, logger))(t)
	var conflicts, hung atomic.Int32
	var hang atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := httptest.NewRecorder()
		if good.ServeHTTP(got, r); got.Code == http.StatusConflict {
			conflicts.Add(1)
		}
		w.WriteHeader(got.Code)
		_, _ = w.Write(got.Body.Bytes())
	}))
	hanging := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _ = io.Copy(io.Discard, r.Body); hang.Load() {
			hung.Add(1)
			<-r.Context().Done()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(func() { web.Close(); hanging.Close(); _ = good.Close() })
	policy := must.Get(witness.ParsePolicy(fmt.Appendf([]byte(log), "witness w %s %s\nwitness x %s %s\nquorum w\n",
		keys[0], web.URL, keys[1], hanging.URL)))(t)
	for i, n := range nodes {
		must.Do(t, n.Close())
		receipts := signedWith(key)
		receipts.Policy = policy
		nodes[i] = startNodeWith(t, n.address, ledger.Options{Dir: n.dir, Receipts: receipts})
	}
	for round := range uint64(2) {
		leader := awaitLeader(t, nodes...)
		out := must.Get(leader.Write(t.Context(), appendWrite("c", round+1, nil)))(t)
		got := must.Get(leader.OfflineReceipt(t.Context(), machine.NewTxID(id, out.Receipt.Index), nil))(t)
		must.Do(t, check.Err(got.Verify(policy)))
		if round == 0 {
			conflicts.Store(0)
			hang.Store(true)
			must.Await(t, func() bool { return hung.Load() > 0 })
			next := 1 + (indexOf(nodes, leader)+1)%len(nodes)
			must.Do(t, leader.Cluster().TransferLeadership(t.Context(), uint64(next)))
			must.Await(t, func() bool { self, _ := nodes[next-1].Cluster().Leader(); return self.Self })
			hang.Store(false)
		}
	}
	check.Equal(t, conflicts.Load() > 0, true, "the new leader knew: %v")
}
