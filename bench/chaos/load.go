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
	attempted  map[string]bool   // payloads
	acked      map[string]string // payload to transaction
	operations []porcupine.Operation
	slowest    time.Duration // longest wait for an acknowledgement of an append
	slowestAt  time.Duration // when it began, since began
	problems   []error
}

// settlePatience is how long clients may take, once there are no more faults, to settle what they have written. One
// that hangs is a finding, and no reason to wait.
const settlePatience = 2 * time.Minute

// start runs the clients until settle is called, which waits for them.
func (l *workload) start(ctx context.Context, o *options) (settle func() error) {
	ctx, cancel := context.WithCancel(ctx)
	over, settled := make(chan struct{}), make(chan struct{})
	// Ends when over is closed and all is settled, or with ctx.
	go func() {
		defer close(settled)
		l.run(ctx, o.appenders, o.callers, o.seed, over)
	}()
	return func() (err error) {
		close(over)
		patience := time.NewTimer(settlePatience)
		defer patience.Stop()
		select {
		case <-settled:
		case <-patience.C:
			err = fmt.Errorf("clients still wait for answers after %s", settlePatience)
		}
		cancel()
		// Waited for, because what the clients have noted is read next.
		<-settled
		return err
	}
}

// run starts the clients and returns when over is closed and everything is settled.
func (l *workload) run(ctx context.Context, appenders, callers int, seed uint64, over <-chan struct{}) {
	var clients sync.WaitGroup
	for i := range appenders {
		clients.Go(func() { l.note(l.append(ctx, fmt.Sprint("appender-", i), over)) }) // ends with over or ctx
	}
	for i := range callers {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		clients.Go(func() { l.note(l.call(ctx, i, random, over)) }) // the same
	}
	clients.Wait()
}

func ended(over <-chan struct{}) bool {
	select {
	case <-over:
		return true
	default:
		return false
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
func (l *workload) append(ctx context.Context, name string, over <-chan struct{}) error {
	c, err := client.New(client.Options{Server: l.c.servers()})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // What it has sent is settled.
	if l.plain {
		return l.appendPlainly(ctx, c, name, over)
	}
	if l.early {
		return l.appendEarly(ctx, c, name, over)
	}
	w, err := writer.Open(ctx, c, writer.Options{Scope: scope, ClientID: name})
	if err != nil {
		return err
	}
	for n := 0; !ended(over); n++ {
		payload := fmt.Sprint(name, " ", n)
		began := l.attempt(payload)
		receipt, err := w.Write(ctx, op.Append([]byte(payload)))
		if err != nil {
			return fmt.Errorf("%s: %w", payload, err)
		}
		l.acknowledged(payload, receipt.TxId, began)
	}
	return w.Close(ctx)
}

// appendPlainly is what a client does that keeps no number: it repeats until it gets an answer.
func (l *workload) appendPlainly(ctx context.Context, c *client.Client, name string, over <-chan struct{}) error {
	sequence := uint64(0)
	for n := 0; !ended(over); n++ {
		payload := fmt.Sprint(name, " ", n)
		began := l.attempt(payload)
		for ctx.Err() == nil {
			sequence++
			attempt, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			receipt, err := c.Write(attempt, &seqledgerv1.WriteRequest{
				Scope: scope, ClientId: fmt.Sprint(name, "-", sequence), Sequence: 1,
				Operations: []*seqledgerv1.Operation{op.Append([]byte(payload))},
			})
			cancel()
			if err == nil {
				l.acknowledged(payload, receipt.TxId, began)
				break
			}
		}
	}
	return ctx.Err()
}

// earlyPatience is what a client gives a write that does not wait for its outcome.
const earlyPatience = 20 * time.Millisecond

// appendEarly is what a client does that takes for acknowledged what it has sent.
func (l *workload) appendEarly(ctx context.Context, c *client.Client, name string, over <-chan struct{}) error {
	for n := 0; !ended(over) && ctx.Err() == nil; n++ {
		payload := fmt.Sprint(name, " ", n)
		began := l.attempt(payload)
		attempt, cancel := context.WithTimeout(ctx, earlyPatience)
		_, _ = c.Write(attempt, &seqledgerv1.WriteRequest{ // whatever became of it: that is what the control is about
			Scope: scope, ClientId: fmt.Sprint(name, "-", n), Sequence: 1,
			Operations: []*seqledgerv1.Operation{op.Append([]byte(payload))},
		})
		cancel()
		l.acknowledged(payload, "", began)
	}
	return ctx.Err()
}

func (l *workload) attempt(payload string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempted[payload] = true
	return time.Now()
}

func (l *workload) acknowledged(payload, tx string, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[payload] = tx
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
func (l *workload) call(ctx context.Context, id int, random *rand.Rand, over <-chan struct{}) error {
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
	for n := 0; !ended(over); n++ {
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
