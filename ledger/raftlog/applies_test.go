package raftlog

import (
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
)

// Two goroutines apply entries; the one that writes applies small ones itself. Entries are applied one at a time and in
// order, whichever goroutine applies them.
func TestWhoeverAppliesKeepsTheOrder(t *testing.T) {
	t.Parallel()
	var applying atomic.Bool
	var beside, apart int // applied by the writing goroutine, and by the other one
	m := &recorder{onApply: func(string) {
		if !applying.CompareAndSwap(false, true) {
			t.Error("two entries are applied at the same time")
		}
		if strings.Contains(string(debug.Stack()), "appendLoop") {
			beside++
		} else {
			apart++
		}
		applying.Store(false)
	}}
	r := started(t, simdisk.New(), m, nil)
	var texts []string
	for i, text := range numbered(400) {
		if i%3 == 0 { // more than the writing goroutine applies itself
			text += strings.Repeat("x", 4<<10)
		}
		texts = append(texts, text)
	}
	// One at a time, then many at once.
	for _, text := range texts[:100] {
		write(t, r, text)
	}
	var last *Proposal
	for _, text := range texts[100:] {
		last = r.ProposeIn(r.Role().Term, []byte(text))
	}
	if result, err := last.Wait(); err != nil || result != "result of "+texts[len(texts)-1] {
		t.Error(result, err)
	}
	must.Do(t, r.Close())
	if got := m.texts(); !slices.Equal(got, texts) {
		t.Errorf("%d entries, want %d in their order", len(got), len(texts))
	}
	if beside == 0 || apart == 0 {
		t.Errorf("%d entries were applied by the goroutine that writes, %d by the other one", beside, apart)
	}
}

// A failure inside the Apply of a small entry ends the host like any other failure.
func TestFailureBesideTheWrite(t *testing.T) {
	t.Parallel()
	m := &recorder{}
	r := started(t, simdisk.New(), m, nil)
	write(t, r, "good")
	m.onApply = func(string) { r.Fail(errDisk) }
	for _, text := range []string{"bad", "later"} {
		check.Is(t, check.Err(r.ProposeIn(r.Role().Term, []byte(text)).Wait()), errDisk, "%s", text)
	}
	check.Is(t, r.Close(), errDisk)
	if got := m.texts(); len(got) > 2 {
		t.Errorf("%q was applied behind a failure", got)
	}
}

// Close waits for an entry that the writing goroutine is applying, and for proposals made meanwhile.
func TestCloseBesideTheWrite(t *testing.T) {
	t.Parallel()
	m, applies, goOn := &recorder{}, make(chan struct{}), make(chan struct{})
	r := started(t, simdisk.New(), m, nil)
	m.onApply = func(text string) {
		if text == "first" {
			close(applies)
			<-goOn
		}
	}
	first := r.ProposeIn(r.Role().Term, []byte("first"))
	<-applies
	second := r.ProposeIn(r.Role().Term, []byte("second"))
	closed := make(chan error)
	// Ends with Close; received below.
	go func() { closed <- r.Close() }()
	close(goOn)
	must.Do(t, <-closed)
	for text, p := range map[string]*Proposal{"first": first, "second": second} {
		if result, err := p.Wait(); err != nil || result != "result of "+text {
			t.Errorf("%s: %v, %v", text, result, err)
		}
	}
	check.EqualSlices(t, m.texts(), []string{"first", "second"}, "%q")
}

// A small entry that becomes durable while an earlier large one is being applied waits for that one.
func TestSmallBehindLarge(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 4<<10)
	applies, goOn, stored := make(chan struct{}), make(chan struct{}), make(chan struct{}, 8)
	var order []string
	m := &recorder{onApply: func(text string) {
		if text == large {
			close(applies)
			<-goOn
		}
		order = append(order, text[:1]) // one at a time, or the race detector reports it
	}}
	r := started(t, simdisk.New(), m, func(o *Options) {
		o.Stored = func(int, time.Duration) { stored <- struct{}{} }
	})
	for len(stored) > 0 {
		<-stored // from the first entry of the term
	}
	first := r.ProposeIn(r.Role().Term, []byte(large))
	<-applies
	<-stored
	small := r.ProposeIn(r.Role().Term, []byte("s"))
	<-stored
	// Once this entry is stored, the writing goroutine has handled the small one.
	last := r.ProposeIn(r.Role().Term, []byte("t"))
	<-stored
	close(goOn)
	for _, p := range []*Proposal{first, small, last} {
		must.Get(p.Wait())(t)
	}
	check.Equal(t, strings.Join(order, ""), "xst", "applied in the order %s")
}
