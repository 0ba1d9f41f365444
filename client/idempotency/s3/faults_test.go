package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	driver "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// bucketFault is what happens to a request.
type bucketFault int

const (
	refused bucketFault = iota // 503, and the bucket does not receive it
	denied                     // done, and answered with 500
	cut                        // done, and the answer is truncated
	held                       // delayed: the bucket receives it long after its client has disconnected
	nothing
)

func (f bucketFault) String() string {
	return [...]string{"refused", "denied", "cut", "held", "nothing"}[f]
}

// faultyBucket stands in front of a bucket and makes one request meet a fault.
type faultyBucket struct {
	*httptest.Server

	target string

	mu     sync.Mutex
	fault  bucketFault
	at     int // which request, from 1; 0 is none
	passed int
	late   *http.Request // the delayed request

	delayed chan struct{} // receives a value when a request is delayed
	gone    chan struct{} // receives a value when the client has given up on it
	ended   chan struct{} // closed with the test
}

func newFaultyBucket(t *testing.T, target string) *faultyBucket {
	t.Helper()
	b := &faultyBucket{
		target: target, delayed: make(chan struct{}, 1), gone: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	t.Cleanup(func() { close(b.ended) })
	return b
}

// set makes the n-th request from now on meet a fault, and returns the number of requests since the last call.
func (b *faultyBucket) set(fault bucketFault, n int) (passed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	passed = b.passed
	b.fault, b.at, b.passed = fault, n, 0
	return passed
}

func (b *faultyBucket) next() bucketFault {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passed++
	if b.passed == b.at {
		return b.fault
	}
	return nothing
}

// pass forwards a request. It keeps the client's host, which the client has signed.
func (b *faultyBucket) pass(ctx context.Context, r *http.Request, body []byte) (*http.Response, []byte, error) {
	out := r.Clone(ctx)
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", b.target
	out.Body = io.NopCloser(bytes.NewReader(body))
	answer, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return answer, text, err
}

// ServeHTTP implements http.Handler.
func (b *faultyBucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := b.next()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	switch fault {
	case refused:
		fail(w, http.StatusServiceUnavailable, "SlowDown")
		return
	case held:
		b.delay(r, body)
		panic(http.ErrAbortHandler)
	}
	answer, text, err := b.pass(r.Context(), r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if fault == denied {
		fail(w, http.StatusInternalServerError, "InternalError")
		return
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	if fault == cut {
		if len(text) == 0 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		text = text[:len(text)/2]
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(text)
	if fault == cut {
		panic(http.ErrAbortHandler)
	}
}

// delay keeps a request, and waits until its client has disconnected.
func (b *faultyBucket) delay(r *http.Request, body []byte) {
	b.mu.Lock()
	b.late = r.Clone(context.Background())
	b.late.Body = io.NopCloser(bytes.NewReader(body))
	b.mu.Unlock()
	b.delayed <- struct{}{}
	select {
	case <-r.Context().Done():
		b.gone <- struct{}{}
	case <-b.ended:
	}
}

// deliver sends the delayed request, if there is one, to the bucket.
func (b *faultyBucket) deliver(ctx context.Context) error {
	b.mu.Lock()
	late := b.late
	b.late = nil
	b.mu.Unlock()
	if late == nil {
		return nil
	}
	body, err := io.ReadAll(late.Body)
	if err != nil {
		return err
	}
	_, _, err = b.pass(ctx, late, body)
	<-b.gone
	return err
}

// fail answers with an error of S3.
func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

// client returns a client of the bucket that makes up to the given number of attempts.
func (b *faultyBucket) client(attempts int) *driver.Client {
	return driver.New(servertest.S3Client(strings.TrimPrefix(b.URL, "http://")).Options(), func(o *driver.Options) {
		o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts, o.MaxBackoff = attempts, time.Millisecond
		})
	})
}

// faultyCalls are the calls of an owner, and one by a later caller.
type faultyCalls struct {
	*testing.T

	bucket  *faultyBucket
	store   *s3.Store
	request *idempotency.ReserveRequest
	owner   *idempotency.Ownership
	failed  int // how many calls met an error
}

func newFaultyCalls(t *testing.T, b *faultyBucket, attempts int, o s3.Options) *faultyCalls {
	t.Helper()
	b.set(nothing, 0)
	o.Bucket = servertest.S3Bucket
	s := must.Get(s3.New(t.Context(), b.client(attempts), o))(t)
	r := &idempotency.ReserveRequest{Key: key(t.Name()), AttemptID: idempotency.NewAttemptID(), Lease: time.Hour}
	r.Key.Principal = t.Name()
	return &faultyCalls{t, b, s, r, &idempotency.Ownership{Key: r.Key, AttemptID: r.AttemptID}, 0}
}

// run makes all calls, retrying each after an error, and expects the outcome that it has without a fault.
func (c *faultyCalls) run() {
	c.Helper()
	c.repeat("Reserve", idempotency.Acquired, c.reserve)
	c.repeat("Heartbeat", idempotency.OK, func(ctx context.Context) (idempotency.Outcome, error) {
		return outcome(c.store.Heartbeat(ctx, c.owner, time.Hour))
	})
	c.repeat("Complete", idempotency.OK, func(ctx context.Context) (idempotency.Outcome, error) {
		return outcome(c.store.Complete(ctx, c.owner, idempotency.Result{Response: []byte("done")}))
	})
	c.repeat("Reserve of another", idempotency.Replay, c.replay)
}

func outcome(a *idempotency.Answer, err error) (idempotency.Outcome, error) {
	if err != nil {
		return 0, err
	}
	return a.Outcome, nil
}

func (c *faultyCalls) reserve(ctx context.Context) (idempotency.Outcome, error) {
	r, err := c.store.Reserve(ctx, c.request)
	if err != nil {
		return 0, err
	}
	if r.Outcome == idempotency.Acquired && r.Attempt != 1 {
		c.Errorf("attempt %d", r.Attempt)
	}
	c.owner.Token = r.Token
	return r.Outcome, nil
}

func (c *faultyCalls) replay(ctx context.Context) (idempotency.Outcome, error) {
	other := *c.request
	other.AttemptID = idempotency.NewAttemptID()
	r, err := c.store.Reserve(ctx, &other)
	if err != nil {
		return 0, err
	}
	if r.Outcome == idempotency.Replay && string(r.Record.Response) != "done" {
		c.Errorf("the stored result is %q", r.Record.Response)
	}
	return r.Outcome, nil
}

// repeat makes a call, and retries it once if it fails. It gives up when its request is delayed.
func (c *faultyCalls) repeat(
	name string, want idempotency.Outcome, do func(ctx context.Context) (idempotency.Outcome, error),
) {
	c.Helper()
	got, err := c.patiently(do)
	if err != nil {
		c.failed++
		got, err = do(c.Context())
	}
	if err != nil || got != want {
		c.Fatalf("%s: %v, %v, want %v", name, got, err, want)
	}
}

// patiently makes a call that is canceled when a request is delayed.
func (c *faultyCalls) patiently(
	do func(ctx context.Context) (idempotency.Outcome, error),
) (idempotency.Outcome, error) {
	ctx, cancel := context.WithCancel(c.Context())
	ended := make(chan struct{})
	var watching sync.WaitGroup
	// Ends with the call.
	watching.Go(func() {
		select {
		case <-c.bucket.delayed:
			cancel()
		case <-ended:
		}
	})
	defer func() {
		close(ended)
		watching.Wait()
		cancel()
	}()
	return do(ctx)
}

// Each request of a store meets each fault: the bucket refuses it, performs it but reports a failure, truncates its
// answer, or receives it when everything is over. Every call can be retried with the same meaning. Where the client
// itself retries requests, its caller does not notice.
func TestFailingAnswers(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	for _, o := range []s3.Options{{}, {MaxOpen: 1}} {
		for _, attempts := range []int{1, 3} {
			t.Run(fmt.Sprintf("quota %d/%d attempts", o.MaxOpen, attempts), func(t *testing.T) {
				t.Parallel()
				b := newFaultyBucket(t, server.Address)
				o := o
				o.Prefix = fmt.Sprintf("%d-%d", o.MaxOpen, attempts)
				undisturbed := newFaultyCalls(t, b, attempts, o)
				b.set(nothing, 0)
				undisturbed.run()
				requests := b.set(nothing, 0)
				for fault := range nothing {
					for n := 1; n <= requests; n++ {
						if testing.Short() && (attempts > 1 || o.MaxOpen == 0 || n%7 != 1+int(fault)) {
							continue // each run begins with a new store
						}
						t.Run(fmt.Sprintf("%v/%d", fault, n), func(t *testing.T) {
							meets(t, newFaultyCalls(t, b, attempts, o), fault, n, attempts)
						})
					}
				}
			})
		}
	}
}

// meets makes the calls while their n-th request meets a fault.
func meets(t *testing.T, c *faultyCalls, fault bucketFault, n, attempts int) {
	t.Helper()
	c.bucket.set(fault, n)
	c.run()
	// With a quota, a Heartbeat in the same second as its Reserve takes two more requests: it writes the mark again,
	// and reads the record. So a Heartbeat in the next second never makes the last two.
	if made := c.bucket.set(nothing, 0); made < n-2 {
		t.Errorf("there were %d requests", made)
	}
	switch {
	case c.failed > 1:
		t.Errorf("%d calls failed", c.failed)
	case attempts > 1 && (fault == refused || fault == denied) && c.failed > 0:
		t.Error("a call failed, and its request can be repeated")
	}
	must.Do(t, c.bucket.deliver(t.Context()))
	if got, err := c.replay(t.Context()); err != nil || got != idempotency.Replay {
		t.Errorf("in the end: %v, %v", got, err)
	}
	c.store.SettleAtOnce() // a leftover mark of the quota is swept after a while
	next := *c.request
	next.Key.Key += "next"
	if r, err := c.store.Reserve(t.Context(), &next); err != nil || r.Outcome != idempotency.Acquired ||
		r.Token <= c.owner.Token {
		t.Errorf("the next key: %+v, %v", r, err)
	}
}

// A temporary failure while a store is tried is not taken for the result of a condition.
func TestConditionsThroughFaults(t *testing.T) {
	t.Parallel()
	b := newFaultyBucket(t, servertest.S3(t).Address)
	open := func() error {
		_, err := s3.New(t.Context(), b.client(3), s3.Options{Bucket: servertest.S3Bucket})
		return err
	}
	must.Do(t, open())
	requests := b.set(nothing, 0)
	for _, fault := range []bucketFault{refused, denied, cut} {
		for n := 1; n <= requests; n++ {
			b.set(fault, n)
			if err := open(); errors.Is(err, s3.ErrNoConditions) || err != nil && fault != cut {
				t.Errorf("request %d is %v: %v", n, fault, err)
			}
		}
	}
}

// A call ends with its context, even while it draws a token for others.
func TestTokenOfASlowBucket(t *testing.T) {
	t.Parallel()
	b := newFaultyBucket(t, servertest.S3(t).Address)
	c := newFaultyCalls(t, b, 1, s3.Options{})
	s3.SetTokensTimeout(c.store, time.Hour)
	b.set(held, 2) // the counter's request, after the record's
	if got, err := c.patiently(c.reserve); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", got, err)
	}
	select {
	case <-b.gone:
		t.Error("the call has waited for the token")
	default:
	}
	if name := b.late.URL.Path; !strings.HasSuffix(name, "idempotency-tokens.json") {
		t.Errorf("the delayed request is %s %s", b.late.Method, name)
	}
}
