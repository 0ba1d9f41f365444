package writer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestAWriterContinuesTheStream: numbers go on where the stream stands, also in
// a second Writer.
func TestAWriterContinuesTheStream(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for round := range 3 {
		w := newWriter(t, c, "w")
		for i := range 5 {
			receipt, err := w.Write(t.Context(), payload("x"))
			if want := uint64(round*5 + i + 1); err != nil || receipt.GetSequence() != want {
				t.Fatalf("want sequence %d, got %v, %v", want, receipt, err)
			}
		}
		must.Do(t, w.Close(t.Context()), "closing")
	}
	check.Equal(t, s.header.Get("Connect-Accept-Encoding"), "", "the stream must not ask for compression, asked for %q")
}

// TestSubmitBlocksWhenFull, in count, in bytes and by the receipt window, in which a repeat of the oldest must find its
// receipt, until ctx ends or a write is settled; a
// Submit that was cancelled has taken no number.
func TestSubmitBlocksWhenFull(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options writer.Options
		window  uint64
	}{
		"count":  {writer.Options{MaxPending: 2}, 64},
		"bytes":  {writer.Options{MaxPendingBytes: 1500}, 64},
		"window": {writer.Options{MaxPending: 100}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := start(t)
			release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
			s.ledger.setWindow(test.window)
			test.options.Scope, test.options.ClientID = org, "w"
			w := must.Get(writer.Open(t.Context(), c, test.options))(t)
			big := payload(strings.Repeat("x", 600))
			burst(t, w, big, big)
			ended := over(t)
			if _, err := w.Submit(ended, big); !errors.Is(err, context.Canceled) ||
				!errors.Is(err, failure.ErrNotExecuted) {
				t.Errorf("a full Writer must block until ctx ends, got %v", err)
			}
			var group sync.WaitGroup
			for range 8 {
				// Ends once its write is committed; the test waits for it.
				group.Go(func() {
					if _, err := w.Write(t.Context(), big); err != nil {
						t.Errorf("a blocked write must go on once there is room: %v", err)
					}
				})
			}
			release(w, 2)
			group.Wait()
			check.Equal(t, w.State().NextSequence, 11, "10 writes were taken, but the next number is %d")
		})
	}
}

// TestWritersShareFrames: what waits travels together, in frames of at most
// 1,000 writes.
func TestWritersShareFrames(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	release := hold(s, func(*seqledgerv1.WriteRequest) fault { return faultNone })
	first := newWriter(t, c, "first")
	var writers []*writer.Writer
	for i := range 20 {
		writers = append(writers, newWriter(t, c, fmt.Sprint("w", i)))
	}
	burst(t, first, payload("1"))
	for _, w := range writers {
		for range 60 {
			burst(t, w, payload(strings.Repeat("x", 100)))
		}
	}
	release(first, 1)
	for _, w := range writers {
		must.Do(t, w.Close(t.Context()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	total := 0
	for _, n := range s.frames {
		total += n
		if n > 1000 {
			t.Errorf("a frame of %d writes", n)
		}
	}
	check.Equal(t, total, 1201, "want 1,201 writes in all frames, each sent once, got %d")
}

// TestNilOperationsAreRefused by themselves, with their place in the write: a nil
// pointer must neither end the program nor be sent as something else.
func TestNilOperationsAreRefused(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	w := newWriter(t, c, "w")
	condition := &seqledgerv1.Condition{Condition: (*seqledgerv1.Condition_NotExists)(nil)}
	for _, nothing := range []*seqledgerv1.Operation{
		nil,
		{Operation: (*seqledgerv1.Operation_SetEntity)(nil)}, {Operation: &seqledgerv1.Operation_SetEntity{}},
		{Operation: (*seqledgerv1.Operation_DeleteEntity)(nil)}, {Operation: &seqledgerv1.Operation_DeleteEntity{}},
		{Operation: (*seqledgerv1.Operation_CreateRelationship)(nil)},
		{Operation: &seqledgerv1.Operation_CreateRelationship{}},
		{Operation: (*seqledgerv1.Operation_DeleteRelationship)(nil)},
		{Operation: &seqledgerv1.Operation_DeleteRelationship{}},
		{Operation: (*seqledgerv1.Operation_Append)(nil)}, {Operation: &seqledgerv1.Operation_Append{}},
		{Operation: (*seqledgerv1.Operation_ExpireEntity)(nil)}, {Operation: &seqledgerv1.Operation_ExpireEntity{}},
		{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{Key: "k",
			Condition: condition}}},
		{Operation: &seqledgerv1.Operation_DeleteEntity{
			DeleteEntity: &seqledgerv1.DeleteEntity{Key: "k", Condition: condition}}},
	} {
		_, err := w.Write(t.Context(), payload("good"), nothing)
		if !errors.Is(err, failure.ErrNotExecuted) || !strings.Contains(err.Error(), "operation 1") ||
			!strings.Contains(err.Error(), "nil") {
			t.Errorf("%T: want ErrNotExecuted that names operation 1, got %v", nothing.GetOperation(), err)
		}
	}
	if receipt, err := w.Write(t.Context(), payload("good")); err != nil || receipt.GetSequence() != 1 {
		t.Errorf("none of them may take a number, got %v, %v", receipt, err)
	}
}

// TestWritesThatCannotBeSent are refused by themselves: inside a shared frame
// they would break the stream of every Writer.
func TestWritesThatCannotBeSent(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	w := newWriter(t, c, "w")
	bad := "\xff"
	link := &seqledgerv1.CreateRelationship{Resource: bad}
	unlink := &seqledgerv1.DeleteRelationship{Subject: bad}
	remove := &seqledgerv1.DeleteEntity{Key: bad}
	expire := &seqledgerv1.ExpireEntity{Key: bad}
	for name, operations := range map[string][]*seqledgerv1.Operation{
		"none": {}, "too many": make([]*seqledgerv1.Operation, 1001),
		"too large": {payload(strings.Repeat("x", 5<<20))},
		"set":       {create(bad)},
		"delete":    {{Operation: &seqledgerv1.Operation_DeleteEntity{DeleteEntity: remove}}},
		"link":      {{Operation: &seqledgerv1.Operation_CreateRelationship{CreateRelationship: link}}},
		"unlink":    {{Operation: &seqledgerv1.Operation_DeleteRelationship{DeleteRelationship: unlink}}},
		"expire":    {{Operation: &seqledgerv1.Operation_ExpireEntity{ExpireEntity: expire}}},
	} {
		if _, err := w.Write(t.Context(), operations...); !errors.Is(err, failure.ErrNotExecuted) {
			t.Errorf("%s: want ErrNotExecuted, got %v", name, err)
		}
	}
	if receipt, err := w.Write(t.Context(), payload("good")); err != nil || receipt.GetSequence() != 1 {
		t.Errorf("none of them may take a number, got %v, %v", receipt, err)
	}
}
