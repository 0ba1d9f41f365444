package waiters

import (
	"errors"
	"strconv"
	"testing"
)

func woken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	var s Set
	add := func(key string) (<-chan struct{}, func()) {
		t.Helper()
		ch, leave, err := s.Add(key)
		if err != nil {
			t.Fatal(err)
		}
		return ch, leave
	}
	a1, leaveA1 := add("a")
	a2, leaveA2 := add("a")
	b, leaveB := add("b")
	leaveA2()
	s.Wake("a")
	if !woken(a1) || woken(a2) || woken(b) {
		t.Errorf("waking a wakes %v, %v, and b %v", woken(a1), woken(a2), woken(b))
	}
	s.WakeAll()
	if !woken(b) {
		t.Error("waking all does not wake b")
	}
	leaveA1()
	leaveB()
	if s.all != 0 || len(s.keys) != 0 {
		t.Errorf("%d callers and %d keys are left", s.all, len(s.keys))
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	var s Set
	for range maxPerKey {
		if _, _, err := s.Add("one"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Add("one"); !errors.Is(err, ErrFull) {
		t.Errorf("one more for a key: %v", err)
	}
	for i := range maxInAll - maxPerKey {
		if _, _, err := s.Add(strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Add("two"); !errors.Is(err, ErrFull) {
		t.Errorf("one more in all: %v", err)
	}
	s.WakeAll()
	if _, _, err := s.Add("two"); err != nil {
		t.Errorf("after all have gone: %v", err)
	}
}
