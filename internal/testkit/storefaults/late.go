package storefaults

import (
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// LateSwap holds up the message by which a reservation is stored, until another owner has used the key and finished,
// its record is gone, and the reservation is no longer valid. proxied is a store that uses the proxy, and direct one on
// the same server that is not. forget deletes the record of the key; now returns the server's time.
func LateSwap(
	t *testing.T, p *Proxy, proxied, direct idempotency.Store, forget func(), now func() time.Time,
) {
	t.Helper()
	undisturbed := newSubject(t, p, proxied)
	undisturbed.repeat(undisturbed.reserve) // makes the connection
	undisturbed = newSubject(t, p, proxied)
	p.At(0, nil)
	undisturbed.repeat(undisturbed.reserve)
	swap := p.Passed() - 1 // the last message is its answer

	s := newSubject(t, p, proxied)
	s.request.ValidUntil = now().Add(2 * time.Second)
	held, goOn := make(chan struct{}), make(chan struct{})
	p.At(swap, func() {
		close(held)
		<-goOn
	})
	type reserved struct {
		*idempotency.Reservation
		error
	}
	late := make(chan reserved, 1)
	// Ends with the message, which goOn lets through; received below.
	go func() {
		r, err := proxied.Reserve(t.Context(), s.request)
		late <- reserved{r, err}
	}()
	<-held
	other := newSubject(t, p, direct)
	other.request.Key, other.owner.Key = s.request.Key, s.request.Key
	outcome, err := other.reserve(t.Context())
	if err != nil || outcome != idempotency.Acquired {
		t.Errorf("the other owner: %v, %v", outcome, err)
	}
	if a, err := direct.Complete(t.Context(), other.owner, idempotency.Result{}); err != nil ||
		a.Outcome != idempotency.OK {
		t.Errorf("its Complete: %+v, %v", a, err)
	}
	forget()
	for !now().After(s.request.ValidUntil) {
	}
	close(goOn)
	if r := <-late; r.error != nil || r.Outcome != idempotency.Stale {
		t.Errorf("the late one, after token %d: %+v, %v", other.owner.Token, r.Reservation, r.error)
	}
}
