package writer

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func encoded(f testing.TB, m proto.Message) []byte {
	f.Helper()
	b := must.Get(proto.Marshal(m))(f)
	return b
}

// FuzzJournalEntry: whatever a journal holds of a write, a Writer takes it up
// with the same numbers and the same operations, or not at all.
func FuzzJournalEntry(f *testing.F) {
	operations := []*seqledgerv1.Operation{
		{Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: []byte("p")}}}, {},
	}
	request := must.Get(message.EncodeOperations(operations))(f)
	receipt := encoded(f, &seqledgerv1.Receipt{TxId: "x", Sequence: 3})
	f.Add(request, []byte(nil), false)
	f.Add(request, receipt, true)
	f.Add(request[:len(request)-1], receipt, true)
	f.Add(append(request, 0xa2, 0x06, 0), append(receipt, 0xff), true) // fields of a newer version
	f.Fuzz(func(t *testing.T, request, receipt []byte, settled bool) {
		w := &Writer{mux: newMux(new(rpc.Client)),
			scope: &seqledgerv1.Scope{Organization: "acme"}, clientID: "c"}
		err := w.load(journal.State{
			Head: journal.Head{Session: 9},
			Entries: []journal.Entry{
				{ID: 1, Sequence: 3, Key: "k", Tag: "t", Request: request, Receipt: receipt, Settled: settled},
			},
		})
		operations, decodeErr := op.Decode(request)
		receiptErr := proto.Unmarshal(receipt, new(seqledgerv1.Receipt))
		if wrong := decodeErr != nil || settled && receiptErr != nil; wrong != (err != nil) {
			t.Fatalf("operations: %v, receipt: %v, and the Writer says %v", decodeErr, receiptErr, err)
		}
		if err != nil {
			return
		}
		p := w.recovered[0]
		if p.settled != settled || w.queue.len() == 0 != settled || (p.receipt != nil) != settled {
			t.Errorf("settled %v was taken up as %v, %d in the queue", settled, p.settled, w.queue.len())
		}
		if p.Sequence() != 3 || p.Key() != "k" || p.session != 9 || !bytes.Equal(p.operations, request) ||
			p.count != len(operations) {
			t.Errorf("it was taken up as %x with %d operations", p.operations, p.count)
		}
		again := encoded(t, &seqledgerv1.WriteRequest{Operations: operations})
		back, err := op.Decode(again)
		if err != nil || len(back) != len(operations) {
			t.Fatalf("%d operations are written and read as %d, %v", len(operations), len(back), err)
		}
		for i := range back {
			if !proto.Equal(back[i], operations[i]) {
				t.Errorf("operation %v is written and read as %v", operations[i], back[i])
			}
		}
	})
}

// inFlight is a Writer without a connection that has sent some writes.
func inFlight(writes uint64) *Writer {
	w := &Writer{
		mux:   newMux(&rpc.Client{Options: rpc.Options{Logger: slog.New(slog.DiscardHandler)}}),
		scope: &seqledgerv1.Scope{Organization: "acme"}, clientID: "c",
		sessionWork: make(chan struct{}, 1), done: make(chan struct{}),
		session: 5, next: writes + 1,
	}
	w.mux.writers[w] = struct{}{}
	for sequence := uint64(1); sequence <= writes; sequence++ {
		p := &Pending{writer: w, done: make(chan struct{}), durable: true}
		p.sequence, p.key = sequence, "k"
		w.queue.push(p)
		w.cursor++
		p.markSent(sequence)
	}
	return w
}

// FuzzAnswers: whatever a server answers to writes in flight, a write counts as
// committed only with a receipt of its own number, none is settled before those in
// front of it, and what has a receipt is not told to be not executed.
func FuzzAnswers(f *testing.F) {
	receipt := func(sequence uint64, replayed bool) *seqledgerv1.WriteResult {
		return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Receipt{
			Receipt: &seqledgerv1.Receipt{Sequence: sequence,
				TxId: "01234567-89ab-8def-8000-00000000000" + string('0'+rune(sequence)), Replayed: replayed},
		}}
	}
	refused := func(code seqledgerv1.WriteErrorCode) *seqledgerv1.WriteResult {
		refusal := &seqledgerv1.WriteError{Code: code}
		return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Error{Error: refusal}}
	}
	add := func(results ...*seqledgerv1.WriteResult) {
		f.Add(encoded(f, &seqledgerv1.WriteStreamResponse{Results: results}), uint8(3))
	}
	add(receipt(1, false), receipt(2, false), receipt(3, false))
	add(receipt(1, false), receipt(3, false), receipt(2, true))
	add(receipt(1, true), &seqledgerv1.WriteResult{}, receipt(3, false), receipt(4, false))
	add(receipt(1, false), receipt(2, false), receipt(3, false), receipt(4, false), receipt(5, false))
	for code := range seqledgerv1.WriteErrorCode_name {
		add(receipt(1, false), refused(seqledgerv1.WriteErrorCode(code)),
			refused(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP))
	}
	f.Fuzz(func(t *testing.T, data []byte, writes uint8) {
		response := new(seqledgerv1.WriteStreamResponse)
		if proto.Unmarshal(data, response) != nil {
			return
		}
		w := inFlight(uint64(writes%8) + 1)
		sent := make([]*Pending, w.queue.len())
		for i := range sent {
			sent[i] = w.queue.at(i)
		}
		err := w.mux.deliver(response.GetResults())
		if err != nil && !errors.Is(err, failure.ErrProtocol) {
			t.Errorf("%v is not a protocol error", err)
		}
		results := response.GetResults()
		for i, p := range sent {
			if !p.settled {
				for _, later := range sent[i:] {
					if later.settled {
						t.Errorf("write %d is settled before write %d", later.Sequence(), p.Sequence())
					}
				}
				break
			}
			select {
			case <-p.done:
			default:
				t.Errorf("write %d is settled, but its waiter was not woken", p.Sequence())
			}
			if p.err == nil {
				own := i < len(results) && results[i].GetReceipt().GetSequence() == p.Sequence()
				if p.receipt.GetSequence() != p.Sequence() || !own {
					t.Errorf("write %d is told as committed with %v", p.Sequence(), p.receipt)
				}
				continue
			}
			if errors.Is(p.err, failure.ErrNotExecuted) && i < len(results) && results[i].GetReceipt() != nil {
				t.Errorf("write %d has a receipt and is told as not executed: %v", p.Sequence(), p.err)
			}
		}
	})
}

// FuzzTxID: the ledger in a transaction's id is read from ids alone.
func FuzzTxID(f *testing.F) {
	f.Add("01234567-89ab-8def-8000-000000000007")
	f.Add("01234567-89ab-4def-8000-000000000007")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		ledger, known := ledgerOf(text)
		other, also := ledgerOf(strings.ToUpper(text))
		if digits := strings.ReplaceAll(text, "-", ""); known && (len(digits) != 32 || digits[12] != '8') ||
			known != also || ledger != other {
			t.Errorf("%q is of ledger %016x, %v; in capitals %016x, %v", text, ledger, known, other, also)
		}
	})
}

// TestReadingATxIDAllocatesNothing: every receipt comes through there.
func TestReadingATxIDAllocatesNothing(t *testing.T) { //nolint:paralleltest // It counts what is allocated.
	if n := testing.AllocsPerRun(100, func() { ledgerOf("01234567-89ab-8cde-bc00-000000000001") }); n != 0 {
		t.Error("allocations:", n)
	}
}
