package jobs_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency/s3/jobs"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/memorybucket"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// openMemory opens a queue in a bucket in memory. From the request number dies on, none reaches the bucket: 0 is never.
func openMemory(t *testing.T, b *memorybucket.Bucket, dies int) *jobs.Queue {
	t.Helper()
	q, err := jobs.New(t.Context(), b.Client(nil, 1), memorybucket.Name, "queue")
	must.Do(t, err)
	n := 0
	if dies == 0 {
		return q
	}
	client := b.Client(func(r *http.Request) (*http.Response, error) {
		if n++; n >= dies+probeRequests {
			return nil, errDied
		}
		return b.Answer(r)
	}, 1)
	q = must.Get(jobs.New(t.Context(), client, memorybucket.Name, "queue"))(t)
	return q
}

// probeRequests is how many requests jobs.New makes.
const probeRequests = 6

var errDied = errors.New("the producer has died")

func sum(text string) string {
	hash := sha256.Sum256([]byte(text))
	return hex.EncodeToString(hash[:])
}

// Record and task have the documented names and fields.
func TestLayout(t *testing.T) {
	t.Parallel()
	b := new(memorybucket.Bucket)
	task := must.Get(openMemory(t, b, 0).Submit(t.Context(), "resize", []byte("a"), jobs.WithKey("order-4711"),
		jobs.WithScope("acme/eu"), jobs.WithTTL(time.Hour)))(t)
	hash := sum("acme/eu:order-4711")
	taskKey := "tasks/" + sum(task.ID)[:2] + "/" + task.ID + ".json"
	objects := b.Objects("queue/")
	names := []string{"queue/idempotency/acme%2Feu/" + hash + ".json", "queue/" + taskKey}
	if got := slices.Sorted(maps.Keys(objects)); !slices.Equal(got, names) {
		t.Fatalf("want the objects %q, got %q", names, got)
	}
	var record map[string]string
	must.Do(t, json.Unmarshal(objects[names[0]], &record))
	times := func(at time.Time) string { return at.Format(time.RFC3339) }
	want := map[string]string{
		"scope": "acme/eu", "key": "order-4711", "key_hash": "sha256:" + hash, "status": "ready", "task_id": task.ID,
		"task_key": taskKey, "task_type": "resize", "created_at": times(task.CreatedAt),
		"expires_at": times(task.CreatedAt.Add(time.Hour)),
		"input_hash": "sha256:" + sum("\x00\x00\x00\x00\x00\x00\x00\x06resizea"),
	}
	if !maps.Equal(record, want) {
		t.Errorf("the record is %v, want %v", record, want)
	}
	stored, err := jobs.Decode(objects[names[1]])
	if err != nil || stored.ID != task.ID || string(stored.Input) != "a" || stored.Type != "resize" ||
		stored.InputHash != want["input_hash"] || stored.Key() != taskKey {
		t.Errorf("the task is %+v, %v", stored, err)
	}
}

// A producer dies before each of its requests. Another one finishes what it began: there is one task, and never a key
// without one.
func TestRepair(t *testing.T) {
	t.Parallel()
	for dies := 1; dies <= 4; dies++ {
		b := new(memorybucket.Bucket)
		if _, err := openMemory(t, b, dies).Submit(t.Context(), "resize", []byte("a"), jobs.WithKey("k")); err == nil {
			t.Fatal("request", dies, "was made")
		}
		q := openMemory(t, b, 0)
		if dies > 2 { // there is a record: the key belongs to the first input already
			_, err := q.Submit(t.Context(), "resize", []byte("b"), jobs.WithKey("k"))
			if _, other := errors.AsType[*jobs.ConflictError](err); !other {
				t.Errorf("died before request %d: another input: %v", dies, err)
			}
		}
		task := must.Get(q.Submit(t.Context(), "resize", []byte("a"), jobs.WithKey("k")))(t)
		must.Equal(t, task.Created, dies < 4, "died before request %d: %+v", dies)
		again, err := q.Submit(t.Context(), "resize", []byte("a"), jobs.WithKey("k"))
		if err != nil || again.Created || again.ID != task.ID {
			t.Errorf("died before request %d: the next one: %+v, %v", dies, again, err)
		}
		if tasks := b.Objects("queue/tasks/"); len(tasks) != 1 || tasks["queue/"+task.Key()] == nil {
			t.Errorf("died before request %d: tasks %q", dies, slices.Collect(maps.Keys(tasks)))
		}
		for name, text := range b.Objects("queue/idempotency/") {
			check.Contains(t, string(text), `"ready"`, "died before request %d: %s is %s", dies, name, text)
		}
	}
}

// A key that has expired gets another task. The one from before stays: no worker may have taken it.
func TestExpiredKeyKeepsItsTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := new(memorybucket.Bucket)
		q := openMemory(t, b, 0)
		submit := func(input string) *jobs.Task {
			t.Helper()
			task, err := q.Submit(t.Context(), "resize", []byte(input), jobs.WithKey("k"), jobs.WithTTL(time.Minute))
			if err != nil || !task.Created {
				t.Fatalf("%+v, %v", task, err)
			}
			return task
		}
		first := submit("a")
		<-time.After(time.Minute)
		second := submit("b") // not even the input is the same
		for _, task := range []*jobs.Task{first, second} {
			stored, err := jobs.Decode(b.Objects("queue/" + task.Key())["queue/"+task.Key()])
			if err != nil || stored.ID != task.ID || string(stored.Input) != string(task.Input) {
				t.Errorf("want %+v, got %+v, %v", task, stored, err)
			}
		}
	})
}
