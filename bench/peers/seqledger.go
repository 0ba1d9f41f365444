package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// wire is seqledger serve, as users start it: alone, or three nodes that are a cluster.
type wire struct {
	nodes            int
	unary            bool // Write, else Writers over a WriteStream
	addresses, peers []string
	leader           string // its address
}

func (w *wire) launch(ctx context.Context, dir string) (started []*process.Process, err error) {
	above := filepath.Dir(dir)
	binary, token := filepath.Join(above, "seqledger-binary"), filepath.Join(above, "join-token")
	if _, err := os.Stat(binary); err != nil { // else another system has built it, or this one when it started before
		err := errors.Join(process.Build(ctx, binary), os.WriteFile(token, []byte(rand.Text()), 0o600))
		if err != nil {
			return nil, err
		}
	}
	for len(w.addresses) < w.nodes {
		address, errAddress := freeport.Address()
		peer, errPeer := freeport.Address()
		if err := errors.Join(errAddress, errPeer); err != nil {
			return nil, err
		}
		w.addresses, w.peers = append(w.addresses, address), append(w.peers, peer)
	}
	for i, address := range w.addresses {
		peer := w.peers[i]
		if w.nodes == 1 {
			peer = ""
		}
		data := filepath.Join(dir, fmt.Sprint("node", i+1))
		command := harness.ServeCommand(binary, data, address, peer, token, w.peers[:i]...)
		p, _, err := process.LaunchServer(ctx, command, data+".log")
		if err != nil {
			return started, err
		}
		p.Signal = syscall.SIGTERM
		started = append(started, p)
	}
	w.leader = w.addresses[0]
	if w.nodes > 1 {
		cluster, err := harness.AwaitVoters(ctx, strings.Join(w.addresses, ","), w.nodes)
		if err != nil {
			return started, err
		}
		for _, m := range cluster.GetMembers() {
			if m.GetId() == cluster.GetLeader() {
				w.leader = m.GetClientAddress()
			}
		}
	}
	return started, nil
}

func (w *wire) connect(ctx context.Context, _ placement) (conn, error) {
	c, err := client.New(client.Options{Server: strings.Join(w.addresses, ",")})
	if err != nil {
		return nil, err
	}
	if w.unary {
		return &unaryConn{client: c}, nil
	}
	l, err := openLink(ctx, w.leader)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &streamConn{client: c, link: l}, nil
}

var wireScope = &seqledgerv1.Scope{Organization: "bench", Vault: "peers"}

func receiptAnswer(r *seqledgerv1.Receipt, err error) (answer, error) {
	return answer{reply: r.GetTxId(), replayed: r.GetReplayed()}, err
}

// unaryConn makes a call of Write for each write.
type unaryConn struct{ client *client.Client }

func (c *unaryConn) do(ctx context.Context, j *job, _ bool) (answer, error) {
	return receiptAnswer(c.client.Write(ctx, &seqledgerv1.WriteRequest{
		Scope: wireScope, ClientId: j.client(), Sequence: j.sequence, IdempotencyKey: machine.FormatUUID(j.key()),
		Operations: []*seqledgerv1.Operation{op.Append(j.payload)},
	}))
}

func (c *unaryConn) close() error { return c.client.Close() }

// streamConn has a Writer for each stream, all over one connection.
type streamConn struct {
	client   *client.Client
	link     *link
	sessions sync.Map // of *session, by stream
}

func (c *streamConn) do(ctx context.Context, j *job, repeat bool) (answer, error) {
	if repeat {
		return c.link.do(ctx, j)
	}
	s, err := c.session(ctx, j)
	if err != nil {
		return answer{}, err
	}
	p, err := s.Submit(ctx, op.Append(j.payload))
	if err != nil {
		return answer{}, err
	}
	if p.Sequence() != j.sequence {
		return answer{}, fmt.Errorf("the Writer numbered a write %d, want %d", p.Sequence(), j.sequence)
	}
	j.session, j.sent = s.number, p.Key()
	return receiptAnswer(p.Wait(ctx))
}

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

// session is a Writer and the number of its session.
type session struct {
	*writer.Writer

	number uint64
}

// session returns the Writer of a job's stream. Calls for a stream come one by one.
func (c *streamConn) session(ctx context.Context, j *job) (*session, error) {
	if known, ok := c.sessions.Load(j.stream); ok {
		return known.(*session), nil
	}
	w, err := writer.Open(ctx, c.client, writer.Options{Scope: wireScope, ClientID: j.client()})
	if err != nil {
		return nil, err
	}
	s := &session{w, w.State().Session}
	c.sessions.Store(j.stream, s)
	return s, nil
}

func (c *streamConn) close() error {
	return errors.Join(c.link.close(), c.client.Close())
}

// link is a WriteStream for retries, which a Writer does not send without need. It has a connection to itself.
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
	l.stream, err = upgrade.Dial(ctx, upgrade.NewTransport(new(http.Transport)), url, nil, message.Codec{})
	if err != nil {
		l.cancel()
		return nil, err
	}
	l.batcher = newBatcher(l.send)
	return l, nil
}

// send sends calls in one frame, as a Writer does, and waits for their results.
func (l *link) send(calls []*call) {
	frame := new(message.Frame)
	for _, c := range calls {
		j := c.job
		stream, errStream := message.EncodeStream(wireScope, j.client())
		operations, errOperations := message.EncodeOperations([]*seqledgerv1.Operation{op.Append(j.payload)})
		c.err = errors.Join(errStream, errOperations)
		frame.Writes = append(frame.Writes, message.EncodedWrite{
			Stream: stream, Session: j.session, Sequence: j.sequence, Key: j.sent, Operations: operations,
		})
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
