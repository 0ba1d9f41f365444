package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// workersOfAbuse send requests at once.
const workersOfAbuse = 64

// flood runs workers for a time. Each calls do repeatedly with its number; do reports whether
// the call was refused.
func flood(ctx context.Context, d time.Duration, workers int,
	do func(ctx context.Context, worker int) (refused bool, err error)) (string, error) {
	deadline := time.Now().Add(d)
	var done, refusals atomic.Int64
	errs := make([]error, workers)
	var group sync.WaitGroup
	for worker := range workers {
		// Ends at the deadline or with an error; joined below.
		group.Go(func() {
			for time.Now().Before(deadline) && ctx.Err() == nil {
				refused, err := do(ctx, worker)
				if err != nil {
					errs[worker] = err
					return
				}
				done.Add(1)
				if refused {
					refusals.Add(1)
				}
			}
		})
	}
	group.Wait()
	return fmt.Sprintf("%d requests in %s: %d refused", done.Load(), d, refusals.Load()), errors.Join(errs...)
}

// appends returns writes with many operations, nearly empty.
func appends(writes, operations int, empty bool) *seqledgerv1.WriteStreamRequest {
	ops := make([]*seqledgerv1.Operation, operations)
	for i := range ops {
		if ops[i] = new(seqledgerv1.Operation); !empty {
			ops[i].Operation = &seqledgerv1.Operation_Append{Append: new(seqledgerv1.Append)}
		}
	}
	m := new(seqledgerv1.WriteStreamRequest)
	for i := range writes {
		m.Writes = append(m.Writes, &seqledgerv1.WriteRequest{
			Scope: benchScope, ClientId: fmt.Sprint("huge-", i), Sequence: 1, Operations: ops,
		})
	}
	return m
}

// hugeFrames are what takes the most memory for its bytes: a million empty
// operations, sixteen thousand that are valid, and the largest write.
func hugeFrames(ctx context.Context, o *options, address string) (string, error) {
	largest := appends(1, 1, false)
	largest.Writes[0].Operations = nil
	for range 4 {
		largest.Writes[0].Operations = append(largest.Writes[0].Operations, &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: make([]byte, 1<<20-64)}},
		})
	}
	frames := []*seqledgerv1.WriteStreamRequest{appends(1_000, 1_000, true), appends(16, 1_000, false), largest}
	return flood(ctx, scaledTime(o, 10*time.Second), workersOfAbuse,
		func(ctx context.Context, worker int) (bool, error) {
			l := openLanes(ctx, address, 1)[0]
			defer l.close()
			refused, err := l.count(frames[worker%len(frames)].Writes...)
			return refused != nil || err != nil, nil // a frame that is too much ends its stream
		})
}

// shortDeadlines give the server a millisecond.
func shortDeadlines(ctx context.Context, o *options, address string) (string, error) {
	transport := newHTTP2()
	defer transport.CloseIdleConnections() // which are ours, and not what the server keeps
	c := seqledgerv1connect.NewLedgerServiceClient(transport, "http://"+address)
	p := newPopulation("hasty-", 4*workersOfAbuse, 0)
	return flood(ctx, scaledTime(o, 10*time.Second), 4*workersOfAbuse,
		func(ctx context.Context, worker int) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err := c.Write(ctx, connect.NewRequest(p.write(worker, operation())))
			return err != nil, nil
		})
}

// onlyRetries repeat one write.
func onlyRetries(ctx context.Context, o *options, address string) (string, error) {
	lanes := openLanes(ctx, address, workersOfAbuse)
	defer closeLanes(lanes)
	p := newPopulation("again-", workersOfAbuse, 0)
	writes := make([]*seqledgerv1.WriteRequest, workersOfAbuse)
	for i := range writes {
		writes[i] = p.write(i, operation())
	}
	return flood(ctx, scaledTime(o, 10*time.Second), workersOfAbuse, func(_ context.Context, worker int) (bool, error) {
		refused, err := lanes[worker].count(writes[worker])
		if refused != nil {
			err = errors.Join(err, errors.New("a retry was refused: "+refused.Message))
		}
		return false, err
	})
}

// onlyGaps leave out a sequence each time.
func onlyGaps(ctx context.Context, o *options, address string) (string, error) {
	lanes := openLanes(ctx, address, workersOfAbuse)
	defer closeLanes(lanes)
	p := newPopulation("gap-", workersOfAbuse, 0)
	return flood(ctx, scaledTime(o, 10*time.Second), workersOfAbuse, func(_ context.Context, worker int) (bool, error) {
		w := p.write(worker, operation())
		w.Sequence++
		refused, err := lanes[worker].count(w)
		if err == nil && refused.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP {
			err = fmt.Errorf("a gap was answered with %v", refused)
		}
		return true, err
	})
}

// holdUnread begins requests whose answers are not read. begin keeps its answer until ctx ends,
// and then closes its connection.
func holdUnread(ctx context.Context, o *options, n int, begin func(ctx context.Context) error) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	var began, failed atomic.Int64
	var group sync.WaitGroup
	for range n {
		// Ends with the cancel; joined below.
		group.Go(func() {
			began.Add(1)
			if err := begin(ctx); err != nil && ctx.Err() == nil {
				failed.Add(1)
			}
		})
	}
	pause(ctx, scaledTime(o, 40*time.Second))
	cancel()
	group.Wait()
	return fmt.Sprintf("%d unread answers: %d refused", began.Load(), failed.Load()), nil
}

// fillScope makes something to read.
func fillScope(ctx context.Context, o *options, address string) error {
	l := openLanes(ctx, address, 1)[0]
	defer l.close()
	p := newPopulation("filler-", 1, 0)
	value := make([]byte, 1<<20)
	for i := range scaled(o, 64) {
		for j := range value { // what gzip makes small would fit where it is not read
			value[j] = byte(rand.Uint32())
		}
		set := &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{
			Key: fmt.Sprintf("large/%03d", i), Value: value,
		}}}
		if err := l.exchange(p.write(0, set)); err != nil {
			return err
		}
	}
	return nil
}

// stalledWatchers watch and read no blocks.
func stalledWatchers(ctx context.Context, o *options, address string) (string, error) {
	if err := fillScope(ctx, o, address); err != nil {
		return "", err
	}
	return holdUnread(ctx, o, scaled(o, 500), func(ctx context.Context) error {
		lone, disconnect := newSmallWindow()
		defer disconnect()
		c := seqledgerv1connect.NewLedgerServiceClient(lone, "http://"+address)
		stream, err := c.Watch(ctx, connect.NewRequest(&seqledgerv1.WatchRequest{Scope: benchScope, FromHeight: 1}))
		if err != nil {
			return err
		}
		<-ctx.Done()
		return stream.Close()
	})
}

// deafReaders ask for pages of four mebibytes and do not read them.
func deafReaders(ctx context.Context, o *options, address string) (string, error) {
	if err := fillScope(ctx, o, address); err != nil {
		return "", err
	}
	return holdUnread(ctx, o, scaled(o, 1_000), func(ctx context.Context) error {
		return requestUnread(ctx, address)
	})
}

// requestUnread asks for a page of entities and leaves its answer on the way.
func requestUnread(ctx context.Context, address string) error {
	url := "http://" + address + seqledgerv1connect.LedgerServiceListEntitiesProcedure
	body := strings.NewReader(`{"scope":{"organization":"acme","vault":"main"},"pageSize":1000}`)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	lone, disconnect := newSmallWindow()
	defer disconnect()
	response, err := lone.Do(request)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return response.Body.Close()
}
