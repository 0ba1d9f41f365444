package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// stream is either side of a stream.
type stream interface {
	Send(*frame) error
	Receive() (*frame, error)
}

// peer is another node.
type peer struct {
	t       *Transport
	id      uint64
	address string
	ctx     context.Context //nolint:containedctx // It lives until stop.
	stop    context.CancelFunc
	wake    chan struct{} // both have capacity 1, because a second signal adds nothing
	lost    chan struct{} // messages were dropped

	mu       sync.Mutex
	urgent   []*pb.Message // overtake bulk
	bulk     []*pb.Message
	bytes    int // of both
	current  int // number of the newest stream; earlier streams end
	end      context.CancelFunc
	attached bool // the newest stream is running
}

func (t *Transport) newPeer(id uint64, address string) *peer {
	p := &peer{t: t, id: id, address: address, wake: make(chan struct{}, 1), lost: make(chan struct{}, 1)}
	p.ctx, p.stop = context.WithCancel(t.ctx)
	// Both end with stop; joined by Close.
	t.loops.Go(p.report)
	t.loops.Go(p.dial)
	return p
}

// isUrgent reports whether a message maintains or elects a leader. Such messages may overtake others, because the
// consensus accepts messages in any order.
func isUrgent(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgApp, pb.MsgSnap, pb.MsgProp:
		return false
	}
	return true
}

// enqueue queues a message, or drops it.
func (p *peer) enqueue(m *pb.Message) {
	size := core.MessageBytes(m)
	p.mu.Lock()
	// Without a stream nothing is queued, because it would be out of date by the time there is one.
	fits := p.attached && len(p.urgent)+len(p.bulk) < MaxQueueMessages && p.bytes+size <= MaxQueueBytes &&
		size <= maxFrameBytes
	switch {
	case !fits:
	case isUrgent(m):
		p.urgent = append(p.urgent, m)
		p.bytes += size
	default:
		p.bulk = append(p.bulk, m)
		p.bytes += size
	}
	p.mu.Unlock()
	if fits {
		signal(p.wake)
	} else {
		signal(p.lost)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// next returns the messages of the next frame.
func (p *peer) next() (*frame, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := new(frame)
	for len(p.urgent)+len(p.bulk) > 0 {
		from := &p.urgent
		if len(p.urgent) == 0 {
			from = &p.bulk
		}
		m := (*from)[0]
		size := core.MessageBytes(m)
		if len(f.bytes) > 0 && len(f.bytes)+size > frameBytes {
			break
		}
		(*from)[0] = nil
		*from = (*from)[1:]
		p.bytes -= size
		var err error
		if f.bytes, err = core.AppendMessage(f.bytes, m); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// report reports lost messages from a separate goroutine, because callers of Send may hold locks.
func (p *peer) report() {
	for {
		select {
		case <-p.lost:
			p.t.o.Unreachable(p.id)
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *peer) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attached
}

// attach makes a new stream the peer's only one.
func (p *peer) attach(ctx context.Context) (context.Context, int) {
	ctx, end := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		p.end() // a restarted node may reconnect before its old stream has ended
	}
	p.current++
	p.end, p.attached = end, true
	return ctx, p.current
}

// detach records that a stream has ended and drops the messages waiting for it.
func (p *peer) detach(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A newer stream has replaced this one, and must not lose its messages.
	if number != p.current {
		return
	}
	p.end()
	p.urgent, p.bulk, p.bytes = nil, nil, 0
	p.attached = false
	signal(p.lost)
}

var errEnded = errors.New("the stream was ended here")

// run sends and receives on a stream until either fails, another stream replaces it, or the peer is stopped.
func (p *peer) run(ctx context.Context, s stream) error {
	ctx, number := p.attach(ctx)
	defer p.detach(number)
	defer context.AfterFunc(p.ctx, func() { p.endStream(number) })()
	if err := s.Send(new(frame)); err != nil { // on the server side this sends the headers
		return err
	}
	// Has room for one, because run may have returned before the receiver ends.
	received := make(chan error, 1)
	// Ends when run returns, because the stream then fails; joined by Close.
	p.t.loops.Go(func() {
		err := p.receive(s)
		received <- err
		p.endStream(number)
	})
	err := p.send(ctx, s)
	select {
	case cause := <-received:
		err = cause
	default:
	}
	return err
}

func (p *peer) endStream(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number == p.current {
		p.end()
	}
}

func (p *peer) send(ctx context.Context, s stream) error {
	for {
		f, err := p.next()
		if err != nil {
			return err
		}
		if len(f.bytes) > 0 {
			if err := s.Send(f); err != nil {
				return err
			}
			if ctx.Err() == nil {
				continue
			}
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return errEnded
		}
	}
}

func (p *peer) receive(s stream) error {
	for {
		f, err := s.Receive()
		if err != nil {
			return err
		}
		messages, err := core.DecodeMessages(f.bytes)
		if err != nil {
			return err
		}
		// All are checked before one is delivered, so that a node cannot speak for another one.
		for _, m := range messages {
			if m.GetFrom() != p.id || m.GetTo() != p.t.o.ID {
				return fmt.Errorf("node %d sent a message from node %d to node %d", p.id, m.GetFrom(), m.GetTo())
			}
		}
		if len(messages) > 0 && p.ctx.Err() == nil {
			p.t.o.Receive(messages)
		}
	}
}

// awaitTurn returns when this node is to connect, or false once the peer is stopped. The lower id connects, so that
// each pair has one stream. The higher one does once it has seen none for some time: its address may have changed,
// which the other node learns from a leader, and there may be none without this stream.
func (p *peer) awaitTurn() bool {
	for missed := 0; p.id < p.t.o.ID && missed < patientRetries; missed++ {
		timer := time.NewTimer(longestRetry)
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			timer.Stop()
			return false
		}
		if p.connected() {
			missed = -1
		}
	}
	return p.ctx.Err() == nil
}

// dial keeps a stream to a peer open.
func (p *peer) dial() {
	retry, said := firstRetry, ""
	for p.awaitTurn() {
		began := time.Now()
		err := p.t.connectTo(p.ctx, p)
		if p.ctx.Err() != nil {
			return
		}
		if time.Since(began) > longestRetry {
			retry = firstRetry // the stream ran for a while
		}
		if err != nil && err.Error() != said {
			said = err.Error() // log an error once, not for each attempt
			p.t.o.Logger.Warn("no stream to a node of the cluster; it is tried again", "node", p.id,
				"address", p.address, "error", err)
		}
		timer := time.NewTimer(retry)
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			timer.Stop()
			return
		}
		retry = min(2*retry, longestRetry)
	}
}
