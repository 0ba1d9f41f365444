// Package jobs submits tasks to an S3 bucket, each once per key.
//
//	queue, err := jobs.Open(ctx, "s3://bucket/prefix?region=eu-central-1")
//	task, err := queue.Submit(ctx, "resize", input, jobs.WithKey("order-4711"), jobs.WithScope("acme"))
//
// The same key with the same type and input returns the same task, even after a crash of the producer, or from another
// producer. With another input it returns a [*ConflictError].
//
// # Layout
//
// A key has a record, PREFIX/idempotency/{scope}/{key_hash}.json, and a task is a separate object,
// PREFIX/tasks/{shard}/{task_id}.json. In names, all characters of a scope but letters, digits, '-' and '_' have the
// form %XX, key_hash is the SHA-256, in hex, of scope, a colon and the key, and shard is the first byte, in hex, of the
// SHA-256 of task_id. The fields of a record:
//
//	scope, key          as they were given; the key is in clear, so it must be no secret
//	key_hash            sha256: and the hash in the name
//	status              creating: the task may not be there yet; ready: it was written
//	task_id, task_key   the task's id, and the name of its object after PREFIX/
//	task_type           as it was given
//	input_hash          sha256: and the SHA-256, in hex, of type and input
//	created_at, expires_at
//
// A task has scope, task_id, task_type, input (base64), input_hash, created_at and expires_at. Workers find tasks by
// listing PREFIX/tasks/ or through the bucket's notifications, and read them with [Decode]. A queue needs a prefix of
// its own: package s3 keeps other records below idempotency/.
//
// # Why a task is created once
//
// Submit writes the record as creating, the task, and the record as ready. Each write has a condition, so one of
// several producers wins. A producer that finds a record that is creating finishes what another one began: it has the
// same type and input, so it writes the same task if it is missing. That is why a worker must not delete a task
// before its expires_at: a producer that was slow could write it once more. A worker that has taken a task, or is done
// with it, overwrites it, with If-Match, so that one worker takes it.
//
// A key whose record has expired is free. The next submit replaces the record and writes another task; the task from
// before stays until a worker, or a lifecycle rule of your own, removes it. The lifecycle rule of package s3 deletes
// records only.
//
// # What it costs
//
// A first submit with a key is four requests, a retry one, and a submit without a key one. A lost race costs one more.
package jobs

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	driver "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/internal/bucket"
)

// The limits and defaults of a submit.
const (
	MaxInput   = 1 << 20 // bytes
	MaxType    = 128     // bytes
	MaxScope   = 128     // bytes
	MaxTTL     = s3.DefaultMaxTTL
	DefaultTTL = 30 * 24 * time.Hour
)

// Task is a submitted task.
type Task struct {
	ID        string    `json:"task_id"` // random
	Scope     string    `json:"scope"`
	Type      string    `json:"task_type"`
	Input     []byte    `json:"input"`
	InputHash string    `json:"input_hash"` // sha256: and the SHA-256 of type and input, in hex
	CreatedAt time.Time `json:"created_at"` // by the bucket's clock in whole seconds; without a key, the producer's
	ExpiresAt time.Time `json:"expires_at"`
	// Created is true if this call wrote the task, and false if the task was there.
	Created bool `json:"-"`
}

// Key returns the name of the task's object, after the prefix.
func (t *Task) Key() string {
	shard := sha256.Sum256([]byte(t.ID))
	return "tasks/" + hex.EncodeToString(shard[:1]) + "/" + t.ID + ".json"
}

// The states of a record.
const (
	creating = "creating"
	ready    = "ready"
)

