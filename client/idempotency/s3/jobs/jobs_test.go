package jobs_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3/jobs"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/memorybucket"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// counter counts requests, and loses the answer to one of them.
type counter struct {
	n, lose atomic.Int32
	answer  memorybucket.Doer
}

var errLost = errors.New("the answer was lost")

func (c *counter) Do(r *http.Request) (*http.Response, error) {
	answer, err := c.answer(r)
	if c.n.Add(1) == c.lose.Load() && err == nil {
		_ = answer.Body.Close()
		return nil, errLost
	}
	return answer, err
}

// open opens a queue in a bucket and counts its requests.
func open(t *testing.T, b *memorybucket.Bucket) (*jobs.Queue, *counter) {
	t.Helper()
	c := &counter{answer: b.Answer}
	q := must.Get(jobs.New(t.Context(), b.Client(c.Do, 1), memorybucket.Name, "queue"))(t)
	return q, c
}

// A key belongs to one task. The first submit costs four requests, and each later one costs one.
func TestSubmit(t *testing.T) {
	t.Parallel()
	q, requests := open(t, new(memorybucket.Bucket))
	submit := func(want int32, input string, options ...jobs.Option) (*jobs.Task, error) {
		t.Helper()
		before := requests.n.Load()
		task, err := q.Submit(t.Context(), "resize", []byte(input), options...)
		if n := requests.n.Load() - before; n != want {
			t.Errorf("the submit took %d requests, want %d", n, want)
		}
		return task, err
	}
	key := jobs.WithKey("order-4711")
	first, err := submit(4, "a", key)
	if err != nil || !first.Created || first.ExpiresAt.Sub(first.CreatedAt) != jobs.DefaultTTL {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := submit(1, "a", key)
	if err != nil || again.Created || again.ID != first.ID || string(again.Input) != "a" || again.Type != "resize" {
		t.Errorf("the repeat: %+v, %v", again, err)
	}
	_, err = submit(1, "b", key)
	if c, ok := errors.AsType[*jobs.ConflictError](err); !ok || c.TaskID != first.ID || c.Stored != first.InputHash ||
		!strings.Contains(err.Error(), c.Stored) || !strings.Contains(err.Error(), c.Given) || c.Given == c.Stored {
		t.Errorf("another input: %v", err)
	}
	other, err := submit(4, "b", key, jobs.WithScope("other"))
	if err != nil || !other.Created || other.ID == first.ID {
		t.Errorf("another scope: %+v, %v", other, err)
	}
	check.Equal(t, first.Scope, "resize", "the scope is %q, and not the type")
	mail, err := q.Submit(t.Context(), "mail", []byte("a"), key)
	if err != nil || !mail.Created || mail.ID == first.ID {
		t.Errorf("another type: %+v, %v", mail, err)
	}
	one, errOne := submit(1, "a")
	two, errTwo := submit(1, "a")
	if errOne != nil || errTwo != nil || one.ID == two.ID {
		t.Errorf("without a key: %+v, %+v, %v, %v", one, two, errOne, errTwo)
	}
}

// race submits from many producers at once, one of which creates the task, and returns the task's id.
func race(t *testing.T, open func() *jobs.Queue, options ...jobs.Option) string {
	t.Helper()
	var group sync.WaitGroup
	var mu sync.Mutex
	ids, created := map[string]bool{}, 0
	id := ""
	for range 16 {
		q := open()
		// Ends with its Submit; the Wait below joins it.
		group.Go(func() {
			task, err := q.Submit(t.Context(), "resize", []byte("a"), options...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			id, ids[task.ID] = task.ID, true
			if task.Created {
				created++
			}
		})
	}
	group.Wait()
	if len(ids) != 1 || created != 1 {
		t.Errorf("%d tasks, %d of them created", len(ids), created)
	}
	return id
}

// Concurrent producers create one task: for a new key, and for an expired one.
func TestRace(t *testing.T) {
	t.Parallel()
	for name, openRace := range map[string]func(t *testing.T) func() *jobs.Queue{
		"Memory": func(t *testing.T) func() *jobs.Queue {
			b := new(memorybucket.Bucket)
			return func() *jobs.Queue {
				q, _ := open(t, b)
				return q
			}
		},
		"Server": func(t *testing.T) func() *jobs.Queue {
			client := servertest.S3Client(servertest.S3(t).Address)
			return func() *jobs.Queue {
				q, err := jobs.New(t.Context(), client, servertest.S3Bucket, "queue")
				check.Is(t, err, nil)
				return q
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raceTwice(t, openRace(t))
		})
	}
}

func raceTwice(t *testing.T, open func() *jobs.Queue) {
	t.Helper()
	race(t, open, jobs.WithKey("new"))
	q := open()
	old := must.Get(q.Submit(t.Context(), "resize", []byte("other"), jobs.WithKey("old"), jobs.WithTTL(time.Second)))(t)
	for i := 0; ; i++ { // until the bucket's clock, which a new task shows, reaches the expiry of the old one
		clock := must.Get(q.Submit(t.Context(), "clock", nil, jobs.WithKey(fmt.Sprint("clock", i))))(t)
		if !clock.CreatedAt.Before(old.ExpiresAt) {
			break
		}
	}
	if id := race(t, open, jobs.WithKey("old")); id == old.ID {
		t.Error("the task that has expired was returned")
	}
}

// A producer that loses the answer to one of its requests retries the submit, and gets one task.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	q, requests := open(t, new(memorybucket.Bucket))
	for lost := range int32(4) {
		key := jobs.WithKey(fmt.Sprint("k", lost))
		requests.lose.Store(requests.n.Load() + 1 + lost)
		if task, err := q.Submit(t.Context(), "resize", []byte("a"), key); !errors.Is(err, errLost) {
			t.Errorf("the answer to request %d was lost: %+v, %v", lost+1, task, err)
		}
		first, err := q.Submit(t.Context(), "resize", []byte("a"), key)
		if err != nil || first.Created != (lost < 2) { // the third request creates it
			t.Errorf("after the loss of answer %d: %+v, %v", lost+1, first, err)
		}
		check.Equal(t, must.Get(q.Submit(t.Context(), "resize", []byte("a"), key))(t).ID, first.ID,
			"after the loss of answer %d: %+v and %+v", lost+1, first)
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	q, _ := open(t, new(memorybucket.Bucket))
	for name, c := range map[string]struct {
		taskType string
		options  []jobs.Option
	}{
		"no type":    {"", nil},
		"long type":  {strings.Repeat("t", 129), nil},
		"key":        {"t", []jobs.Option{jobs.WithKey("a b")}},
		"no scope":   {"t", []jobs.Option{jobs.WithScope("")}},
		"no key":     {"t", []jobs.Option{jobs.WithKey("")}},
		"long TTL":   {"t", []jobs.Option{jobs.WithTTL(1000 * time.Hour * 24)}},
		"short TTL":  {"t", []jobs.Option{jobs.WithTTL(time.Millisecond)}},
		"long scope": {"t", []jobs.Option{jobs.WithScope(strings.Repeat("s", 129))}},
	} {
		_, err := q.Submit(t.Context(), c.taskType, nil, c.options...)
		if _, ok := errors.AsType[*idempotency.InvalidError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	check.Is(t, check.Err(jobs.Decode([]byte(`{"task_id":"x"}`))), idempotency.ErrDamaged, "Decode")
}
