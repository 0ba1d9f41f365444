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
// A task is one object, PREFIX/idempotency/jobs.{scope}/{key_hash}.json, where key_hash is the SHA-256, in hex, of
// scope, a colon and the key. Record and task are deliberately one object: one conditional request creates both, so
// that there is never a record without its task, and no producer has to repair what another one has begun. Its fields:
// scope, key_hash, status (ready), task_id, type, input (base64), input_hash, created_at, expires_at. Workers find
// tasks by listing or through the bucket's notifications, and read them with [Decode].
//
// # What it costs
//
// A first submit with a key is two requests, a retry one, and a submit without a key one. A lost race costs one more.
//
// An expired task counts as absent. The lifecycle rule of package s3 deletes it.
package jobs

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	driver "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/client/idempotency/s3/internal/bucket"
)

// The limits and defaults of a submit.
const (
	MaxInput     = 1 << 20 // bytes
	MaxType      = 128     // bytes
	MaxScope     = 128     // bytes
	MaxTTL       = s3.DefaultMaxTTL
	DefaultTTL   = 30 * 24 * time.Hour
	DefaultScope = "default"
)

// Task is a submitted task.
type Task struct {
	ID        string    `json:"task_id"` // random
	Scope     string    `json:"scope"`
	Type      string    `json:"type"`
	Input     []byte    `json:"input"`
	InputHash string    `json:"input_hash"` // SHA-256 of type and input, in hex
	CreatedAt time.Time `json:"created_at"` // by the bucket's clock in whole seconds; without a key, the producer's
	ExpiresAt time.Time `json:"expires_at"`
	// Created is true if this call created the task, and false if the task already existed.
	Created bool `json:"-"`
}

// object is the content of a task's object.
type object struct {
	Task

	KeyHash string `json:"key_hash"`
	Status  string `json:"status"`
}

// ConflictError is returned for a key that belongs to another task.
type ConflictError struct {
	TaskID        string // of the task that the key belongs to
	Stored, Given string // hashes of the inputs
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("the key stands for task %s with the input hash %s, and not for %s", e.TaskID, e.Stored, e.Given)
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
	ttl        time.Duration
}

// Option configures a submit.
type Option func(*submission)

// WithKey sets the idempotency key: 1 to 256 visible ASCII characters. Without a key every submit creates a task, even
// a retry.
func WithKey(key string) Option { return func(s *submission) { s.key = key } }

// WithScope sets the scope of the key; the default is DefaultScope.
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
	s := submission{scope: DefaultScope, ttl: DefaultTTL}
	for _, o := range options {
		o(&s)
	}
	keyed := s.key != ""
	if !keyed {
		s.key = rand.Text() // no other submit has it
	}
	if err := s.validate(taskType, input); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(s.scope + ":" + s.key))
	o := object{
		Task: Task{
			ID: rand.Text(), Scope: s.scope, Type: taskType, Input: input, InputHash: hashInput(taskType, input),
		},
		KeyHash: hex.EncodeToString(sum[:]), Status: "ready",
	}
	name := "idempotency/jobs." + bucket.Escape(s.scope) + "/" + o.KeyHash + ".json"
	if !keyed {
		return q.create(ctx, name, "", &o, time.Now(), s.ttl)
	}
	for {
		task, err := q.submit(ctx, name, &o, s.ttl)
		if task != nil || err != nil {
			return task, err
		}
		// Another producer was first.
	}
}

// submit makes one attempt. It returns no task if another producer was faster.
func (q *Queue) submit(ctx context.Context, name string, o *object, ttl time.Duration) (*Task, error) {
	body, etag, now, err := q.objects.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	if etag != "" {
		stored, err := Decode(body)
		if err != nil {
			return nil, err
		}
		switch {
		case !now.Before(stored.ExpiresAt): // only one producer replaces it, because of the ETag
		case stored.InputHash != o.InputHash:
			return nil, &ConflictError{stored.ID, stored.InputHash, o.InputHash}
		default:
			stored.Created = stored.ID == o.ID // by an attempt whose answer was lost
			return stored, nil
		}
	}
	return q.create(ctx, name, etag, o, now, ttl)
}

// create writes the object of a task, unless another producer was faster.
func (q *Queue) create(
	ctx context.Context, name, etag string, o *object, now time.Time, ttl time.Duration,
) (*Task, error) {
	o.CreatedAt, o.ExpiresAt = now.UTC(), now.Add(ttl).UTC()
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	written, _, err := q.objects.Put(ctx, name, etag, body)
	if err != nil || !written {
		return nil, err
	}
	task := o.Task
	task.Created = true
	return &task, nil
}

// hashInput returns the hash of a task's type and input.
func hashInput(taskType string, input []byte) string {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(taskType))))
	h.Write([]byte(taskType))
	h.Write(input)
	return hex.EncodeToString(h.Sum(nil))
}

// Decode reads the content of a task's object.
func Decode(body []byte) (*Task, error) {
	var o object
	err := json.Unmarshal(body, &o)
	if err != nil || o.Status != "ready" || o.ID == "" || o.ExpiresAt.IsZero() ||
		o.InputHash != hashInput(o.Type, o.Input) {
		return nil, fmt.Errorf("%w: it is no task", idempotency.ErrDamaged)
	}
	return &o.Task, nil
}
