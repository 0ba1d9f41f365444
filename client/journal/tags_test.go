package journal

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// acknowledge brings write number id, with its tag, from its first record to its
// last.
func acknowledge(t testing.TB, f *File, id uint64, tag string) {
	t.Helper()
	add(t, f, write(id, tag), Record{Kind: KindSettled, ID: id, Receipt: []byte("r")},
		Record{Kind: KindAcknowledged, ID: id})
}

// TestRememberedTag: a tag stays in use for its time after it is acknowledged,
// however often the journal is opened meanwhile, and is free afterwards.
func TestRememberedTag(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		option, keeps time.Duration
	}{
		"by default": {0, 24 * time.Hour}, "as long as is said": {time.Hour, time.Hour}, "not at all": {-1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, path := newMemory(), temporary(t)
				options := Options{RememberTags: test.option}
				f := m.open(t, path, options)
				begin(t, f)
				acknowledge(t, f, 0, "rent")
				again := func(want error) {
					t.Helper()
					check.Is(t, f.Append(one, write(1, "rent")), want, "%v after the acknowledgement", test.keeps)
				}
				reopen := func() {
					_ = f.Close()
					m = m.powerFailure(path, 0)
					f = m.open(t, path, options)
					begin(t, f)
				}
				if test.keeps > 0 {
					again(ErrTagInUse)
					reopen()
					//nolint:forbidigo // In a synctest bubble this moves the clock and waits for nothing.
					time.Sleep(test.keeps - time.Second)
					again(ErrTagInUse)
					reopen()
					again(ErrTagInUse)
					if got := only(f).Remembered; len(got) != 1 || got[0].Name != "rent" {
						t.Errorf("the state has %v", got)
					}
					//nolint:forbidigo // In a synctest bubble this moves the clock and waits for nothing.
					time.Sleep(time.Second)
				}
				again(nil)
				reopen()
				if got := only(f).Remembered; len(got) != 0 {
					t.Errorf("its time has passed, and it is still in use: %v", got)
				}
			})
		})
	}
}

// TestAClockThatIsAheadDropsNoTags: a machine starts with a wrong clock, and the clock is then set right.
func TestAClockThatIsAheadDropsNoTags(t *testing.T) {
	t.Parallel()
	path := temporary(t)
	at := func(ahead time.Duration, use func(t *testing.T, f *File)) {
		synctest.Test(t, func(t *testing.T) {
			//nolint:forbidigo // In a synctest bubble this moves the clock and waits for nothing.
			time.Sleep(ahead)
			f := must.Get(Open(path, Options{}))(t)
			begin(t, f)
			use(t, f)
			must.Do(t, f.Close())
		})
	}
	at(0, func(t *testing.T, f *File) { acknowledge(t, f, 0, "rent") })
	at(48*time.Hour, func(t *testing.T, f *File) { acknowledge(t, f, 1, "gas") })
	at(time.Minute, func(t *testing.T, f *File) { check.Is(t, f.Append(one, write(2, "rent")), ErrTagInUse) })
}

// TestARefusedWriteFreesItsTag: what was not executed is to be submitted again.
func TestARefusedWriteFreesItsTag(t *testing.T) {
	t.Parallel()
	f := newMemory().open(t, temporary(t), Options{})
	begin(t, f)
	add(t, f, write(0, "rent"), Record{Kind: KindDropped, ID: 0})
	must.Do(t, f.Append(one, Record{Kind: KindWrite, ID: 1, Sequence: 1, Tag: "rent"}))
}

// TestRememberedTagsOutliveForget: what was paid stays paid when the application
// gives up a session.
func TestRememberedTagsOutliveForget(t *testing.T) {
	t.Parallel()
	m, path := newMemory(), temporary(t)
	f := m.open(t, path, Options{})
	begin(t, f)
	acknowledge(t, f, 0, "rent")
	f.Release(one)
	must.Do(t, f.Forget(one))
	_ = f.Close()
	f = m.powerFailure(path, 0).open(t, path, Options{})
	must.Get(f.Claim(one))(t)
	add(t, f, Record{Kind: KindHead, Head: Head{Ledger: 7, Session: 4, NextID: 1, NextSequence: 1}})
	check.Is(t, f.Append(one, Record{Kind: KindWrite, ID: 1, Sequence: 1, Tag: "rent"}), ErrTagInUse)
}

// TestRememberedTagsAreBounded: the newest are remembered, and the file and the memory stay
// within their bounds, also after reading a journal.
func TestRememberedTagsAreBounded(t *testing.T) {
	t.Parallel()
	path := temporary(t)
	f, err := Open(path, Options{MaxBytes: minMaxBytes})
	must.Do(t, err)
	begin(t, f)
	const writes = 300
	largest := int64(0)
	for id := range uint64(writes) {
		acknowledge(t, f, id, fmt.Sprint("payment-", id))
		info := must.Get(os.Stat(path))(t)
		largest = max(largest, info.Size())
	}
	if largest > minMaxBytes {
		t.Errorf("the file grew to %d bytes, its bound is %d", largest, minMaxBytes)
	}
	bounded := func() {
		t.Helper()
		got := only(f).Remembered
		if n := len(got); n < 5 || n*tagOverhead > minMaxBytes/32 || n > len(f.tags) || f.tagBytes > minMaxBytes/32 {
			t.Errorf("%d tags are remembered in %d bytes", n, f.tagBytes)
		}
		for i := range got {
			if want := fmt.Sprint("payment-", writes-len(got)+i); !slices.ContainsFunc(got,
				func(tag Tag) bool { return tag.Name == want }) {
				t.Errorf("%s is not among the newest: %v", want, got)
			}
		}
	}
	bounded()
	must.Do(t, f.Close())
	f = must.Get(Open(path, Options{MaxBytes: minMaxBytes}))(t)
	if n := len(only(f).Remembered); n*tagOverhead > minMaxBytes/32 {
		t.Errorf("%d tags are remembered after opening", n)
	}
	must.Do(t, f.Close())
}
