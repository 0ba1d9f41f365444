package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/child"
	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
)

// TestTrail checks that a trail keeps the last lines, each with its time, and that no line is unlimited.
func TestTrail(t *testing.T) {
	t.Parallel()
	var none *trail
	none.note("nothing") // books and proxies of tests have none
	kept := newTrail()
	if got := kept.last(); len(got) != 0 {
		t.Errorf("a new trail has %q", got)
	}
	for n := range trailLines + 5 {
		kept.note("line %d", n)
	}
	got := kept.last()
	if len(got) != trailLines || !strings.HasSuffix(got[0], " line 5") ||
		!strings.HasSuffix(got[trailLines-1], fmt.Sprint(" line ", trailLines+4)) {
		t.Errorf("want the last %d lines, got %q", trailLines, got)
	}
	if !regexp.MustCompile(`^\d+\.\d{3}s line 5$`).MatchString(got[0]) {
		t.Errorf("a line without its time: %q", got[0])
	}
	kept.note("%s", strings.Repeat("x", 10*trailLineBytes))
	if last := kept.last()[trailLines-1]; len(last) != trailLineBytes+len("…") {
		t.Errorf("a line of %d bytes is kept", len(last))
	}
	if !strings.HasSuffix(got[0], " line 5") {
		t.Error("what was returned has changed")
	}
}

// TestTrailOfMessages checks that a trail shows a message's protocol, its procedure and what was done to it, and a
// client's output verbatim.
func TestTrailOfMessages(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	kept := newTrail()
	p, err := startProxy(server.Listener.Addr().String(), kept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	for _, f := range []fault{{}, {Kind: faultproxy.Answer, Status: http.StatusBadGateway}} {
		p.setPlan(func(*message) fault { return f })
		response, err := http.Post("http://"+p.Address+"/s/WriteBatch", "", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	b := newBooks()
	b.trail = kept
	_, _ = b.Write([]byte(`{"event":"open`))
	_, _ = b.Write([]byte("ed\"}\n"))
	var got []string
	for _, line := range kept.last() {
		_, line, _ = strings.Cut(line, " ")
		got = append(got, line)
	}
	want := []string{
		"HTTP/1.1 WriteBatch: pass", "HTTP/1.1 WriteBatch: answer 502", `the client says {"event":"opened"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
}

// TestLimit checks that a case goes on for as long as something happens, but not forever.
func TestLimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		notes int // one every 50 seconds
		lasts time.Duration
		cause string
	}{
		"nothing happens":      {0, time.Minute, "nothing has happened for 1m0s"},
		"something does":       {3, 210 * time.Second, "nothing has happened for 1m0s"},
		"something never ends": {100, 5 * time.Minute, "after 5m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			seen := newTrail()
			ctx, cancel := limit(t.Context(), time.Minute, seen)
			defer cancel()
			began := time.Now()
			for range test.notes {
				child.Pause(ctx, 50*time.Second)
				seen.note("something")
			}
			<-ctx.Done()
			cause, lasted := context.Cause(ctx), time.Since(began)
			if cause.Error() != test.cause || lasted != test.lasts {
				t.Errorf("%s: %q after %s, want %q after %s", name, cause, lasted, test.cause, test.lasts)
			}
		})
	}
}
