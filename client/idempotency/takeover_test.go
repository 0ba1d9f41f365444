package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// cutOff is a store whose next Reserve is done and not answered, because its caller goes.
type cutOff struct {
	idempotency.Store

	leave func()
}

func (s *cutOff) Reserve(ctx context.Context, r *idempotency.ReserveRequest) (*idempotency.Reservation, error) {
	answer, err := s.Store.Reserve(ctx, r)
	if leave := s.leave; leave != nil {
		s.leave = nil
		leave()
		return nil, ctx.Err()
	}
	return answer, err
}

// An owner that has taken a key over and executes nothing leaves the record as it was: the owner before it may have
// executed something. The next owner has the checkpoint, and no other request gets the key.
func TestASuccessorThatExecutesNothing(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(t *testing.T, o idempotency.DoOptions, store idempotency.Store){
		"its work says so": func(t *testing.T, o idempotency.DoOptions, store idempotency.Store) {
			check.Is(t, check.Err(o.Do(t.Context(), store, doKey(),
				answering("", idempotency.ErrNotExecuted))), idempotency.ErrNotExecuted)
		},
		"its caller has gone": func(t *testing.T, o idempotency.DoOptions, store idempotency.Store) {
			ctx, cancel := context.WithCancel(t.Context())
			if _, err := o.Do(ctx, &cutOff{store, cancel}, doKey(), unexpected(t)); err == nil {
				t.Error("the call has a result")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := idempotency.Memory()
				o := idempotency.DoOptions{
					Settings:    idempotency.Settings{OnLeaseExpired: idempotency.TakeOver, Wait: -1},
					Fingerprint: idempotency.Fingerprint{Algorithm: 1},
				}
				_, _ = o.Do(t.Context(), store, doKey(), func(ctx context.Context, owner *idempotency.Owner) ([]byte,
					error) {
					return nil, errors.Join(errors.New("killed"), owner.Checkpoint(ctx, []byte("half")))
				})
				pass(idempotency.DefaultLease)
				give(t, o, store)
				other := o
				other.Fingerprint.Digest[0] = 1
				if _, err := other.Do(t.Context(), store, doKey(),
					unexpected(t)); idempotency.CodeOf(err) != idempotency.CodeKeyReused {
					t.Errorf("another request: %v", err)
				}
				// At once: the lease has ended.
				done, err := o.Do(t.Context(), store, doKey(), func(_ context.Context,
					owner *idempotency.Owner) ([]byte, error) {
					if owner.Attempt() != 3 || string(owner.LastCheckpoint()) != "half" {
						t.Errorf("attempt %d with the checkpoint %q", owner.Attempt(), owner.LastCheckpoint())
					}
					return []byte("done"), nil
				})
				if err != nil || string(done.Response) != "done" {
					t.Errorf("%+v, %v", done, err)
				}
			})
		})
	}
}

// A first owner that executes nothing frees the key for any request, whatever happens to a lease that ends.
func TestAFirstOwnerThatExecutesNothing(t *testing.T) {
	t.Parallel()
	for _, policy := range []idempotency.LeaseExpiry{idempotency.BecomeIndeterminate, idempotency.TakeOver} {
		store := idempotency.Memory()
		o := idempotency.DoOptions{Settings: idempotency.Settings{OnLeaseExpired: policy, Wait: -1}}
		_, _ = o.Do(t.Context(), store, doKey(), answering("", idempotency.ErrNotExecuted))
		o.Fingerprint.Digest[0] = 1
		if done, err := o.Do(t.Context(), store, doKey(), answering("done", nil)); err != nil || done.Replayed {
			t.Errorf("policy %d: %+v, %v", policy, done, err)
		}
	}
}

// beating is a store whose heartbeats fail as the test says, at once or when their context ends.
type beating struct {
	idempotency.Store

	fails func(n int) bool
	hangs bool
	n     int
}

func (s *beating) Heartbeat(
	ctx context.Context, o *idempotency.Ownership, lease time.Duration,
) (*idempotency.Answer, error) {
	s.n++
	switch {
	case !s.fails(s.n):
		return s.Store.Heartbeat(ctx, o, lease)
	case s.hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("unreachable")
}

// With TakeOver an owner that cannot extend its lease is told to stop when a successor may run, and not before. With
// BecomeIndeterminate no successor can run, and the work goes on.
func TestAnOwnerThatCannotExtendItsLease(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	always, never := func(int) bool { return true }, time.Duration(0)
	for name, test := range map[string]struct {
		policy idempotency.LeaseExpiry
		fails  func(n int) bool
		hangs  bool
		stops  time.Duration // after its start
	}{
		"takeover":                {idempotency.TakeOver, always, false, lease},
		"takeover, no answer":     {idempotency.TakeOver, always, true, lease},
		"takeover, later":         {idempotency.TakeOver, func(n int) bool { return n > 3 }, false, 2 * lease},
		"takeover, for a while":   {idempotency.TakeOver, func(n int) bool { return n%2 == 1 }, false, never},
		"takeover, one is lost":   {idempotency.TakeOver, func(n int) bool { return n%2 == 1 }, true, never},
		"indeterminate":           {idempotency.BecomeIndeterminate, always, false, never},
		"indeterminate, and hang": {idempotency.BecomeIndeterminate, always, true, never},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &beating{Store: idempotency.Memory(), fails: test.fails, hangs: test.hangs}
				metrics := newCounter()
				o := idempotency.DoOptions{Settings: idempotency.Settings{
					Lease: lease, OnLeaseExpired: test.policy, Metrics: metrics,
				}}
				_, _ = o.Do(t.Context(), store, doKey(), func(ctx context.Context,
					_ *idempotency.Owner) ([]byte, error) {
					began := time.Now()
					select {
					case <-ctx.Done():
						if after := time.Since(began); after != test.stops ||
							!errors.Is(context.Cause(ctx), idempotency.ErrLeaseLost) {
							t.Errorf("it ends after %v: %v", after, context.Cause(ctx))
						}
					case <-time.After(10 * lease):
						check.Equal(t, test.stops, never, "it goes on, and may run until %v")
					}
					return nil, nil
				})
				lost := 0
				if test.stops != never {
					lost = 1
				}
				check.Equal(t, metrics.of(idempotency.EventLeaseLost), lost, "%d leases were lost")
			})
		})
	}
}

// A reservation that has waited for longer than a lease is not over when it is answered.
func TestAnOwnerThatHasWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 3 * time.Second
		store := idempotency.Memory()
		first := idempotency.NewAttemptID()
		r := must.Get(store.Reserve(t.Context(), &idempotency.ReserveRequest{Key: doKey(), AttemptID: first}))(t)
		released := make(chan error, 1)
		time.AfterFunc(9*lease, func() {
			_, err := store.Release(t.Context(), &idempotency.Ownership{
				Key: doKey(), Token: r.Token, AttemptID: first,
			})
			released <- err
		})
		o := idempotency.DoOptions{Settings: idempotency.Settings{Lease: lease, OnLeaseExpired: idempotency.TakeOver}}
		done, err := o.Do(t.Context(), store, doKey(), func(ctx context.Context, _ *idempotency.Owner) ([]byte, error) {
			pass(5 * lease)
			return []byte("done"), context.Cause(ctx)
		})
		if err != nil || string(done.Response) != "done" || <-released != nil {
			t.Errorf("%+v, %v", done, err)
		}
	})
}