// record is the content of a key's object.
type record struct {
	Scope     string    `json:"scope"`
	Key       string    `json:"key"`
	KeyHash   string    `json:"key_hash"`
	Status    string    `json:"status"`
	TaskID    string    `json:"task_id"`
	TaskKey   string    `json:"task_key"`
	TaskType  string    `json:"task_type"`
	InputHash string    `json:"input_hash"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

// name returns the name of the record's object.
func (r *record) name() string {
	return "idempotency/" + bucket.Escape(r.Scope) + "/" + strings.TrimPrefix(r.KeyHash, hashPrefix) + ".json"
}

// task returns the record's task. input has the hash that the record says.
func (r *record) task(input []byte) *Task {
	return &Task{
		ID: r.TaskID, Scope: r.Scope, Type: r.TaskType, Input: input, InputHash: r.InputHash, CreatedAt: r.CreatedAt,
		ExpiresAt: r.ExpiresAt,
	}
}

// ConflictError is returned for a key that belongs to another task.
type ConflictError struct {
	TaskID        string // of the task that the key belongs to
	Stored, Given string // hashes of the inputs
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("the key belongs to task %s with the input hash %s, and the input has %s", e.TaskID, e.Stored,
		e.Given)
}

// Queue submits tasks. It is safe for concurrent use.
type Queue struct{ objects *bucket.Objects }

// Open connects to a bucket; see [s3.Open] for the URL. It refuses a store that ignores conditions.
func Open(ctx context.Context, url string) (*Queue, error) {
	objects, _, err := bucket.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	return New(ctx, objects.Client, objects.Bucket, objects.Prefix)
}

// New returns a queue in a bucket below a prefix, accessed through a client.
func New(ctx context.Context, client *driver.Client, name, prefix string) (*Queue, error) {
	q := &Queue{&bucket.Objects{Client: client, Bucket: name, Prefix: prefix}}
	return q, q.objects.CheckConditions(ctx)
}

// submission holds what the options set.
type submission struct {
	key, scope string
	keyed      bool // an empty key is a mistake, and not none
	ttl        time.Duration
}

// Option configures a submit.
type Option func(*submission)

// WithKey sets the idempotency key: 1 to 256 visible ASCII characters. Without a key every submit creates a task, even
// a retry.
func WithKey(key string) Option { return func(s *submission) { s.key, s.keyed = key, true } }

// WithScope sets the scope of the key. The default is the type of the task: an equal key of another type is another
// key.
func WithScope(scope string) Option { return func(s *submission) { s.scope = scope } }

// WithTTL sets how long the key belongs to the task: 1 s to MaxTTL; the default is DefaultTTL.
func WithTTL(ttl time.Duration) Option { return func(s *submission) { s.ttl = ttl } }

// validate checks a submit.
func (s *submission) validate(taskType string, input []byte) error {
	invalid := func(field, problem string) error {
		return &idempotency.InvalidError{Field: field, Problem: problem}
	}
	switch {
	case taskType == "" || len(taskType) > MaxType:
		return invalid("type", "must have 1 to 128 bytes")
	case len(input) > MaxInput:
		return invalid("input", "must have at most 1 MiB")
	case s.scope == "" || len(s.scope) > MaxScope:
		return invalid("scope", "must have 1 to 128 bytes")
	case s.ttl < idempotency.MinTTL || s.ttl > MaxTTL:
		return invalid("TTL", fmt.Sprintf("must be %v to %v", idempotency.MinTTL, MaxTTL))
	}
	return (&idempotency.RecordKey{Key: s.key}).Validate()
}

// Submit creates a task, or returns the one that the key belongs to. An error that is neither a [*ConflictError] nor an
// [*idempotency.InvalidError] does not say whether the task was created: retry the call with its key.
func (q *Queue) Submit(ctx context.Context, taskType string, input []byte, options ...Option) (*Task, error) {
	s := submission{scope: taskType, ttl: DefaultTTL}
	for _, o := range options {
		o(&s)
	}
	if !s.keyed {
		s.key = rand.Text() // no other submit has it
	}
	if err := s.validate(taskType, input); err != nil {
		return nil, err
	}
	r := &record{
		Scope: s.scope, Key: s.key, KeyHash: hash([]byte(s.scope + ":" + s.key)), Status: creating, TaskID: rand.Text(),
		TaskType: taskType, InputHash: hashInput(taskType, input),
	}
	r.TaskKey = r.task(nil).Key()
	if !s.keyed {
		r.CreatedAt, r.ExpiresAt = time.Now().UTC(), time.Now().Add(s.ttl).UTC()
		return q.writeTask(ctx, r.task(input))
	}
	for {
		task, err := q.submit(ctx, r, input, s.ttl)
		if task != nil || err != nil {
			return task, err
		}
		// Another producer was first.
	}
}

// submit makes one attempt. It returns no task if another producer was faster.
func (q *Queue) submit(ctx context.Context, r *record, input []byte, ttl time.Duration) (*Task, error) {
	body, etag, now, err := q.objects.Get(ctx, r.name())
	if err != nil {
		return nil, err
	}
	if etag != "" {
		stored, err := decodeRecord(body, r)
		switch {
		case err != nil:
			return nil, err
		case !now.Before(stored.ExpiresAt): // only one producer replaces it, because of the ETag; its task stays
		case stored.InputHash != r.InputHash:
			return nil, &ConflictError{stored.TaskID, stored.InputHash, r.InputHash}
		case stored.Status == ready:
			return stored.task(input), nil
		default:
			return q.finish(ctx, stored, etag, input)
		}
	}
	r.CreatedAt, r.ExpiresAt = now.UTC(), now.Add(ttl).UTC()
	written, etag, err := q.put(ctx, r.name(), etag, r)
	if err != nil || !written {
		return nil, err
	}
	return q.finish(ctx, r, etag, input)
}

// finish writes the task of a record that is creating, unless another producer has, and makes the record ready.
func (q *Queue) finish(ctx context.Context, r *record, etag string, input []byte) (*Task, error) {
	task, err := q.writeTask(ctx, r.task(input))
	if err != nil {
		return nil, err
	}
	done := *r
	done.Status = ready
	// Refused if another producer was faster. The task exists either way.
	if _, _, err := q.put(ctx, r.name(), etag, &done); err != nil {
		return nil, err
	}
	return task, nil
}

// writeTask writes a task if it is missing.
func (q *Queue) writeTask(ctx context.Context, task *Task) (*Task, error) {
	written, _, err := q.put(ctx, task.Key(), "", task)
	if err != nil {
		return nil, err
	}
	task.Created = written
	return task, nil
}

// put writes an object if its ETag is the given one.
func (q *Queue) put(ctx context.Context, name, etag string, content any) (written bool, now string, err error) {
	body, err := json.Marshal(content)
	if err != nil {
		return false, "", err
	}
	return q.objects.Put(ctx, name, etag, body)
}

// hashPrefix names the algorithm of a hash.
const hashPrefix = "sha256:"

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hashPrefix + hex.EncodeToString(sum[:])
}

// hashInput returns the hash of a task's type and input.
func hashInput(taskType string, input []byte) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(len(taskType)))
	return hash(append(append(b, taskType...), input...))
}

// decodeRecord reads the record of a key.
func decodeRecord(body []byte, key *record) (*record, error) {
	r := new(record)
	err := json.Unmarshal(body, r)
	if err != nil || r.KeyHash != key.KeyHash || r.Scope != key.Scope || r.Status != creating && r.Status != ready ||
		r.TaskID == "" || r.TaskKey != r.task(nil).Key() || r.ExpiresAt.IsZero() {
		return nil, fmt.Errorf("%w: the object %s is no record of a key", idempotency.ErrDamaged, key.name())
	}
	return r, nil
}

// Decode reads the content of a task's object.
func Decode(body []byte) (*Task, error) {
	t := new(Task)
	err := json.Unmarshal(body, t)
	if err != nil || t.ID == "" || t.ExpiresAt.IsZero() || t.InputHash != hashInput(t.Type, t.Input) {
		return nil, fmt.Errorf("%w: it is no task", idempotency.ErrDamaged)
	}
	return t, nil
}
