package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var scope = &seqledgerv1.Scope{Organization: "chaos", Vault: "main"}

const (
	appenders   = 8 // clients that append each item once
	callers     = 4 // clients that read and write registers
	registers   = 4
	readTimeout = 5 * time.Second
)

// workload is the clients, and what they saw.
type workload struct {
	c     *cluster
	plain bool // clients that repeat under new numbers
	early bool // clients that do not wait for an answer
	began time.Time

	mu         sync.Mutex
	attempted  map[string]bool // payloads
	acked      map[string]bool // those that are acknowledged
	operations []porcupine.Operation
	slowest    time.Duration // longest wait for an acknowledgement of an append
	slowestAt  time.Duration // when it began, since began
	problems   []error
}

// settlePatience is how long clients may take, once there are no more faults, to settle what they have written. One
// that hangs is a finding, and no reason to wait.
const settlePatience = 2 * time.Minute

// start runs the clients until settle is called, which waits until everything is settled.
func (l *workload) start(ctx context.Context, o *options) (settle func() error) {
	ctx, cancel := context.WithCancel(ctx)
	over, end := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for i := range appenders {
		clients.Go(func() { l.note(l.append(ctx, over, fmt.Sprint("appender-", i))) }) // ends with over or ctx
	}
	for i := range callers {
		random := rand.New(rand.NewPCG(o.seed, uint64(i)))
		clients.Go(func() { l.note(l.call(ctx, over, i, random)) }) // the same
	}
	return func() error {
		end()
		hung := time.AfterFunc(settlePatience, cancel)
		clients.Wait()
		cancel()
		if !hung.Stop() {
			return fmt.Errorf("clients still waited for answers after %s", settlePatience)
		}
		return nil
	}
}

func (l *workload) note(err error) {
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.problems = append(l.problems, err)
	}
}

// append appends payloads that are each meant once.
func (l *workload) append(ctx, over context.Context, name string) error {
	c, err := client.New(client.Options{Server: l.c.servers()})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // What it has sent is settled.
	write, settle, err := l.writer(ctx, c, name)
	if err != nil {
		return err
	}
	for n := 0; over.Err() == nil; n++ {
		payload := fmt.Sprint(name, " ", n)
		began := l.attempt(payload)
		if err := write(op.Append([]byte(payload))); err != nil {
			return fmt.Errorf("%s: %w", payload, err)
		}
		l.acknowledged(payload, began)
	}
	return settle()
}

// writer returns how a client writes something until it takes it for acknowledged, and what it does at the end.
func (l *workload) writer(ctx context.Context, c *client.Client, name string) (
	write func(*seqledgerv1.Operation) error, settle func() error, err error,
) {
	number := 0
	anew := func(o *seqledgerv1.Operation, patience time.Duration) error {
		number++
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err := c.Write(ctx, &seqledgerv1.WriteRequest{
			Scope: scope, ClientId: fmt.Sprint(name, "-", number), Sequence: 1, Operations: []*seqledgerv1.Operation{o},
		})
		return err
	}
	switch {
	case l.plain: // what a client does that keeps no number: it repeats until it gets an answer
		return func(o *seqledgerv1.Operation) error {
			for anew(o, 200*time.Millisecond) != nil && ctx.Err() == nil {
				continue
			}
			return ctx.Err()
		}, ctx.Err, nil
	case l.early: // what a client does that takes for acknowledged what it has sent, whatever became of it
		return func(o *seqledgerv1.Operation) error {
			_ = anew(o, 20*time.Millisecond)
			return ctx.Err()
		}, ctx.Err, nil
	}
	w, err := writer.Open(ctx, c, writer.Options{Scope: scope, ClientID: name})
	if err != nil {
		return nil, nil, err
	}
	return func(o *seqledgerv1.Operation) error {
		_, err := w.Write(ctx, o)
		return err
	}, func() error { return w.Close(ctx) }, nil
}

func (l *workload) attempt(payload string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempted[payload] = true
	return time.Now()
}

func (l *workload) acknowledged(payload string, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[payload] = true
	if took := time.Since(began); took > l.slowest {
		l.slowest, l.slowestAt = took, began.Sub(l.began)
	}
}

// Kinds of what is done with a register.
const (
	kindRead = iota
	kindPut
	kindSwap // if it has a value
)

type input struct {
	kind     int
	key      string
	old, new string
}

type output struct {
	value string
	done  bool // of a swap
}

// call reads and writes registers, each through the node that it happens to ask.
func (l *workload) call(ctx, over context.Context, id int, random *rand.Rand) error {
	c, err := client.New(client.Options{Server: l.c.servers()})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // What it has sent is settled.
	var readers []*client.Client
	for _, d := range l.c.nodes {
		r, err := client.New(client.Options{Server: d.client})
		if err != nil {
			return err
		}
		defer r.Close() //nolint:errcheck // It only reads.
		readers = append(readers, r)
	}
	w, err := writer.Open(ctx, c, writer.Options{Scope: scope, ClientID: fmt.Sprint("caller-", id)})
	if err != nil {
		return err
	}
	seen := map[string]string{}
	for n := 0; over.Err() == nil; n++ {
		in := input{kind: random.IntN(3), key: fmt.Sprint("r", random.IntN(registers)), new: fmt.Sprint(id, "/", n)}
		if in.old = seen[in.key]; in.kind == kindSwap && in.old == "" {
			in.kind = kindRead
		}
		began := time.Since(l.began)
		out, err := l.perform(ctx, w, readers[random.IntN(len(readers))], in)
		if errors.Is(err, failure.ErrNotExecuted) || errors.Is(err, errNoAnswer) {
			continue // it had no effect
		}
		if err != nil {
			return fmt.Errorf("caller %d: %w", id, err)
		}
		if in.kind == kindRead || !out.done && in.kind == kindSwap {
			seen[in.key] = out.value
		} else {
			seen[in.key] = in.new
		}
		l.record(id, in, out, began)
	}
	return w.Close(ctx)
}

func (l *workload) record(id int, in input, out output, began time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.operations = append(l.operations, porcupine.Operation{
		ClientId: id, Input: in, Output: out, Call: int64(began), Return: int64(time.Since(l.began)),
	})
}

// errNoAnswer is that of a read, which changes nothing.
var errNoAnswer = errors.New("no answer")

func (l *workload) perform(ctx context.Context, w *writer.Writer, reader *client.Client, in input) (output, error) {
	switch in.kind {
	case kindRead:
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		e, err := reader.GetEntity(ctx, &seqledgerv1.GetEntityRequest{Scope: scope, Key: in.key})
		if errors.Is(err, failure.ErrNotFound) {
			return output{}, nil
		}
		if err != nil {
			return output{}, fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		return output{value: string(e.Value)}, nil
	case kindPut:
		_, err := w.Write(ctx, op.Set(in.key, []byte(in.new)))
		return output{done: true}, err
	default:
		_, err := w.Write(ctx, op.Set(in.key, []byte(in.new), op.IfValue([]byte(in.old))))
		if errors.Is(err, failure.ErrConditionFailed) {
			return output{}, nil
		}
		return output{done: true}, err
	}
}
