package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// standsAt answers a request for a digest.
func standsAt(index, digest uint64) http.HandlerFunc {
	return says(http.StatusOK, FormatCheck(machine.Check{Index: index, Digest: digest})+"\n")
}

const (
	atEntry   = 20
	ownIndex  = 7
	ownDigest = 0xabcdef
)

// own is where the node under test stands.
func own() machine.Check { return machine.Check{Index: ownIndex, Digest: ownDigest} }

// TestTellDigest: what a node answers when another one asks where it stood.
func TestTellDigest(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t), nil)
	get := func(query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		f.servePeer(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, digestPath+"?"+query, nil))
		return w
	}
	check.Equal(t, get("after=1").Code, http.StatusNotFound, "before anything was applied: %d")
	for i := uint64(1); i <= digestsKept+1; i++ {
		f.AddDigest(i, machine.Check{Index: i, Digest: 3 * i})
	}
	sound := FormatCheck(machine.Check{Index: 5, Digest: 15})
	for _, test := range []struct {
		query  string
		status int
		text   string
		woken  bool // because the other one stands elsewhere
	}{
		{query: "", status: http.StatusBadRequest, text: "after: "},
		{query: "after=", status: http.StatusBadRequest, text: "after: "},
		{query: "after=-1", status: http.StatusBadRequest, text: "after: "},
		{query: "after=x", status: http.StatusBadRequest, text: "after: "},
		{query: "after=18446744073709551616", status: http.StatusBadRequest, text: "after: "},
		{query: fmt.Sprint("after=", digestsKept+2), status: http.StatusNotFound},
		{query: "after=1", status: http.StatusGone},
		{query: "after=0", status: http.StatusGone},
		{query: "after=5&stand=" + sound, status: http.StatusOK, text: sound},
		{query: "after=5&stand=5-0", status: http.StatusOK, text: sound, woken: true},
		{query: "after=5", status: http.StatusOK, text: sound, woken: true},
	} {
		w := get(test.query)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.text) {
			t.Errorf("%s: %d %s, want %d %s", test.query, w.Code, w.Body, test.status, test.text)
		}
		woken := false
		select {
		case <-f.digests.wake:
			woken = true
		default:
		}
		check.Equal(t, woken, test.woken, "%s: woken: %v", test.query)
	}
}

// TestAskDigests: every answer of another node counts for what it says.
func TestAskDigests(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what   string
		answer http.HandlerFunc
		want   opinion // of two voters, and this one agrees with itself
		state  Comparison
	}{
		{"it stands here", standsAt(ownIndex, ownDigest), opinion{same: []uint64{1, 2}}, Same},
		{"another digest", standsAt(ownIndex, 1), opinion{same: []uint64{1}, other: []uint64{2},
			otherCheck: machine.Check{Index: ownIndex, Digest: 1}, leaderDiffers: true}, Differs},
		{"another index", standsAt(6, ownDigest), opinion{same: []uint64{1}, other: []uint64{2},
			otherCheck: machine.Check{Index: 6, Digest: ownDigest}, leaderDiffers: true}, Differs},
		{"it has forgotten", says(http.StatusGone, ""), opinion{same: []uint64{1}, passed: 1}, NotCompared},
		{"it is not there yet", says(http.StatusNotFound, ""), opinion{same: []uint64{1}, silent: 1}, NotCompared},
		{"it is no node", says(http.StatusOK, "<html>"), opinion{same: []uint64{1}, silent: 1}, NotCompared},
		{"it is down", nil, opinion{same: []uint64{1}, silent: 1}, NotCompared},
		{"it knows that this one was removed", removed, opinion{same: []uint64{1}, removed: true}, NotCompared},
		{"it refuses", says(http.StatusForbidden, `{"error":"no"}`), opinion{same: []uint64{1}, silent: 1},
			NotCompared},
	} {
		f := newFake(t, voters(t, test.answer), nil).connect(t).leads(Leader{ID: 2})
		test.want.voters = 2
		if got := f.askDigests(stand{atEntry, own()}); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", test.what, got, test.want)
		}
		s := f.Status()
		if s.Members[0].State != Same || s.Members[1].State != test.state || s.Compared != own() {
			t.Errorf("%s: the status is %+v", test.what, s)
		}
	}
}

