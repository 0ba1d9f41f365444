package seed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// hungTarget never answers.
type hungTarget struct{ archive.Target }

// List implements archive.Target.
func (hungTarget) List(context.Context, string) ([]archive.Object, error) { select {} }

// TestJoinFromAnArchive: a node starts from an archive, without the state of another node, if the log there goes far
// enough and another node has the same digest where it ends. Otherwise it fetches the state of another node.
func TestJoinFromAnArchive(t *testing.T) {
	t.Parallel()
	target := archive.Directory(t.TempDir())
	first := serve(t, filepath.Join(t.TempDir(), "1"), listen(t), func(o *ledger.Options) { o.Archive = target })
	must.Await(t, func() bool { return first.Stats().Archive.StateIndex > 0 }, "a state in the archive")
	for sequence := uint64(1); sequence <= 50; sequence++ {
		write(t, first, sequence)
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a node that joins needs more of the log than there was when it asked
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_, _, _ = first.ArchivePoint(context.Background()) // an error shows in what the node starts from
			}
		}
	}()
	for i, c := range []struct {
		what    string
		archive archive.Target
		forge   bool
		fetches int32
	}{
		{"its own archive", target, false, 0},
		{"an archive whose digest no node has", target, true, 1},
		{"an empty archive", archive.Directory(t.TempDir()), false, 1},
		{"an archive that hangs", hungTarget{target}, false, 1},
	} {
		var fetches atomic.Int32
		listener, dir := listen(t), filepath.Join(t.TempDir(), fmt.Sprint(i))
		o := options(dir, listener.Addr().String(), first.address)
		o.Archive = c.archive
		if _, hangs := c.archive.(hungTarget); hangs {
			o.patience = time.Millisecond
		}
		o.RoundTripper = roundTrip(func(q *http.Request) (*http.Response, error) {
			if q.URL.Path == Path {
				fetches.Add(1)
			}
			response, err := transport.NewRoundTripper(nil).RoundTrip(q)
			if err == nil && c.forge && strings.HasSuffix(q.URL.Path, "/Digest") {
				response.Body = io.NopCloser(bytes.NewReader([]byte("1-0000000000000000\n")))
			}
			return response, err
		})
		must.Do(t, Join(t.Context(), o))
		check.Equal(t, fetches.Load(), c.fetches, "%s: the state of another node was fetched %d times, want %d", c.what)
		n := serve(t, dir, listener)
		write(t, first, uint64(51+i))
		must.Await(t, func() bool { return standing(t, n) == standing(t, first) }, "the same state")
		must.Await(t, func() bool { return len(n.Cluster().Status().Members) == 2+i }, "all members")
	}
}
