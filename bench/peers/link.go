package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// link is a WriteStream for writes that the harness numbers itself: retries,
// which a Writer does not send without need, and streams too many for Writers.
type link struct {
	stream  *connect.BidiStreamForClient[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]
	sender  *batcher
	flight  chan *sent // in the order of the stream
	ended   sync.WaitGroup
	cancel  context.CancelFunc
	client  *http.Client
	mu      sync.Mutex
	failure error // why no more answers come
}

// sent is a request on its way.
type sent struct {
	request *seqledgerv1.WriteRequest
	result  *seqledgerv1.WriteResult
	done    chan struct{}
}

// openLink opens a WriteStream on a connection of its own.
func openLink(ctx context.Context, address string) *link {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	l := &link{client: &http.Client{Transport: &http.Transport{Protocols: protocols}}, flight: make(chan *sent, 16*maxBatch)}
	ctx, l.cancel = context.WithCancel(ctx)
	service := seqledgerv1connect.NewLedgerServiceClient(l.client, "http://"+address,
		connect.WithAcceptCompression("gzip", nil, nil)) // as the client does: receipts are small and random
	l.stream = service.WriteStream(ctx)
	l.sender = newBatcher(l.send)
	// Ends with the stream, which close ends; joined by close.
	l.ended.Go(l.receive)
	return l
}

// do sends one request and waits for its result.
func (l *link) do(ctx context.Context, request *seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
	s := &sent{request: request, done: make(chan struct{})}
	// The batcher answers once the request is on its way.
	if _, err := l.sender.do(ctx, &job{request: s}, false); err != nil {
		return nil, err
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

// send puts a frame on the stream.
func (l *link) send(calls []*call) {
	frame := &seqledgerv1.WriteStreamRequest{Writes: make([]*seqledgerv1.WriteRequest, len(calls))}
	for i, one := range calls {
		frame.Writes[i] = one.job.request.request
		l.flight <- one.job.request // bounded; the receiver makes room until it ends, and then drains it
	}
	// When it fails, so does receiving, which then answers everything.
	_ = l.stream.Send(frame)
}

// receive answers what was sent until the stream ends, then what is left.
func (l *link) receive() {
	var failure error
	for failure == nil {
		var answers *seqledgerv1.WriteStreamResponse
		if answers, failure = l.stream.Receive(); failure != nil {
			break
		}
		for _, result := range answers.GetResults() {
			s := <-l.flight
			s.result = result
			close(s.done)
		}
	}
	l.mu.Lock()
	l.failure = failure
	l.mu.Unlock()
	for s := range l.flight {
		close(s.done)
	}
}

func (l *link) close() error {
	l.cancel()
	l.sender.close()
	// While the request body is open the transport does not notice the cancel.
	_ = l.stream.CloseRequest()
	close(l.flight)
	l.ended.Wait()
	l.client.CloseIdleConnections()
	return nil
}
