package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/upgrade"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// link is a WriteStream for writes that the harness numbers itself: retries,
// which a Writer does not send without need, and streams too many for Writers. It
// has a connection to itself and fills its frames as the client does.
type link struct {
	stream *upgrade.ClientConn
	wake   chan struct{} // has room for one: something waits
	ended  sync.WaitGroup
	cancel context.CancelFunc

	mu      sync.Mutex
	waiting []*sent // not yet sent
	flight  []*sent // sent and not answered, in the order of the stream
	failure error   // why no more answers come
}

// sent is a request on its way.
type sent struct {
	request *seqledgerv1.WriteRequest
	result  *seqledgerv1.WriteResult
	done    chan struct{}
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

// openLink opens a WriteStream on a connection of its own.
func openLink(ctx context.Context, address string) (*link, error) {
	l := &link{wake: make(chan struct{}, 1)}
	ctx, l.cancel = context.WithCancel(ctx)
	var err error
	url := "http://" + address + seqledgerv1connect.LedgerServiceWriteStreamProcedure
	if l.stream, err = upgrade.Dial(ctx, upgrade.NewTransport(new(http.Transport)), url, nil,
		plainCodec{}); err != nil {
		l.cancel()
		return nil, err
	}
	// Both end with the stream, which close ends; joined by close.
	l.ended.Go(func() { l.send(ctx) })
	l.ended.Go(l.receive)
	return l, nil
}

// do sends one request and waits for its result.
func (l *link) do(request *seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
	s := &sent{request: request, done: make(chan struct{})}
	l.mu.Lock()
	failure := l.failure
	if failure == nil {
		l.waiting = append(l.waiting, s)
	}
	l.mu.Unlock()
	if failure != nil {
		return nil, fmt.Errorf("no answer: %w", failure)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	<-s.done
	if refusal := s.result.GetError(); refusal != nil {
		return nil, fmt.Errorf("refused: %s: %s", refusal.GetCode(), refusal.GetMessage())
	}
	if s.result.GetReceipt() == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, errors.Join(errors.New("no answer"), l.failure)
	}
	return s.result.GetReceipt(), nil
}

// send sends what waits until the link ends.
func (l *link) send(ctx context.Context) {
	frame := new(seqledgerv1.WriteStreamRequest)
	for {
		select {
		case <-l.wake:
			runtime.Gosched() // as the client does: more callers are usually about to submit
		case <-ctx.Done():
			return
		}
		for l.collect(frame) {
			// When it fails, so does receiving, which then answers everything.
			_ = l.stream.Send(frame)
		}
	}
}

// collect fills a frame with what waits, and reports whether anything did.
func (l *link) collect(frame *seqledgerv1.WriteStreamRequest) bool {
	frame.Writes = frame.Writes[:0]
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.waiting), maxBatch)
	for _, s := range l.waiting[:n] {
		frame.Writes = append(frame.Writes, s.request)
	}
	l.flight = append(l.flight, l.waiting[:n]...)
	l.waiting = slices.Delete(l.waiting, 0, n)
	return n > 0
}

// receive answers what was sent until the stream ends, then what is left.
func (l *link) receive() {
	for {
		answers := new(seqledgerv1.WriteStreamResponse)
		err := l.stream.Receive(answers)
		l.mu.Lock()
		n := len(answers.GetResults())
		if err == nil && n > len(l.flight) {
			err = errors.New("more results than writes")
		}
		if err != nil {
			l.failure = err
			for _, s := range append(l.flight, l.waiting...) {
				close(s.done)
			}
			l.flight, l.waiting = nil, nil
			l.mu.Unlock()
			return
		}
		answered := slices.Clone(l.flight[:n])
		l.flight = slices.Delete(l.flight, 0, n)
		l.mu.Unlock()
		for i, s := range answered {
			s.result = answers.GetResults()[i]
			close(s.done)
		}
	}
}

func (l *link) close() error {
	l.cancel()
	err := l.stream.Close()
	l.ended.Wait()
	return err
}
