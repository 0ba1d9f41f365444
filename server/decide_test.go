package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server/admission"
)

// What a caller that goes away leaves in the engine counts for as long as it is there, and is stored once, if it is
// committed, and never if it is not.
func TestWritesWithoutACallerCount(t *testing.T) {
	t.Parallel()
	const size = 1_500_000 // two do not fit
	for name, test := range map[string]struct {
		d    decision
		want int64
	}{
		"committed":  {decision{outcome: machine.Outcome{Code: machine.Committed}}, size},
		"replayed":   {decision{outcome: machine.Outcome{Code: machine.Replayed}}, 0},
		"refused":    {decision{outcome: machine.Outcome{Code: machine.SequenceGap}}, 0},
		"queue full": {decision{err: ledger.ErrQueueFull}, 0},
		"draining":   {decision{err: ledger.ErrDraining}, 0},
		"unknown":    {decision{err: ledger.ErrOutcomeUnknown}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, err := admission.New(admission.Options{Shares: true, Logger: slog.New(slog.DiscardHandler)})
				must.Do(t, err)
				s := &Server{admission: c, draining: t.Context()}
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				disk := make(chan struct{})
				stored := func(out *machine.Outcome) int { return charge{stored: size}.of(out) }
				work := admission.Work{Writes: 1, Bytes: size}
				_, err = s.decide(ctx, work, stored, func(ctx context.Context) (machine.Outcome, error) {
					<-disk
					return test.d.outcome, errors.Join(test.d.err, ctx.Err())
				})
				if !errors.Is(err, ledger.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
					t.Error("the caller is told", err)
				}
				party := s.party(t.Context())
				<-time.After(time.Hour) // of the bubble
				if leave, err := c.Write(t.Context(), party, admission.Work{Writes: 1, Bytes: size}); err == nil {
					leave()
					t.Error("a write that is in the engine does not count")
				}
				check.Equal(t, c.StoredBytes(party), 0, "%d bytes are stored before anything is decided")
				close(disk)
				must.Do(t, c.AwaitDecisions(t.Context()))
				check.Equal(t, c.StoredBytes(party), test.want, "%d bytes are stored")
				leave, err := c.Write(t.Context(), party, admission.Work{Writes: 1, Bytes: size})
				must.Do(t, err, "the next write")
				leave()
			})
		})
	}
}
