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

// batcher joins the calls of many callers on one connection: a batch is
// whatever waits while the one before is under way, without timers. It is how
// our own client fills its frames, and gives pipelines to those that have them.
type batcher struct {
	calls   chan *call
	stopped chan struct{}
	once    sync.Once
	ended   sync.WaitGroup
}

// maxBatch bounds a batch, as a frame of a WriteStream is bounded.
const maxBatch = 1000

// newBatcher returns a batcher whose send answers every call of a batch, by
// setting answer or err.
func newBatcher(send func(batch []*call)) *batcher {
	b := &batcher{calls: make(chan *call, maxBatch), stopped: make(chan struct{})}
	// Ends with close, which waits for it.
	b.ended.Go(func() {
		batch := make([]*call, 0, maxBatch)
		for {
			select {
			case first := <-b.calls:
				batch = append(batch[:0], first)
			case <-b.stopped:
				return
			}
			for more := true; more && len(batch) < maxBatch; {
				select {
				case c := <-b.calls:
					batch = append(batch, c)
				default:
					more = false
				}
			}
			send(batch)
			for _, c := range batch {
				close(c.done)
			}
		}
	})
	return b
}

// do waits for the answer to a call. The caller must not return earlier, because the batch
// still uses the job; a broken connection ends send, and with it the wait.
func (b *batcher) do(ctx context.Context, j *job, _ bool) (answer, error) {
	c := &call{job: j, done: make(chan struct{})}
	select {
	case b.calls <- c:
	case <-ctx.Done():
		return answer{}, ctx.Err()
	case <-b.stopped:
		return answer{}, context.Canceled
	}
	select {
	case <-c.done:
		return c.answer, c.err
	case <-b.stopped:
		return answer{}, context.Canceled
	}
}

func (b *batcher) close() {
	b.once.Do(func() { close(b.stopped) })
	b.ended.Wait()
}

// batchers spread callers over connections. A stream always takes the same
// one, so that no two batches touch one stream.
type batchers []*batcher

func (b batchers) do(ctx context.Context, j *job, repeat bool) (answer, error) {
	return b[j.stream%len(b)].do(ctx, j, repeat)
}

func (b batchers) close() {
	for _, one := range b {
		one.close()
	}
}
