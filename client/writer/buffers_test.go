package writer_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// loseFirst breaks the stream at the first write, and signals its arrival; the write is sent
// again once release is closed.
func loseFirst(s *fakeServer) (arrived, release chan struct{}) {
	arrived, release = make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	s.set(func(s *fakeServer) {
		s.onWrite = func(*seqledgerv1.WriteRequest) fault {
			if first.CompareAndSwap(false, true) {
				close(arrived)
				<-release
				return faultDrop
			}
			return faultNone
		}
	})
	return arrived, release
}

// TestBuffersAreTheCallersAgain: a service takes a payload from a pool of buffers,
// its call ends before the write is answered, and the buffer and the operation serve
// the next request. What is sent again under the first one's number and key must be
// the first one's.
func TestBuffersAreTheCallersAgain(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	arrived, release := loseFirst(s)
	w := newWriter(t, c, "till")
	buffer := []byte("pay ann 100")
	operation := &seqledgerv1.Operation{
		Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: buffer}}}
	ctx, cancel := context.WithCancel(t.Context())
	// Ends the call once its write is under way; ends itself by that.
	go func() { <-arrived; cancel() }()
	if _, err := w.Write(ctx, operation); !errors.Is(err, failure.ErrOutcomeUnknown) {
		t.Fatalf("want the caller gone before the answer, got %v", err)
	}
	copy(buffer, "pay bob 999")
	operation.GetAppend().Payload = append(buffer, " and more"...)
	operation.Operation = nil
	close(release)
	must.Do(t, w.Flush(t.Context()))
	expectHistory(t, s, "pay ann 100")
}

// TestBuffersAndTheJournal: what the journal holds, and what the next Writer sends
// from it, is what was submitted, too.
func TestBuffersAndTheJournal(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path, journal.Options{})
	w := mustJournaled(t, c, j)
	arrived, release := loseFirst(s)
	defer close(release)
	buffer := []byte("pay ann 100")
	p := must.Get(w.SubmitTagged(t.Context(), "a", &seqledgerv1.Operation{
		Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: buffer}},
	}))(t)
	copy(buffer, "pay bob 999")
	check.Equal(t, string(p.Operations()[0].GetAppend().GetPayload()), "pay ann 100",
		"what was submitted is told as %q")
	<-arrived
	path = crash(t, c, j, path)
	w = mustJournaled(t, dial(t, s), openJournal(t, path, journal.Options{}))
	must.Get(w.Recovered()[0].Wait(t.Context()))(t)
	expectHistory(t, s, "pay ann 100")
}

// TestOperationsChangedAfterClose: Close returns while the sender may be encoding a frame with
// the writes that it abandoned. The operations belong to the caller again; the race detector
// finds code that still reads them.
func TestOperationsChangedAfterClose(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for range 5 {
		w := newWriter(t, c, "till")
		var operations []*seqledgerv1.Operation
		for range 40 {
			operation := payload(strings.Repeat("x", 20<<10))
			operations = append(operations, operation)
			must.Get(w.Submit(t.Context(), operation))(t)
		}
		ended := over(t)
		_ = w.Close(ended) // lists what is open
		for _, operation := range operations {
			clear(operation.GetAppend().GetPayload())
			operation.Operation = nil
		}
	}
}
