package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// wire is a seqledger server process.
type wire struct {
	child

	multiplexed bool // Writers over a WriteStream, else Write
}

func newWire(multiplexed bool) func() system {
	return func() system {
		w := &wire{multiplexed: multiplexed}
		w.launch = func(ctx context.Context) error { return w.self(ctx, "seqledger") }
		return w
	}
}

func (w *wire) connect(ctx context.Context, at placement) (conn, error) {
	if w.multiplexed {
		return connectStream(ctx, w.address, w.address)
	}
	c, err := client.New(client.Options{Server: w.address})
	if err != nil {
		return nil, err
	}
	return &unaryConn{client: c}, nil
}

// connectStream connects Writers to servers, as client.Options has them, and a link to one of them.
func connectStream(ctx context.Context, servers, linked string) (conn, error) {
	c, err := client.New(client.Options{Server: servers})
	if err != nil {
		return nil, err
	}
	l, err := openLink(ctx, linked)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &streamConn{client: c, link: l}, nil
}

var wireScope = &seqledgerv1.Scope{Organization: "bench", Vault: "peers"}

// request is a write that the harness numbers. The Writer of its stream, if there is one, has
// given it a session and a key.
func request(j *job) *seqledgerv1.WriteRequest {
	r := &seqledgerv1.WriteRequest{
		Scope: wireScope, ClientId: j.client(), Sequence: j.sequence, IdempotencyKey: machine.FormatUUID(j.key()),
		Operations: []*seqledgerv1.Operation{appendOf(j.payload)},
	}
	if j.writer != nil {
		r.Session, r.IdempotencyKey = j.writer.session, j.sent
	}
	return r
}

func appendOf(payload []byte) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
		Append: &seqledgerv1.Append{Payload: payload},
	}}
}

func receiptAnswer(r *seqledgerv1.Receipt, err error) (answer, error) {
	return answer{reply: r.GetTxId(), replayed: r.GetReplayed()}, err
}

// unaryConn makes a call of Write for each write.
type unaryConn struct{ client *client.Client }

func (c *unaryConn) do(ctx context.Context, j *job, _ bool) (answer, error) {
	return receiptAnswer(c.client.Write(ctx, request(j)))
}

func (c *unaryConn) close() error { return c.client.Close() }

// streamConn has a Writer for each stream, all over one connection.
type streamConn struct {
	client  *client.Client
	link    *link
	writers sync.Map // of *streamWriter, by stream
}

// streamWriter is a Writer and its session.
type streamWriter struct {
	conn    *streamConn
	writer  *writer.Writer
	session uint64
}

func (c *streamConn) do(ctx context.Context, j *job, repeat bool) (answer, error) {
	if repeat {
		return c.link.do(ctx, j, repeat)
	}
	if err := c.give(ctx, j); err != nil {
		return answer{}, err
	}
	p, err := j.writer.writer.Submit(ctx, appendOf(j.payload))
	if err != nil {
		return answer{}, err
	}
	if p.Sequence() != j.sequence {
		return answer{}, fmt.Errorf("the Writer numbered a write %d, want %d", p.Sequence(), j.sequence)
	}
	j.sent = p.Key()
	return receiptAnswer(p.Wait(ctx))
}

const seqledgerKeyed = "Reserve and Complete of idempotency.Ledger, a unary call each, with lease, fencing token and " +
	"request hash, all of them compared; a call that finds the key reserved is refused"

func (c *streamConn) once(ctx context.Context, key string, work func() []byte) ([]byte, error) {
	store := idempotency.Ledger(c.client)
	request := idempotency.ReserveRequest{
		Key: idempotency.RecordKey{
			Scope:     idempotency.Scope{Organization: wireScope.GetOrganization(), Vault: wireScope.GetVault()},
			Namespace: "bench", Key: key,
		},
		Fingerprint: idempotency.Fingerprint{Algorithm: 1, Digest: sha256.Sum256([]byte(key))},
		AttemptID:   idempotency.NewAttemptID(),
	}
	reserved, err := store.Reserve(ctx, &request)
	switch {
	case err != nil:
		return nil, err
	case reserved.Outcome == idempotency.Replay:
		return reserved.Record.Response, nil
	case reserved.Outcome == idempotency.InFlight:
		return nil, errPending
	case reserved.Outcome != idempotency.Acquired:
		return nil, fmt.Errorf("the outcome of a Reserve is %s", reserved.Outcome)
	}
	owner := idempotency.Ownership{Key: request.Key, Token: reserved.Token, AttemptID: request.AttemptID}
	result := idempotency.Result{Response: work()}
	answered, err := store.Complete(ctx, &owner, result)
	if err == nil && answered.Outcome != idempotency.OK {
		err = fmt.Errorf("the outcome of a Complete is %s", answered.Outcome)
	}
	return result.Response, err
}

