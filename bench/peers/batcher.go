package main

import (
	"context"
	"sync"
)

// call is a job that waits for its answer.
type call struct {
	job    *job
	answer answer
	err    error
	done   chan struct{}
}

// batcher joins the calls of many callers on one connection: a batch is whatever waits while the one before is under
// way, without timers. It is how our own client fills its frames, and gives pipelines to those that have them.
type batcher struct {
	calls chan *call
	ended sync.WaitGroup
}

// maxBatch bounds a batch, as a frame of a WriteStream is bounded.
const maxBatch = 1000

// newBatcher returns a batcher whose send answers every call of a batch, by setting answer or err.
func newBatcher(send func(batch []*call)) *batcher {
	b := &batcher{calls: make(chan *call, maxBatch)}
	b.ended.Go(func() { // ends with close, which waits for it
		var batch []*call
		for first := range b.calls {
			batch = append(batch[:0], first)
			for len(b.calls) > 0 && len(batch) < maxBatch {
				batch = append(batch, <-b.calls)
			}
			send(batch)
			for _, c := range batch {
				close(c.done)
			}
		}
	})
	return b
}

// do waits for the answer to a call, also when ctx has ended, because the batch still uses the job: a broken connection
// ends send, and with it the wait.
func (b *batcher) do(ctx context.Context, j *job) (answer, error) {
	c := &call{job: j, done: make(chan struct{})}
	select {
	case b.calls <- c:
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	<-c.done
	return c.answer, c.err
}

// close ends a batcher that is not called any more.
func (b *batcher) close() {
	close(b.calls)
	b.ended.Wait()
}

// batchers spread callers over connections. A stream always takes the same one: no two batches touch one stream.
type batchers []*batcher

func newBatchers(at placement, send func(batch []*call)) (all batchers) {
	if at.pipelined {
		for range at.connections {
			all = append(all, newBatcher(send))
		}
	}
	return all
}

func (b batchers) do(ctx context.Context, j *job) (answer, error) {
	return b[j.stream%len(b)].do(ctx, j)
}

func (b batchers) close() {
	for _, one := range b {
		one.close()
	}
}
