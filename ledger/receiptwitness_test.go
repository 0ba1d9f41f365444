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
		got := must.Get(l.OfflineReceipt(t.Context(), machine.NewTxID(id, r.Index)))(t)
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