// give gives a job the Writer of its stream. Calls for a stream come one by one.
func (c *streamConn) give(ctx context.Context, j *job) error {
	if j.writer != nil && j.writer.conn == c {
		return nil
	}
	if known, ok := c.writers.Load(j.stream); ok {
		j.writer = known.(*streamWriter)
		return nil
	}
	w, err := writer.Open(ctx, c.client, writer.Options{Scope: wireScope, ClientID: j.client()})
	if err != nil {
		return err
	}
	j.writer = &streamWriter{conn: c, writer: w, session: w.State().Session}
	c.writers.Store(j.stream, j.writer)
	return nil
}

func (c *streamConn) close() error {
	return errors.Join(c.link.close(), c.client.Close())
}

// link is a WriteStream for writes that the harness numbers itself: retries, which a Writer does
// not send without need, and streams too many for Writers. It has a connection to itself.
type link struct {
	*batcher

	stream *upgrade.ClientConn
	cancel context.CancelFunc
}

// openLink opens a WriteStream on a new connection.
func openLink(ctx context.Context, address string) (*link, error) {
	l := &link{}
	ctx, l.cancel = context.WithCancel(ctx)
	var err error
	url := "http://" + address + seqledgerv1connect.LedgerServiceWriteStreamProcedure
	l.stream, err = upgrade.Dial(ctx, upgrade.NewTransport(new(http.Transport)), url, nil, plainCodec{})
	if err != nil {
		l.cancel()
		return nil, err
	}
	l.batcher = newBatcher(l.send)
	return l, nil
}

// send sends calls in one frame and waits for their results.
func (l *link) send(calls []*call) {
	frame := new(seqledgerv1.WriteStreamRequest)
	for _, c := range calls {
		frame.Writes = append(frame.Writes, request(c.job))
	}
	_ = l.stream.Send(frame) // when it fails, so does receiving, which says why
	for answered := 0; answered < len(calls); {
		answers := new(seqledgerv1.WriteStreamResponse)
		err := l.stream.Receive(answers)
		if err == nil && len(answers.GetResults()) > len(calls)-answered {
			err = errors.New("more results than writes")
		}
		if err != nil {
			for _, c := range calls[answered:] {
				c.err = fmt.Errorf("no answer: %w", err)
			}
			return
		}
		for _, result := range answers.GetResults() {
			c := calls[answered]
			answered++
			if refusal := result.GetError(); refusal != nil {
				c.err = fmt.Errorf("refused: %s: %s", refusal.GetCode(), refusal.GetMessage())
			}
			c.answer, _ = receiptAnswer(result.GetReceipt(), nil)
		}
	}
}

func (l *link) close() error {
	l.cancel()
	err := l.stream.Close()
	l.batcher.close()
	return err
}

// plainCodec encodes with the generated code, as the client does with writes that
// have nothing unusual.
type plainCodec struct{}

// MarshalAppend implements upgrade.Codec.
func (plainCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	frame, ok := m.(*seqledgerv1.WriteStreamRequest)
	if !ok {
		return nil, fmt.Errorf("%T is not a frame", m)
	}
	size := frame.SizeVT()
	dst = slices.Grow(dst, size)[:len(dst)+size]
	_, err := frame.MarshalToSizedBufferVT(dst[len(dst)-size:])
	return dst, err
}

// Unmarshal implements upgrade.Codec.
func (plainCodec) Unmarshal(data []byte, m any) error {
	if response, ok := m.(*seqledgerv1.WriteStreamResponse); ok {
		response.Reset()
		return response.UnmarshalVT(data)
	}
	return proto.Unmarshal(data, m.(proto.Message))
}
