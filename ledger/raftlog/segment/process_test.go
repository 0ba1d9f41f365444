package segment_test

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

const childDirectory = "SEGMENT_TEST_DIRECTORY"

// TestMain runs the writer that TestKilledProcess kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childDirectory); dir != "" {
		if err := writeForEver(dir); err != nil {
			fmt.Println(err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func childOptions(dir string) segment.Options {
	return segment.Options{
		Disk: segment.OpenDirectory(dir), Identity: identity, SegmentBytes: 32 << 10, Random: rand.Reader,
	}
}

// writeForEver appends entries that hold their index and prints each durable index.
func writeForEver(dir string) error {
	l, err := segment.Open(childOptions(dir))
	if err != nil {
		return err
	}
	for i := l.Last().Index + 1; ; i++ {
		data := binary.BigEndian.AppendUint64(make([]byte, i%700, 708), i)
		state := &segment.State{Term: 1, Commit: i - 1}
		if err := l.Append(state, []segment.Entry{{Index: i, Term: 1, Data: data}}); err != nil {
			return err
		}
		if err := l.Sync(); err != nil {
			return err
		}
		fmt.Println(i)
		if i%100 == 0 {
			if err := l.Truncate(segment.Checkpoint{Position: segment.Position{Index: i - 50, Term: 1}}); err != nil {
				return err
			}
		}
	}
}

// TestKilledProcess kills a writer with SIGKILL again and again, and expects to find everything that it had reported.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, segment.Create(childOptions(dir), segment.Checkpoint{}, segment.State{}))
	reported := uint64(0)
	for life := range 8 {
		child := exec.Command(os.Args[0]) //nolint:gosec // It is this test.
		child.Env = append(os.Environ(), childDirectory+"="+dir)
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		must.Do(t, err)
		lines := bufio.NewScanner(out)
		for n := 0; n < 150+life*61 && lines.Scan(); n++ {
			i, err := strconv.ParseUint(strings.TrimSpace(lines.Text()), 10, 64)
			if err != nil {
				t.Fatalf("the writer failed: %s", lines.Text())
			}
			reported = i
		}
		must.Do(t, child.Process.Kill())
		for lines.Scan() { // drains the pipe
			if i, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil {
				reported = i
			}
		}
		_ = child.Wait()
		l, err := segment.Open(childOptions(dir))
		must.Do(t, err, "life %d", life)
		if l.Last().Index < reported || l.State().Commit+1 < reported {
			t.Fatalf("life %d: it ends at %d with %v, and %d was reported", life, l.Last().Index, l.State(), reported)
		}
		entries := must.Get(l.Entries(l.First(), l.Last().Index+1, 1<<30))(t)
		for _, e := range entries {
			must.Equal(t, binary.BigEndian.Uint64(e.Data[len(e.Data)-8:]), e.Index, "entry %d holds %x: %v", e.Index,
				e.Data)
		}
		must.Do(t, l.Close())
	}
}

// hanging is a disk on which creating the next file blocks until release is closed.
type hanging struct {
	*simdisk.Disk
	entered, release chan struct{}
}

func (d hanging) Create(name string, size int64) (segment.File, error) {
	if d.entered != nil {
		close(d.entered)
		<-d.release
	}
	return d.Disk.Create(name, size)
}

// Creating a new segment takes several syncs. Earlier entries can be read meanwhile, because the node that reads sends
// no heartbeats until it has the entries.
func TestReadsPassANewSegment(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	must.Do(t, segment.Create(options(d), segment.Checkpoint{}, segment.State{}))
	slow := hanging{d, make(chan struct{}), make(chan struct{})}
	o := options(d)
	o.Disk = slow
	l, err := segment.Open(o)
	must.Do(t, err)
	entry := func(i uint64) []segment.Entry {
		return []segment.Entry{{Index: i, Term: 1, Data: make([]byte, 3000)}}
	}
	must.Do(t, errors.Join(l.Append(nil, entry(1)), l.Sync()))
	appended := make(chan error, 1)
	go func() { appended <- l.Append(nil, entry(2)) }() // ends with release; received below
	<-slow.entered
	read := make(chan error, 1)
	go func() { // the same
		_, err := l.Term(1)
		found, readErr := l.Entries(1, 2, 1)
		if len(found) != 1 || l.Last().Index != 1 {
			err = errors.Join(err, fmt.Errorf("%d entries, the last is %d", len(found), l.Last().Index))
		}
		read <- errors.Join(err, readErr)
	}()
	select {
	case err = <-read:
	case <-time.After(time.Minute):
		err = errors.New("a read waits for the new segment")
	}
	close(slow.release)
	must.Do(t, errors.Join(err, <-appended, l.Sync(), l.Close()))
}

// TestReadsBesideWrites reads and truncates while another goroutine appends. It is meaningful with the race detector.
func TestReadsBesideWrites(t *testing.T) {
	t.Parallel()
	d := simdisk.New()
	must.Do(t, segment.Create(options(d), segment.Checkpoint{}, segment.State{}))
	l := must.Get(segment.Open(options(d)))(t)
	const last = 2000
	var all sync.WaitGroup
	all.Go(func() { // ends at the last entry
		for i := uint64(1); i <= last; i++ {
			entry := segment.Entry{Index: i, Term: 1, Data: make([]byte, 100)}
			check.Is(t, errors.Join(l.Append(nil, []segment.Entry{entry}), l.Sync()), nil)
		}
	})
	all.Go(func() { // the same
		for l.Last().Index < last {
			if at := l.Last(); at.Index > 0 {
				check.Is(t, l.Truncate(segment.Checkpoint{Position: at}), nil)
			}
		}
	})
	all.Go(func() { // the same
		for at := l.Last().Index; at < last; at = l.Last().Index {
			first := l.First()
			found, err := l.Entries(first, at+1, 1<<20)
			gone := errors.Is(err, segment.ErrTruncated) || errors.Is(err, segment.ErrMissing)
			if err != nil && !gone {
				t.Error(err)
			}
			for i, e := range found {
				if e.Index != first+uint64(i) {
					t.Errorf("entry %d at the place of %d", e.Index, first+uint64(i))
				}
			}
			if _, err := l.Term(first); err != nil && !errors.Is(err, segment.ErrTruncated) &&
				!errors.Is(err, segment.ErrMissing) {
				t.Error(err)
			}
		}
	})
	all.Wait()
	must.Do(t, l.Close())
}
