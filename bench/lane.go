package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// newHTTP2 returns a client with one connection of its own.
func newHTTP2() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: protocols, DisableCompression: true}}
}

type writeStream = connect.BidiStreamForClient[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]

// lane is a WriteStream with one message outstanding at a time. It carries the
// writes of many clients, which a client.Writer does not.
type lane struct {
	stream *writeStream
	close  func()
}

// openLanes opens so many streams, a few on each connection.
func openLanes(ctx context.Context, address string, n int) []*lane {
	const onOneConnection = 16
	lanes := make([]*lane, n)
	var client *http.Client
	for i := range lanes {
		if i%onOneConnection == 0 {
			client = newHTTP2()
		}
		shared := client
		stream := seqledgerv1connect.NewLedgerServiceClient(shared, "http://"+address).WriteStream(ctx)
		lanes[i] = &lane{stream: stream, close: func() {
			_ = stream.CloseRequest() // the answers are all here
			_ = stream.CloseResponse()
			shared.CloseIdleConnections()
		}}
	}
	return lanes
}

func closeLanes(lanes []*lane) {
	for _, l := range lanes {
		l.close()
	}
}

// exchange sends writes in one message and waits for their results. It returns
// the first refusal as an error.
func (l *lane) exchange(writes ...*seqledgerv1.WriteRequest) error {
	refused, err := l.count(writes...)
	if err == nil && refused != nil {
		err = fmt.Errorf("refused: %s %s", refused.Code, refused.Message)
	}
	return err
}

// count is exchange, with the first refusal apart.
func (l *lane) count(writes ...*seqledgerv1.WriteRequest) (refused *seqledgerv1.WriteError, err error) {
	if err := l.stream.Send(&seqledgerv1.WriteStreamRequest{Writes: writes}); err != nil {
		if errors.Is(err, io.EOF) { // the stream is over, and the answer says why
			_, err = l.stream.Receive()
		}
		return nil, err
	}
	for answered := 0; answered < len(writes); {
		response, err := l.stream.Receive()
		if err != nil {
			return nil, err
		}
		for _, result := range response.Results {
			if e := result.GetError(); e != nil && refused == nil {
				refused = e
			}
			answered++
		}
	}
	return refused, nil
}

// pauses finds the longest time in which nothing was acknowledged.
type pauses struct {
	began   time.Time
	last    atomic.Int64 // nanoseconds since began
	longest atomic.Int64
}

func newPauses() *pauses { return &pauses{began: time.Now()} }

// acknowledged takes note of an acknowledgement.
func (p *pauses) acknowledged() {
	now := int64(time.Since(p.began))
	gap := now - p.last.Swap(now)
	for {
		longest := p.longest.Load()
		if gap <= longest || p.longest.CompareAndSwap(longest, gap) {
			return
		}
	}
}

// restart discards what precedes the measurement.
func (p *pauses) restart() {
	p.last.Store(int64(time.Since(p.began)))
	p.longest.Store(0)
}
