package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// TestAwait checks that an awaited condition may become true at any time, and that forbidden output, and the end of the
// client or of the case, end the wait with their own errors.
func TestAwait(t *testing.T) {
	t.Parallel()
	opened := func(b *books) func() bool { return func() bool { return b.opened != nil } }
	say := func(b *books, line string) { _, _ = b.Write([]byte(line + "\n")) }
	over := errors.New("the case took too long")
	for name, test := range map[string]struct {
		happens func(b *books, end func(error), exit func())
		says    string // no error if empty
	}{
		"it is said": {func(b *books, _ func(error), _ func()) { say(b, `{"event":"opened"}`) }, ""},
		"in pieces": {func(b *books, _ func(error), _ func()) {
			_, _ = b.Write([]byte(`{"event":`))
			say(b, `"opened"}`)
		}, ""},
		"said, and gone": {func(b *books, _ func(error), exit func()) {
			say(b, `{"event":"opened"}`)
			exit()
		}, ""},
		"gone": {func(_ *books, _ func(error), exit func()) { exit() }, "ended by itself before there is event opened"},
		"something else": {func(b *books, _ func(error), _ func()) { say(b, `{"event":"open"}`) },
			`said "{\"event\":\"open\"}"`},
		"too late": {func(_ *books, end func(error), _ func()) { end(over) }, "no event opened: " + over.Error()},
		"half a line": {func(b *books, _ func(error), exit func()) {
			_, _ = b.Write([]byte(`{"event":"opened"}`))
			exit()
		}, "ended by itself"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := booksOf(t, []string{"a"})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			process := make(chan struct{})
			done := make(chan error)
			go func() { done <- b.await(ctx, process, "event opened", opened(b)) }() // ends with what happens
			synctest.Wait()
			test.happens(b, cancel, func() { close(process) })
			err := <-done
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: want %q, got %v", name, test.says, err)
			}
		})
	}
}

// TestMissing checks that missing returns the writes without an outcome, in the order of submission, including those
// that a new process still has to report.
func TestMissing(t *testing.T) {
	t.Parallel()
	const done = `{"event":"outcome","id":"%s","outcome":"committed","sequence":"1"}`
	b := booksOf(t, []string{"c", "a", "b"}, fmt.Sprintf(done, "a"))
	if got := b.missing(); !slices.Equal(got, []string{"c", "b"}) {
		t.Errorf("missing are %v", got)
	}
	b.begin()
	_, _ = b.Write([]byte(`{"event":"opened","recovered":["a","b"]}` + "\n"))
	if got := b.missing(); !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("the journal had a and b, and missing are %v", got)
	}
	_, _ = b.Write([]byte(fmt.Sprintf(done, "a") + "\n" + fmt.Sprintf(done, "b") + "\n"))
	if got := b.missing(); !slices.Equal(got, []string{"c"}) || !slices.Equal(b.noted, []string{"a", "b"}) {
		t.Errorf("missing are %v, noted %v", got, b.noted)
	}
	b.intend(command{ID: "a", Do: "submit"}) // again, because the application submits it anew
	if got := b.missing(); !slices.Equal(got, []string{"c", "a"}) {
		t.Errorf("a is wanted again, and missing are %v", got)
	}
}

// TestWhatAnApplicationWants checks outcomes, and the end of the client.
func TestWhatAnApplicationWants(t *testing.T) {
	t.Parallel()
	const refused = `{"event":"outcome","id":"a","outcome":"not_executed","code":"KEY_EXISTS","message":"it is there"}`
	b := &bed{books: booksOf(t, []string{"a", "b"}, refused)}
	end := func(codes ...string) func() { return func() { b.checkEnd(codes...) } }
	check := func(f func(), says string) {
		t.Helper()
		err := attempt(f)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
	check(func() { b.want(notExecuted, "a") }, "")
	check(func() { b.want(committed, "a") }, "a must be committed, and is not_executed KEY_EXISTS it is there")
	check(func() { b.want(committed, "b") }, "b must be committed")
	check(end(), "goes on")
	_, _ = b.books.Write([]byte(`{"event":"ended","code":"FENCED","message":"m","unsettled":["b"]}` + "\n"))
	check(end(), "")
	check(end("OTHER", "FENCED"), "")
	check(end("OTHER"), `"FENCED" (m), want OTHER`)
	check(func() { b.wantUnsettled("b") }, "")
	check(func() { b.wantUnsettled("a") }, "a was sent")
	check(b.checkOpened, "did not open its stream: FENCED m")
}
