package journal

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestJournalBehindASymbolicLink: one journal by two names is one journal, and a
// link stays a link.
func TestJournalBehindASymbolicLink(t *testing.T) {
	t.Parallel()
	path := temporary(t)
	link := path + ".link"
	must.Do(t, os.Symlink(path, link))
	check.Is(t, check.Err(Open(link, Options{})), ErrMissing, "a link to nothing: want ErrMissing")
	f, err := Open(path, Options{})
	must.Do(t, err)
	begin(t, f)
	add(t, f, write(0, "a"))
	check.Is(t, check.Err(Open(link, Options{})), ErrLocked, "by its other name: want ErrLocked")
	must.Do(t, f.Close())
	f = must.Get(Open(link, Options{MustExist: true}))(t)
	defer f.Close()
	if got := only(f); fmt.Sprint(tags(got)) != "[a]" {
		t.Errorf("got %+v", got)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v", info, err)
	}
	check.Equal(t, len(must.Get(filepath.Glob(link+"?*"))(t)), 0, "files beside the link: %v")
}

// TestJournalOfManyStreams: heads alone outweigh the bound, and still a rewrite
// is rare and the file stays within what Options.MaxBytes says.
func TestJournalOfManyStreams(t *testing.T) {
	t.Parallel()
	for _, streams := range []int{15, 300} {
		m := newMemory()
		f := m.open(t, temporary(t), Options{MaxBytes: minMaxBytes})
		organization := strings.Repeat("o", 40)
		head := func(i int, session uint64) {
			name := Name{Organization: organization, ClientID: fmt.Sprint(i)}
			must.Get(f.Claim(name))(t)
			record := Record{Kind: KindHead,
				Head: Head{Ledger: 1 << 63, Session: session, NextSequence: 1, Attempt: make([]byte, attemptBytes)}}
			must.Do(t, f.Append(name, record))
			must.Do(t, f.Sync())
			f.Release(name)
		}
		for i := range streams {
			head(i, 1)
		}
		heads := len(f.snapshotOfHeads())
		bound := int64(minMaxBytes + 2*max(0, heads-minMaxBytes/8))
		rewrites := m.steps["rename"]
		for i := range 500 {
			head(i%streams, uint64(i)+2)
			if f.allocated > bound {
				t.Fatalf("%d streams: the file has %d bytes, its bound is %d", streams, f.allocated, bound)
			}
		}
		if n := m.steps["rename"] - rewrites; n > 50 {
			t.Errorf("%d streams: %d of 500 flushes were rewrites", streams, n)
		}
	}
}

// snapshotOfHeads encodes the names and heads of all streams.
func (f *File) snapshotOfHeads() []byte {
	var b []byte
	for _, s := range f.streams {
		b = appendStream(b, s.number, s.name)
		b = appendRecord(b, s.number, &Record{Kind: KindHead, Head: s.head})
	}
	return b
}

// TestJournalTagInUseWhileFull: waiting for room would be in vain, because the
// tag's own outcome may be what has to be acknowledged.
func TestJournalTagInUseWhileFull(t *testing.T) {
	t.Parallel()
	f := newMemory().open(t, temporary(t), Options{MaxBytes: minMaxBytes})
	begin(t, f)
	large := write(0, "tag")
	large.Request = make([]byte, 3600)
	add(t, f, large)
	for name, want := range map[string]error{"tag": ErrTagInUse, "other": ErrFull} {
		large.ID, large.Sequence, large.Tag = 1, 2, name
		check.Is(t, f.Append(one, large), want, "tag %q", name)
	}
}
