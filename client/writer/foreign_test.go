package writer_test

import (
	"errors"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// sharedSession opens two Writers with one AttemptID: both get one session, as a
// restarted process does that did not drop the id before it wrote.
func sharedSession(t *testing.T, c *client.Client) (first, second *writer.Writer) {
	t.Helper()
	options := writer.Options{Scope: org, ClientID: "w", AttemptID: []byte("0123456789abcdef")}
	var writers []*writer.Writer
	for range 2 {
		w := must.Get(writer.Open(t.Context(), c, options))(t)
		writers = append(writers, w)
	}
	must.Equal(t, writers[0].State().Session, writers[1].State().Session,
		"a repeated attempt must get the same session: got %v")
	return writers[0], writers[1]
}

// wantEnded fails unless w has ended with so many unsettled writes.
func wantEnded(t *testing.T, w *writer.Writer, unsettled int) {
	t.Helper()
	end, ok := errors.AsType[*writer.UnsettledError](w.Err())
	if !ok || len(end.Writes) != unsettled {
		t.Errorf("want the Writer ended with %d unsettled writes, got %v", unsettled, w.Err())
	}
}

// TestACommitProvesNothingInASharedSession: number 1 holds another client's write, so the
// commit of number 2 does not prove that our 1 has committed.
func TestACommitProvesNothingInASharedSession(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		s, c := start(t)
		first, second := sharedSession(t, c)
		must.Get(first.Write(t.Context(), payload("old")))(t)
		dropped := !lost
		release := hold(s, func(*seqledgerv1.WriteRequest) fault {
			if !dropped {
				dropped = true
				return faultDrop
			}
			return faultNone
		})
		p := burst(t, second, payload("1"), payload("2"))
		release(second, 2)
		_, err := p[0].Wait(t.Context())
		if errors.Is(err, failure.ErrNotExecuted) == lost || errors.Is(err, failure.ErrOutcomeUnknown) != lost {
			t.Errorf("lost %v: our 1 must not be reported as committed, got %v", lost, err)
		}
		wantCommitted(t, p[1], 2)
	}
}
