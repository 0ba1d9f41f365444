package waiters

import (
	"errors"
	"strconv"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

func woken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestCallers(t *testing.T) {
	t.Parallel()
	l, _ := newTestListener(t, 0)
	l.Hearing()
	add := func(key string) (<-chan struct{}, func()) {
		t.Helper()
		ch, leave, err := l.wait(t.Context(), key)
		must.Do(t, err)
		return ch, leave
	}
	a1, leaveA1 := add("a")
	a2, leaveA2 := add("a")
	b, leaveB := add("b")
	leaveA2()
	l.Wake("a")
	if !woken(a1) || woken(a2) || woken(b) {
		t.Errorf("waking a wakes %v, %v, and b %v", woken(a1), woken(a2), woken(b))
	}
	l.deaf()
	if !woken(b) {
		t.Error("waking all does not wake b")
	}
	leaveA1()
	leaveB()
	if l.waiting != 0 || len(l.keys) != 0 {
		t.Errorf("%d callers and %d keys are left", l.waiting, len(l.keys))
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	l, _ := newTestListener(t, 0)
	l.Hearing()
	for range maxPerKey {
		if _, _, err := l.wait(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := l.wait(t.Context(), "one"); !errors.Is(err, errFull) {
		t.Errorf("one more for a key: %v", err)
	}
	for i := range maxInAll - maxPerKey {
		if _, _, err := l.wait(t.Context(), strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := l.wait(t.Context(), "two"); !errors.Is(err, errFull) {
		t.Errorf("one more in all: %v", err)
	}
	l.deaf()
	l.Hearing()
	if _, _, err := l.wait(t.Context(), "two"); err != nil {
		t.Errorf("after all have gone: %v", err)
	}
}
