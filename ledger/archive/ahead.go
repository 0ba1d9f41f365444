package archive

import "context"

// ahead reads one thing while the one before it is used, because a restore spends as much time on the disk as on the
// network and the checks.
type ahead[T any] struct {
	results chan result[T]
	cancel  context.CancelFunc
}

type result[T any] struct {
	value T
	err   error
}

// readAhead begins to call get, until that returns an error, which may be io.EOF. The caller must call close.
func readAhead[T any](ctx context.Context, get func(ctx context.Context) (T, error)) *ahead[T] {
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead[T]{results: make(chan result[T]), cancel: cancel}
	go func() { // ends with the context or an error; joined by close
		defer close(a.results)
		for {
			var r result[T]
			r.value, r.err = get(ctx)
			select {
			case a.results <- r:
			case <-ctx.Done():
				return
			}
			if r.err != nil {
				return
			}
		}
	}()
	return a
}

// next returns what get has returned next. It must not be called after an error.
func (a *ahead[T]) next() (T, error) {
	r := <-a.results
	return r.value, r.err
}

// close waits until get has ended.
func (a *ahead[T]) close() {
	a.cancel()
	for range a.results { // until it is closed
	}
}
