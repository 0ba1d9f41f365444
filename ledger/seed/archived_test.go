package seed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// hungTarget never answers.
type hungTarget struct{ archive.Target }

// List implements archive.Target.
func (hungTarget) List(context.Context, string) ([]archive.Object, error) { select {} }

// hungParts never answers a read of a state.
type hungParts struct{ archive.Target }

// Open implements archive.Target.
func (h hungParts) Open(ctx context.Context, name string) (blockfile.File, error) {
	f, err := h.Target.Open(ctx, name)
	if strings.HasSuffix(name, "/00001") {
		f = hungFile{f}
	}
	return f, err
}

type hungFile struct{ blockfile.File }

// ReadAt implements io.ReaderAt.
func (hungFile) ReadAt([]byte, int64) (int, error) { select {} }

// busyTarget lets a ledger go on while a state is read.
type busyTarget struct {
	archive.Target

	once sync.Once
	goOn func()
}

// Open implements archive.Target.
func (b *busyTarget) Open(ctx context.Context, name string) (blockfile.File, error) {
	if strings.HasSuffix(name, "/00001") {
		b.once.Do(b.goOn)
	}
	return b.Target.Open(ctx, name)
}

// TestJoinWhileMuchIsWritten: a node that reads a state for long takes what the archive gets of the log meanwhile, so
// that the others know its digest yet, and have not dropped the log that follows.
func TestJoinWhileMuchIsWritten(t *testing.T) {
	t.Parallel()
	target := archive.Directory(t.TempDir())
	first := serve(t, filepath.Join(t.TempDir(), "1"), listen(t), func(o *ledger.Options) { o.Archive = target })
	must.Await(t, func() bool { return first.Stats().Archive.StateIndex > 0 }, "a state in the archive")
	listener, dir := listen(t), filepath.Join(t.TempDir(), "2")
	o := options(dir, listener.Addr().String(), first.address)
	var archived, compared uint64
	o.Archive = &busyTarget{Target: target, goOn: func() {
		write(t, first, 2)
		archived, _, _ = first.ArchivePoint(t.Context()) // an error shows below
	}}
	o.retry = time.Nanosecond
	o.RoundTripper = roundTrip(func(q *http.Request) (*http.Response, error) {
		response, err := transport.NewRoundTripper(nil).RoundTrip(q)
		switch {
		case err != nil:
		case q.URL.Path == cluster.JoinPath: // so that the entry that makes it a member is not the last one
			write(t, first, 1)
			_, _, err = first.ArchivePoint(t.Context())
		case strings.HasSuffix(q.URL.Path, "/Digest"):
			text := must.Get(io.ReadAll(response.Body))(t)
			must.Get(fmt.Sscanf(string(text), "%d-", &compared))(t)
			response.Body = io.NopCloser(bytes.NewReader(text))
		}
		return response, err
	})
	must.Do(t, Join(t.Context(), o))
	if archived == 0 || compared < archived {
		t.Errorf("it starts with index %d, and %d was archived while it read", compared, archived)
	}
}

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
		{"an archive that hangs in the middle", hungParts{target}, false, 1},
	} {
		var fetches atomic.Int32
		listener, dir := listen(t), filepath.Join(t.TempDir(), fmt.Sprint(i))
		o := options(dir, listener.Addr().String(), first.address)
		o.Archive = c.archive
		if c.fetches > 0 {
			o.patience = time.Second
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
