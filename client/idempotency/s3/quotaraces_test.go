package s3_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/internal/testkit/memorybucket"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// move is a schedule's next action on one of the waiting requests.
type move struct {
	kind    moveKind
	request int // index of a waiting request, modulo their number
}

type moveKind int

const (
	perform moveKind = iota // the bucket answers it
	lose                    // the bucket answers it, and the answer is lost
	delay                   // its client is told that it failed, and the bucket may still receive it later
	pass                    // time passes
	moveKinds
)

// waitingRequest is a request that a schedule has not yet sent to the bucket.
type waitingRequest struct {
	*http.Request

	caller   int
	answered chan answeredRequest // nil when its client has disconnected
}

type answeredRequest struct {
	*http.Response

	err error
}

// scheduledBucket is a bucket that receives its clients' requests in an order that a test chooses.
type scheduledBucket struct {
	memorybucket.Bucket

	mu      sync.Mutex
	open    bool // requests do not wait
	waiting []waitingRequest
}

var errAnswerLost = errors.New("the answer was lost")

// do returns the Doer of a caller.
func (b *scheduledBucket) do(caller int) memorybucket.Doer {
	return func(r *http.Request) (*http.Response, error) {
		b.mu.Lock()
		if b.open {
			b.mu.Unlock()
			return b.Answer(r)
		}
		if r.Body != nil { // the client reuses it for a retry
			body, err := io.ReadAll(r.Body)
			if err != nil {
				b.mu.Unlock()
				return nil, err
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		w := waitingRequest{r, caller, make(chan answeredRequest, 1)}
		b.waiting = append(b.waiting, w)
		b.mu.Unlock()
		a := <-w.answered
		return a.Response, a.err
	}
}

// step makes one move. It reports whether there was a request for it.
func (b *scheduledBucket) step(m move) bool {
	if m.kind == pass {
		time.Sleep(3 * time.Minute) //nolint:forbidigo // The clock of synctest.
		return true
	}
	b.mu.Lock()
	if len(b.waiting) == 0 {
		b.mu.Unlock()
		return false
	}
	// Not in order of arrival, which differs from run to run.
	slices.SortStableFunc(b.waiting, func(one, other waitingRequest) int { return one.caller - other.caller })
	i := m.request % len(b.waiting)
	w := b.waiting[i]
	if m.kind == delay {
		b.waiting[i].answered = nil
	} else {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	}
	b.mu.Unlock()
	var a answeredRequest
	if m.kind != delay {
		a.Response, a.err = b.Answer(w.Request)
	}
	if m.kind != perform {
		a = answeredRequest{err: errAnswerLost}
	}
	if w.answered != nil {
		w.answered <- a
	}
	return true
}

// finish lets all waiting and later requests through.
func (b *scheduledBucket) finish() {
	b.mu.Lock()
	b.open = true
	b.mu.Unlock()
	for b.step(move{}) {
	}
}

// openKeys returns the number of open records in a bucket.
func (b *scheduledBucket) openKeys() (n int, err error) {
	for _, body := range b.Objects("idempotency/") {
		var o struct {
			Record []byte `json:"record"`
		}
		if err := json.Unmarshal(body, &o); err != nil {
			return 0, err
		}
		r, err := idempotency.ListedAs(o.Record, time.Now())
		if err != nil {
			return 0, err
		}
		if r != nil && (r.State == idempotency.Pending || r.State == idempotency.Indeterminate) {
			n++
		}
	}
	return n, nil
}

// caller is a process that reserves a key and then ends the reservation, or not.
type caller struct {
	key   string
	end   int // how the reservation ends: a result, a release, an end of the lease, or not at all
	again bool
	tries int // the client's attempts for each request
}

// run makes the calls of a caller.
func (c caller) run(t *testing.T, s *s3.Store) {
	r := &idempotency.ReserveRequest{
		Key: key(c.key), AttemptID: idempotency.NewAttemptID(), Lease: time.Hour, OnLeaseExpired: idempotency.TakeOver,
	}
	answer, err := s.Reserve(t.Context(), r)
	if err != nil && c.again {
		answer, err = s.Reserve(t.Context(), r)
	}
	if err != nil || answer.Outcome != idempotency.Acquired {
		return
	}
	owner := &idempotency.Ownership{Key: r.Key, Token: answer.Token, AttemptID: r.AttemptID}
	switch c.end {
	case 0:
		_, err = s.Complete(t.Context(), owner, idempotency.Result{TTL: time.Minute})
	case 1:
		_, err = s.Release(t.Context(), owner)
	case 2:
		_, err = s.Heartbeat(t.Context(), owner, idempotency.EndLease)
	}
	_ = err // whatever the bucket has lost, the limit holds
}

// playQuota plays a schedule, and returns what went wrong.
func playQuota(t *testing.T, most int, callers []caller, moves []move) (wrong string) {
	synctest.Test(t, func(t *testing.T) {
		b := &scheduledBucket{open: true}
		var group sync.WaitGroup
		stores := make([]*s3.Store, len(callers))
		for i, c := range callers {
			client := b.Client(b.do(i), c.tries)
			s := must.Get(s3.New(t.Context(), client, s3.Options{Bucket: memorybucket.Name, MaxOpen: most}))(t)
			stores[i] = s
		}
		b.open = false
		for i, c := range callers {
			// Ends when the bucket has answered its requests, at finish at the latest; the Wait below joins it.
			group.Go(func() { c.run(t, stores[i]) })
		}
		for _, m := range moves {
			time.Sleep(time.Second) //nolint:forbidigo // Of synctest; longer than the pauses after a lost race.
			synctest.Wait()
			b.step(m)
			if n, err := b.openKeys(); wrong == "" && (err != nil || n > most) {
				wrong = fmt.Sprintf("%d keys are open, of at most %d: %v", n, most, err)
			}
		}
		b.finish()
		group.Wait()
		if n, err := b.openKeys(); wrong == "" && (err != nil || n > most) {
			wrong = fmt.Sprintf("%d keys are open in the end, of at most %d: %v", n, most, err)
		}
	})
	return wrong
}

// No more keys are open than the quota allows, whatever the order in which requests of several processes arrive,
// whichever answers are lost, and however long after their clients have disconnected requests arrive.
func TestQuotaInEveryOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.IntRange(1, 2).Draw(rt, "most")
		callers := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) caller {
			return caller{
				key:   rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "key"),
				end:   rapid.IntRange(0, 3).Draw(rt, "end"),
				again: rapid.Bool().Draw(rt, "again"), tries: rapid.IntRange(1, 3).Draw(rt, "tries"),
			}
		}), 2, 6).Draw(rt, "callers")
		moves := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) move {
			kind := perform
			if rapid.IntRange(0, 7).Draw(rt, "odd") == 0 {
				kind = moveKind(rapid.IntRange(0, int(moveKinds)-1).Draw(rt, "kind"))
			}
			return move{kind, rapid.IntRange(0, 5).Draw(rt, "request")}
		}), 40, 120).Draw(rt, "moves")
		must.Equal(rt, playQuota(t, most, callers, moves), "")
	})
}

