package transport

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// endless is an endless body that counts the bytes read from it.
type endless struct{ taken *atomic.Int64 }

func (e endless) Read(b []byte) (int, error) {
	e.taken.Add(int64(len(b)))
	return len(b), nil
}

// Neither requests whose responses nobody reads nor requests that the server does not read block consensus messages or
// other requests, in either direction.
func TestRequestsHoldBackNothing(t *testing.T) {
	t.Parallel()
	var sent, answered atomic.Int64
	one := start(t, 1, nil)
	two := start(t, 2, func(o *Options) {
		o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/answer":
				w.WriteHeader(http.StatusOK)
				_, _ = io.Copy(w, endless{&answered}) // ends with the connection
			case "/ignore":
				<-r.Context().Done()
			default:
				_, _ = fmt.Fprint(w, "here")
			}
		})
	})
	join(t, one, two)
	reach(t, one, two)
	reach(t, two, one)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ask := func(path string, body io.Reader) (*http.Response, error) {
		q := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, "http://"+two.address+path, body))(t)
		return one.RoundTripper().RoundTrip(q)
	}
	for range 4 {
		r := must.Get(ask("/answer", nil))(t)
		t.Cleanup(func() { _ = r.Body.Close() })
		go func() { // ends with ctx
			if r, err := ask("/ignore", endless{&sent}); err == nil {
				_ = r.Body.Close()
			}
		}()
	}
	// As much as a whole connection of the consensus may have in flight.
	const much = 4<<20 - 256<<10
	for deadline := time.After(time.Minute); sent.Load() < much || answered.Load() < much; {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("%d bytes were sent and %d answered", sent.Load(), answered.Load())
		}
	}
	for _, way := range [][2]*node{{one, two}, {two, one}} {
		from, to := way[0], way[1]
		from.Send([]*pb.Message{message(from.o.ID, to.o.ID, 1000, pb.MsgApp, 2<<20)})
		for m := to.get(t); m.GetIndex() != 1000; m = to.get(t) {
			continue // sent by reach
		}
	}
	r := must.Get(ask("/", nil))(t)
	if b, err := io.ReadAll(r.Body); string(b) != "here" || err != nil {
		t.Errorf("got %q, %v", b, err)
	}
	_ = r.Body.Close()
}
