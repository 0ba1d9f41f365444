package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// race reserves from many callers at once and returns the owners, and the results of the others.
func (s *subject) race(change ...func(*idempotency.ReserveRequest)) (owners []*idempotency.Ownership,
	others []idempotency.Outcome) {
	s.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	for range racers {
		// Ends with its Reserve; the Wait below joins it.
		group.Go(func() {
			r := s.request(change...)
			answer, err := s.Reserve(s.ctx, r)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				s.Errorf("Reserve: %v", err)
			case answer.Outcome == idempotency.Acquired:
				owners = append(owners, &idempotency.Ownership{Key: r.Key, Token: answer.Token, AttemptID: r.AttemptID})
			default:
				others = append(others, answer.Outcome)
			}
		})
	}
	group.Wait()
	return owners, others
}

func (s *subject) oneWinner(change ...func(*idempotency.ReserveRequest)) *idempotency.Ownership {
	s.Helper()
	owners, others := s.race(change...)
	if len(owners) != 1 || len(others) != racers-1 {
		s.Fatalf("%d owners and %v", len(owners), others)
	}
	for _, o := range others {
		if o != idempotency.InFlight {
			s.Errorf("a caller that did not win got %v", o)
		}
	}
	return owners[0]
}

func raceForOneKey(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	owner := s.oneWinner()
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, owner, result("done")))
}

func raceForATakeover(t *testing.T, store idempotency.Store) {
	s := newSubject(t, store)
	first := s.acquire(s.request(brief, takingOver))
	s.eventually("the end of the lease", func() bool {
		r, err := s.Get(s.ctx, &s.key)
		if err != nil {
			t.Fatal(err)
		}
		// The lease of a new reservation shows the store's clock.
		probe := s.request(brief, func(r *idempotency.ReserveRequest) { r.Key.Key = idempotency.NewKey("clock", 1) })
		now, err := s.Reserve(s.ctx, probe)
		if err != nil || now.Outcome != idempotency.Acquired {
			return false
		}
		_, err = s.Release(s.ctx, &idempotency.Ownership{Key: probe.Key, Token: now.Token, AttemptID: probe.AttemptID})
		return err == nil && now.LeaseExpires.Add(-time.Second).After(r.LeaseExpires)
	})
	second := s.oneWinner(takingOver)
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	s.expect("Complete by the first", idempotency.LeaseLost)(s.Complete(s.ctx, first, result("first")))
	s.expect("Complete", idempotency.OK)(s.Complete(s.ctx, second, result("second")))
}