// Two processes reserve one key at the limit. The first finds too many marks; before it has withdrawn its own mark, the
// second finds that mark. Neither may get the key, however often this happens.
func TestQuotaOfOneKeyTwice(t *testing.T) {
	t.Parallel()
	const most = 1
	synctest.Test(t, func(t *testing.T) {
		b := new(memorybucket.Bucket)
		held, goOn := make(chan struct{}), make(chan struct{})
		slow := s3Of(t, b, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "idempotency-open/") {
				held <- struct{}{}
				<-goOn
			}
			return b.Answer(r)
		}, most)
		quick := s3Of(t, b, nil, most)
		if !try(t, quick, "first") {
			t.Fatal("the first key is refused")
		}
		opened := 1
		for i := range 5 {
			k := fmt.Sprint("k", i)
			var refused sync.WaitGroup
			// Ends with its call, which waits for goOn.
			refused.Go(func() {
				if try(t, slow, k) {
					t.Errorf("%s: the first of two got it", k)
				}
			})
			<-held
			if try(t, quick, k) {
				opened++
			}
			goOn <- struct{}{}
			refused.Wait()
		}
		if opened != most {
			t.Errorf("%d keys are open, of at most %d", opened, most)
		}
	})
}

// s3Of returns a store in a bucket in memory.
func s3Of(t *testing.T, b *memorybucket.Bucket, do memorybucket.Doer, most int) *s3.Store {
	t.Helper()
	s := must.Get(s3.New(t.Context(), b.Client(do, 1), s3.Options{Bucket: memorybucket.Name, MaxOpen: most}))(t)
	return s
}