// TestAskDigest: the question names the entry, this node's digest and the node that it is for, and the answer tells
// of the disk.
func TestAskDigest(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t, func(w http.ResponseWriter, r *http.Request) {
		want := url.Values{"after": {fmt.Sprint(atEntry)}, "stand": {FormatCheck(own())}}
		if r.Method != http.MethodGet || r.URL.Path != digestPath || r.URL.RawQuery != want.Encode() {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		for name, want := range map[string]string{"To": "2", "From": "1", "Ledger": testLedger.String()} {
			check.Equal(t, r.Header.Get("Seqledger-Peer-"+name), want, "%s is %q", name)
		}
		check.Equal(t, r.Header.Get("Seqledger-Join-Token"), "the token", "the token is %q")
		w.Header().Set(diskFreeHeader, "12")
		w.Header().Set(roomHeader, "2")
		w.Header().Set(diskSizeHeader, "many")
		standsAt(ownIndex, ownDigest)(w, r)
	}), nil).connect(t)
	m := f.Status().Members[1]
	check, err := f.askDigest(t.Context(), &m, stand{atEntry, own()})
	if err != nil || check != own() || m.Disk.Free != 12 || m.Disk.Size != 0 || m.Room != RoomScarce {
		t.Errorf("%+v, %+v, %v", check, m, err)
	}
}

// TestLearnerHasNoOpinion: it compares its own state with the others', and theirs is not judged by it.
func TestLearnerHasNoOpinion(t *testing.T) {
	t.Parallel()
	m := voters(t, standsAt(ownIndex, ownDigest), standsAt(1, 1))
	m.Voters, m.Learners = m.Voters[:2], []uint64{3}
	f := newFake(t, m, nil).connect(t)
	o := f.askDigests(stand{atEntry, own()})
	if want := (opinion{voters: 2, same: []uint64{1, 2}}); !reflect.DeepEqual(o, want) {
		t.Errorf("%+v, want %+v", o, want)
	}
	if s := f.Status(); s.Members[2].State != Differs {
		t.Errorf("the status is %+v", s.Members[2])
	}
}

// TestRound: what a node does once the others have answered.
func TestRound(t *testing.T) {
	t.Parallel()
	same, differs := standsAt(ownIndex, ownDigest), standsAt(ownIndex, 1)
	for _, test := range []struct {
		what    string
		answers []http.HandlerFunc
		nothing bool // was applied by this node since its start
		waited  bool // since it differs from the leader, which is node 2
		settled bool
		err     error
		blames  bool
		again   bool // the same stand is asked for again
	}{
		{what: "all agree", answers: []http.HandlerFunc{same, same}, settled: true},
		{what: "one differs", answers: []http.HandlerFunc{same, differs}, settled: true, blames: true},
		{what: "both differ", answers: []http.HandlerFunc{differs, differs}, err: ErrDiffers, again: true},
		{what: "the leader differs and the other is away", answers: []http.HandlerFunc{differs, nil},
			blames: true, again: true},
		{what: "the leader differs and the other is away for long", answers: []http.HandlerFunc{differs, nil},
			waited: true, err: ErrDiffers, again: true},
		{what: "both are away", answers: []http.HandlerFunc{nil, nil}, settled: true, again: true},
		{what: "removed", answers: []http.HandlerFunc{same, removed}, err: ErrRemoved, again: true},
		{what: "removed, and nothing was applied", answers: []http.HandlerFunc{nil, removed}, nothing: true,
			err: ErrRemoved},
		{what: "nothing was applied", answers: []http.HandlerFunc{differs, differs}, nothing: true, settled: true},
	} {
		f := newFake(t, voters(t, test.answers...), nil).connect(t).leads(Leader{ID: 2})
		if !test.nothing {
			f.AddDigest(atEntry, own())
		}
		c := comparison{n: &f.Node}
		if test.waited {
			c.since = time.Now().Add(-digestPatience - time.Minute)
		}
		settled, err := c.round()
		if settled != test.settled || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
			t.Errorf("%s: settled %v, %v", test.what, settled, err)
		}
		if errors.Is(err, ErrDiffers) && !errors.Is(err, machine.ErrDiverged) {
			t.Errorf("%s: %v is no divergence", test.what, err)
		}
		check.Equal(t, c.own.at == atEntry, test.again, "%s: asked again: %v", test.what)
		check.Equal(t, strings.Contains(f.logged.String(), "state of other nodes differs"), test.blames,
			"%s: it says %q", test.what)
	}
}

