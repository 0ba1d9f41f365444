package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// serveLedger is the server's process.
func serveLedger(ctx context.Context, dir string) (err error) {
	server.TuneCollector() // as seqledger serve does
	logger := slog.New(slog.DiscardHandler)
	l, err := ledger.Open(ctx, ledger.Options{Dir: dir, Logger: logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	s, err := server.New(server.Options{Ledger: l, Version: "bench", Logger: logger})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return s.Serve(ctx, listener)
}

// wire is a seqledger server in a process of its own.
type wire struct {
	multiplexed bool // Writers over a WriteStream, else Write
	dir         string
	address     string
	process     *process
}

func (w *wire) start(ctx context.Context, dir string) error {
	w.dir = dir
	return w.run(ctx)
}

func (w *wire) run(ctx context.Context) (err error) {
	w.process, w.address, err = launchSelf(ctx, "seqledger", w.dir)
	return err
}

func (w *wire) restart(ctx context.Context) error {
	if err := w.process.stop(); err != nil {
		return err
	}
	return w.run(ctx)
}

func (w *wire) processes() []int { return tree(w.process.command.Process.Pid) }

func (w *wire) stop() error { return w.process.stop() }

func (w *wire) connect(ctx context.Context, at placement) (conn, error) {
	c, err := client.New(client.Options{Server: w.address})
	if err != nil {
		return nil, err
	}
	if !w.multiplexed {
		return &unaryConn{client: c}, nil
	}
	l, err := openLink(ctx, w.address)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &streamConn{client: c, link: l, numbered: at.numbered}, nil
}

var wireScope = &seqledgerv1.Scope{Organization: "bench", Vault: "peers"}

// numberedRequest is a write that the harness numbers, without a session.
func numberedRequest(prefix string, j *job) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{
		Scope: wireScope, ClientId: prefix + j.client(), Sequence: j.sequence,
		IdempotencyKey: machine.FormatUUID(j.key()),
		Operations:     appendPayload(j.payload),
	}
}

func appendPayload(payload []byte) []*seqledgerv1.Operation {
	return []*seqledgerv1.Operation{
		{Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: payload}}}}
}

func receiptAnswer(r *seqledgerv1.Receipt, err error) (answer, error) {
	return answer{reply: r.GetTxId(), replayed: r.GetReplayed()}, err
}

// unaryConn makes a call of Write for each write.
type unaryConn struct{ client *client.Client }

func (c *unaryConn) write(ctx context.Context, _ int, j *job) (answer, error) {
	return receiptAnswer(c.client.Write(ctx, numberedRequest("", j)))
}

func (c *unaryConn) retry(ctx context.Context, caller int, j *job) (answer, error) {
	return c.write(ctx, caller, j)
}

func (c *unaryConn) close() error { return c.client.Close() }

// streamConn has a Writer for each stream, all over one connection.
type streamConn struct {
	client   *client.Client
	link     *link
	numbered bool
	writers  sync.Map // of *streamWriter, by stream
}

// streamWriter is a Writer and its last write.
type streamWriter struct {
	conn    *streamConn
	writer  *client.Writer
	session uint64
	key     string
}

func (c *streamConn) write(ctx context.Context, _ int, j *job) (answer, error) {
	if c.numbered {
		return receiptAnswer(c.link.do(numberedRequest("numbered-", j)))
	}
	w, err := c.writer(ctx, j)
	if err != nil {
		return answer{}, err
	}
	p, err := w.writer.Submit(ctx, appendPayload(j.payload)...)
	if err != nil {
		return answer{}, err
	}
	if p.Sequence() != j.sequence {
		return answer{}, fmt.Errorf("the Writer numbered a write %d, want %d", p.Sequence(), j.sequence)
	}
	w.key = p.Key()
	return receiptAnswer(p.Wait(ctx))
}

// writer returns the Writer of a stream. Calls for a stream come one by one.
func (c *streamConn) writer(ctx context.Context, j *job) (*streamWriter, error) {
	if j.writer != nil && j.writer.conn == c {
		return j.writer, nil
	}
	if known, ok := c.writers.Load(j.stream); ok {
		j.writer = known.(*streamWriter)
		return j.writer, nil
	}
	writer, err := c.client.NewWriter(ctx, client.WriterOptions{Scope: wireScope, ClientID: j.client()})
	if err != nil {
		return nil, err
	}
	w := &streamWriter{conn: c, writer: writer, session: writer.State().Session}
	c.writers.Store(j.stream, w)
	return w, nil
}

func (c *streamConn) retry(ctx context.Context, caller int, j *job) (answer, error) {
	if c.numbered {
		return c.write(ctx, caller, j)
	}
	known, ok := c.writers.Load(j.stream)
	if !ok {
		return answer{}, errors.New("a retry of what was not written over this connection")
	}
	w := known.(*streamWriter)
	request := &seqledgerv1.WriteRequest{
		Scope: wireScope, ClientId: j.client(), Session: w.session, Sequence: j.sequence, IdempotencyKey: w.key,
		Operations: appendPayload(j.payload),
	}
	return receiptAnswer(c.link.do(request))
}

func (c *streamConn) close() error {
	return errors.Join(c.link.close(), c.client.Close())
}