// TestBlameIsSaidOnce: a comparison that is repeated ten times a second names the same nodes once.
func TestBlameIsSaidOnce(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t), nil)
	c := comparison{n: &f.Node, own: stand{atEntry, own()}}
	for _, nodes := range [][]uint64{{2}, {2}, {}, {2}, {2, 3}, {2, 3}, {3}} {
		c.blame(&opinion{other: nodes})
	}
	if said := strings.Count(f.logged.String(), "\n"); said != 3 {
		t.Errorf("said %d times, want 3: %s", said, f.logged.String())
	}
}

// TestObjectionWakes: a digest in the log that is not this state's makes the nodes compare at once.
func TestObjectionWakes(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t), nil)
	must.Do(t, f.Objection())
	no := errors.New("entry 7 says otherwise")
	f.Object(no)
	f.Object(no) // there is no listener yet, and it does not block
	if len(f.digests.wake) != 1 || !errors.Is(f.Objection(), no) {
		t.Errorf("%d, %v", len(f.digests.wake), f.Objection())
	}
}

// TestCompareLoop: a node that differs from all the others stops, whether it is told to look or not.
func TestCompareLoop(t *testing.T) {
	t.Parallel()
	differs := standsAt(ownIndex, 1)
	failed := make(chan error, 1)
	f := newFake(t, voters(t, differs, differs),
		func(h *Host) { h.Fail = func(err error) { failed <- err } }).connect(t)
	f.AddDigest(atEntry, own())
	f.Object(errors.New("entry 20 says otherwise"))
	f.loops.Add(1)
	f.compareLoop() // returns, because it has failed
	f.Wait()
	check.Is(t, <-failed, ErrDiffers)
	// It ends with the ledger, too.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopping := newFake(t, voters(t), func(h *Host) { h.Stopping = ctx })
	stopping.loops.Add(1)
	stopping.compareLoop()
	dead := make(chan struct{})
	close(dead)
	gone := newFake(t, voters(t), func(h *Host) { h.Failed = dead })
	gone.loops.Add(1)
	gone.compareLoop()
}

// TestFollow: a node that is no member any more stops, and one that has not joined yet does not.
func TestFollow(t *testing.T) {
	t.Parallel()
	gone := &raftlog.Members{Voters: []uint64{2, 3}, Highest: 3}
	check.Is(t, newFake(t, gone, nil).follow(), ErrRemoved, "a removed node")
	f := newFake(t, voters(t, nil, nil), nil)
	must.Do(t, f.follow(), "a follower")
	ended := 0
	f.host.EndTerm = func() { ended++ }
	f.term.Store(1) // it led, and the consensus says that it does not any more
	if err := errors.Join(f.follow(), f.follow()); err != nil || ended != 1 || f.Term() != 0 {
		t.Errorf("the term was ended %d times, and is %d: %v", ended, f.Term(), err)
	}
	check.EqualSlices(t, f.log.Members().Voters, []uint64{1, 2, 3}, "the members have changed: got %v")
}

// TestUnusableAddressIsSaidOnce: one bad address leaves the others as they are.
func TestUnusableAddressIsSaidOnce(t *testing.T) {
	t.Parallel()
	m := voters(t, nil, nil)
	m.Addresses[1].Peer = "192.0.2.1:7451" // not encrypted, and not loopback
	f := newFake(t, m, nil).connect(t)
	must.Do(t, errors.Join(f.follow(), f.follow()))
	if said := strings.Count(f.logged.String(), "cannot be used"); said != 1 {
		t.Errorf("said %d times: %s", said, f.logged.String())
	}
	check.Equal(t, len(f.transport.Load().Connected()), 1, "the peers are %v")
}
