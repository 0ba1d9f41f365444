package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// clockOf answers a request for the clock.
func clockOf(at time.Time) http.HandlerFunc { return says(http.StatusOK, fmt.Sprintln(at.UnixNano())) }

// TestLeaderNeedsTheClockOfAMajority: a node does not lead if most others have another clock, nor before most others
// have said so.
func TestLeaderNeedsTheClockOfAMajority(t *testing.T) {
	t.Parallel()
	now := time.Now()
	near, far := clockOf(now.Add(maxClockSkew/2)), clockOf(now.Add(-2*maxClockSkew))
	ahead := clockOf(now.Add(2 * maxClockSkew))
	garbage, failing := says(http.StatusOK, "noon"), says(http.StatusInternalServerError, "1")
	for _, test := range []struct {
		what   string
		others []http.HandlerFunc
		want   error
	}{
		{"alone", nil, nil},
		{"both agree", []http.HandlerFunc{near, near}, nil},
		{"one agrees and one is away", []http.HandlerFunc{near, nil}, nil},
		{"one agrees and one does not", []http.HandlerFunc{near, far}, nil},
		{"neither agrees", []http.HandlerFunc{far, ahead}, errSkew},
		{"one does not agree and one is away", []http.HandlerFunc{far, nil}, errTooFewClocks},
		{"both are away", []http.HandlerFunc{nil, nil}, errTooFewClocks},
		{"one tells no number and one fails", []http.HandlerFunc{garbage, failing}, errTooFewClocks},
		{"the other of two does not agree", []http.HandlerFunc{ahead}, errSkew},
		{"two of four others do not agree and two do", []http.HandlerFunc{far, near, ahead, near}, nil},
		{"three of four others do not agree", []http.HandlerFunc{far, near, ahead, far}, errSkew},
		{"two of four others agree and two are away", []http.HandlerFunc{nil, near, nil, near}, nil},
	} {
		f := newFake(t, voters(t, test.others...), nil).connect(t)
		f.now = now
		if err := f.checkClock(); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: %v, want %v", test.what, err, test.want)
		}
	}
}

// TestLearnersClockDoesNotCount, because it does not vote.
func TestLearnersClockDoesNotCount(t *testing.T) {
	t.Parallel()
	m := voters(t, clockOf(time.Unix(1, 0)), clockOf(time.Unix(1, 0)))
	m.Voters, m.Learners = m.Voters[:1], []uint64{2, 3}
	if err := newFake(t, m, nil).connect(t).checkClock(); err != nil {
		t.Error(err)
	}
}

// TestPeersAreServed: what nodes ask each other is answered at once, and everything else once there is a handler.
func TestPeersAreServed(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t, nil), nil)
	f.now = time.Unix(12, 34)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		f.servePeer(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	for path, want := range map[string]string{clockPath: "12000000034", levelPath: fmt.Sprint(tokenLevel + 2)} {
		if status, text := get(path); status != http.StatusOK || text != want {
			t.Errorf("%s: %d %q, want %q", path, status, text, want)
		}
	}
	if status, _ := get(JoinPath); status != http.StatusServiceUnavailable {
		t.Errorf("before there is a handler: %d", status)
	}
	f.ServePeers(says(http.StatusTeapot, "handled"))
	if status, text := get(JoinPath); status != http.StatusTeapot || text != "handled" {
		t.Errorf("with a handler: %d %q", status, text)
	}
	if status, text := get(clockPath); status != http.StatusOK || text == "handled" {
		t.Errorf("the handler has the clock: %d %q", status, text)
	}
}

// TestLevelIsThatOfTheOldestProgram: the level rises as far as all programs go, and not while one does not answer.
func TestLevelIsThatOfTheOldestProgram(t *testing.T) {
	t.Parallel()
	level := func(l int) http.HandlerFunc { return says(http.StatusOK, fmt.Sprintln(l)) }
	next, most := level(tokenLevel+1), level(tokenLevel+9)
	for _, test := range []struct {
		what   string
		others []http.HandlerFunc
		change func(*fakeLedger)
		raised uint64 // 0: it stays
		err    string
	}{
		{what: "alone", raised: tokenLevel + 2},
		{what: "all know more", others: []http.HandlerFunc{most, most}, raised: tokenLevel + 2},
		{what: "one knows less", others: []http.HandlerFunc{most, next}, raised: tokenLevel + 1},
		{what: "one knows no other", others: []http.HandlerFunc{most, level(tokenLevel)}, err: "node 3 knows level 5"},
		{what: "one is down", others: []http.HandlerFunc{most, nil}, err: "node 3 does not tell"},
		{what: "one has no such path", others: []http.HandlerFunc{says(404, ""), most}, err: "node 2 does not tell"},
		{what: "one tells no number", others: []http.HandlerFunc{says(200, "five"), most}, err: "node 2 does not tell"},
		{what: "the level is there", others: []http.HandlerFunc{nil},
			change: func(f *fakeLedger) { f.state.Level = tokenLevel + 2 }},
		{what: "the level is above what this program knows", others: []http.HandlerFunc{nil},
			change: func(f *fakeLedger) { f.state.Level = tokenLevel + 3 }},
		{what: "nothing was created yet", others: []http.HandlerFunc{nil},
			change: func(f *fakeLedger) { f.state.Created = false }},
		{what: "the state cannot be read", others: []http.HandlerFunc{most},
			change: func(f *fakeLedger) { f.stateErr = errors.New("the disk is gone") }, err: "the disk is gone"},
	} {
		f := newFake(t, voters(t, test.others...), nil).connect(t)
		if test.change != nil {
			test.change(f)
		}
		err := f.RaiseLevel(t.Context())
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v", test.what, err)
		}
		if err != nil && f.stateErr == nil && !errors.Is(err, errOldMember) {
			t.Errorf("%s: %v is not errOldMember", test.what, err)
		}
		want := [][2]uint64{{tokenLevel, test.raised}}
		if test.raised == 0 && len(f.raised) > 0 || test.raised > 0 && fmt.Sprint(f.raised) != fmt.Sprint(want) {
			t.Errorf("%s: raised %v, want to %d", test.what, f.raised, test.raised)
		}
	}
}

// TestLevelStaysWhileMembersChange: a node that joined in between was not asked.
func TestLevelStaysWhileMembersChange(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	join := func(nonce byte, peer string) error {
		_, err := f.Admit(t.Context(), JoinRequest{Nonce: [16]byte{nonce}, Peer: peer, Level: tokenLevel})
		return err
	}
	var once error
	asked := false
	peer := other(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == identityPath {
			isNode(2)(w, r)
			return
		}
		if !asked {
			asked, once = true, join(2, "127.0.0.1:1")
		}
		says(200, fmt.Sprint(tokenLevel+1))(w, r)
	})
	if err := join(1, peer); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Admit(t.Context(), JoinRequest{ID: 2, Peer: peer}); err != nil {
		t.Fatal(err)
	}
	err := f.RaiseLevel(t.Context())
	if !asked || once != nil {
		t.Fatal("no node has joined meanwhile:", once)
	}
	if !errors.Is(err, errOldMember) || !strings.Contains(err.Error(), "have changed meanwhile") || len(f.raised) > 0 {
		t.Errorf("raised %v: %v", f.raised, err)
	}
}

// TestTokenIsSharedBeforeItIsNeeded: the level from which on nodes need the join token is reached once all have it.
func TestTokenIsSharedBeforeItIsNeeded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what   string
		status int
		err    error
	}{
		{"taken", http.StatusNoContent, nil},
		{"the node has another", http.StatusConflict, errOtherToken},
		{"not stored", http.StatusInternalServerError, errOldMember},
	} {
		given := ""
		f := newFake(t, voters(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.Method + " " + r.URL.Path {
			case "GET " + levelPath:
				says(200, fmt.Sprint(tokenLevel))(w, r)
			case "POST " + tokenPath:
				b := make([]byte, 100)
				n, _ := r.Body.Read(b)
				given = string(b[:n])
				w.WriteHeader(test.status)
			default:
				t.Errorf("%s: asked for %s", test.what, r.URL)
			}
		}), nil)
		f.state.Level = tokenLevel - 1
		if err := f.openTransport(); err != nil {
			t.Fatal(err)
		}
		err := f.RaiseLevel(t.Context())
		if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
			t.Errorf("%s: %v", test.what, err)
		}
		if token, _ := f.JoinToken(); token == "" || token != given {
			t.Errorf("%s: it was given %q, and the token is %q", test.what, given, token)
		}
		if raised := len(f.raised) == 1; raised != (test.err == nil) {
			t.Errorf("%s: raised %v", test.what, f.raised)
		}
	}
}

// TestOpenToken: which token a node starts with.
func TestOpenToken(t *testing.T) {
	t.Parallel()
	alone, many := voters(t), voters(t, nil)
	learner := voters(t, nil)
	learner.Voters, learner.Learners = learner.Voters[:1], []uint64{2}
	for _, test := range []struct {
		what                string
		given, stored, want string
		members             *raftlog.Members
		level               uint64
		err                 error
		made                bool
	}{
		{what: "the first node makes one", members: alone, level: tokenLevel, made: true},
		{what: "the first node is given one", given: "g", members: alone, level: tokenLevel, want: "g"},
		{what: "the first node has one", stored: "s", members: alone, level: tokenLevel, want: "s"},
		{what: "another one is given", given: "g", stored: "s", members: many, level: tokenLevel, want: "g"},
		{what: "the same is given", given: "s", stored: "s", members: many, level: tokenLevel, want: "s"},
		{what: "one is stored", stored: "s", members: many, level: tokenLevel - 1, want: "s"},
		{what: "none, and the others need it", members: many, level: tokenLevel, err: ErrNoToken},
		{what: "none, and a learner needs it", members: learner, level: tokenLevel, err: ErrNoToken},
		{what: "none during an upgrade", members: many, level: tokenLevel - 1},
	} {
		f := newFake(t, test.members, func(h *Host) { h.Options.Token = test.given })
		f.state.Level = test.level
		if test.stored != "" {
			if err := f.directory.SetJoinToken(test.stored); err != nil {
				t.Fatal(err)
			}
		}
		err := f.openToken()
		if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
			t.Errorf("%s: %v", test.what, err)
		}
		token, _ := f.JoinToken()
		stored, err := f.directory.JoinToken()
		if err != nil || token != stored || !test.made && token != test.want || test.made && len(token) < 16 {
			t.Errorf("%s: the token is %q, and %q is stored: %v", test.what, token, stored, err)
		}
		logged := f.logged.String()
		if strings.Contains(logged, datadir.TokenName) != test.made || token != "" && strings.Contains(logged, token) {
			t.Errorf("%s: it says %s", test.what, logged)
		}
		if f.joinToken.given != (test.given != "") {
			t.Errorf("%s: given %v", test.what, f.joinToken.given)
		}
	}
}

// TestTokenThatCannotBeRead: the node does not start with another one in its place.
func TestTokenThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t), nil)
	if err := os.Mkdir(f.directory.JoinTokenFile(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Start(); err == nil || !strings.Contains(err.Error(), datadir.TokenName) {
		t.Error(err)
	}
	if token, _ := f.JoinToken(); token != "" {
		t.Errorf("the token is %q", token)
	}
	if err := f.setToken("t"); err == nil {
		t.Error("it was stored")
	}
	if token, _ := f.JoinToken(); token != "" {
		t.Errorf("the token that was not stored is used: %q", token)
	}
}

// TestTakeToken: a node takes the token of the leader only while the cluster is upgraded to having one.
func TestTakeToken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what   string
		body   string
		has    string
		given  bool
		level  uint64
		status int
		want   string
	}{
		{what: "it has none", body: "new", level: tokenLevel - 1, status: http.StatusNoContent, want: "new"},
		{what: "it made its own", body: "new", has: "old", level: tokenLevel - 1, status: http.StatusNoContent,
			want: "new"},
		{what: "it was given another", body: "new", has: "old", given: true, level: tokenLevel - 1,
			status: http.StatusConflict, want: "old"},
		{what: "it was given the same", body: "old", has: "old", given: true, level: tokenLevel - 1,
			status: http.StatusNoContent, want: "old"},
		{what: "the upgrade is over", body: "new", has: "old", level: tokenLevel, status: http.StatusConflict,
			want: "old"},
		{what: "the upgrade is over, and it is the same", body: "old", has: "old", level: tokenLevel,
			status: http.StatusNoContent, want: "old"},
		{what: "empty", has: "old", level: tokenLevel - 1, status: http.StatusBadRequest, want: "old"},
		{what: "the longest", body: strings.Repeat("x", maxTokenBytes), level: tokenLevel - 1,
			status: http.StatusNoContent, want: strings.Repeat("x", maxTokenBytes)},
		{what: "too long", body: strings.Repeat("x", maxTokenBytes+1), level: tokenLevel - 1,
			status: http.StatusBadRequest},
	} {
		f := newFake(t, voters(t, nil), nil)
		f.state.Level, f.joinToken.given = test.level, test.given
		if test.has != "" {
			if err := f.setToken(test.has); err != nil {
				t.Fatal(err)
			}
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, tokenPath, strings.NewReader(test.body))
		f.servePeer(w, r)
		stored, err := f.directory.JoinToken()
		if w.Code != test.status || stored != test.want || f.token() != test.want || err != nil {
			t.Errorf("%s: %d, the token is %q and %q is stored: %v", test.what, w.Code, f.token(), stored, err)
		}
	}
}

// TestAccess: whom a node lets in.
func TestAccess(t *testing.T) {
	t.Parallel()
	m := voters(t, nil, nil)
	m.Voters, m.Highest, m.Addresses = []uint64{1, 3}, 5, append(m.Addresses[:1:1], m.Addresses[2])
	f := newFake(t, m, nil)
	a := f.access()
	for id, want := range map[uint64][2]bool{1: {true, false}, 3: {true, false}, 2: {false, true}, 5: {false, true},
		6: {false, false}} {
		peer, is, was := a.Member(id)
		if is != want[0] || was != want[1] || is != (peer != "") {
			t.Errorf("node %d at %q: is %v, was %v", id, peer, is, was)
		}
	}
	for _, given := range []bool{false, true} {
		f.joinToken.given = given
		for path, always := range map[string]bool{
			clockPath: true, digestPath: true, levelPath: true, tokenPath: true, transport.Procedure: true,
			JoinPath: false, "/seqledger.v1.LedgerService/Write": false,
		} {
			if got := a.Guarded(path); got != (given && !always) {
				t.Errorf("%s is guarded: %v, with a token that was given: %v", path, got, given)
			}
		}
	}
	// The level never falls, so that the answer of later does not hang on the state.
	f.state.Level = tokenLevel - 1
	if !a.Upgrading() {
		t.Error("a cluster below the level is not being upgraded")
	}
	f.state.Level = tokenLevel
	if a.Upgrading() {
		t.Error("a cluster at the level is being upgraded")
	}
	f.stateErr = errors.New("the disk is gone")
	if a.Upgrading() {
		t.Error("it is being upgraded again")
	}
	alone := newFake(t, voters(t), nil)
	alone.state.Level = tokenLevel - 1
	if alone.access().Upgrading() {
		t.Error("a node that is alone is being upgraded")
	}
}

// TestStartAndStop: a node starts its loops and ends them, and nothing else is left.
func TestStartAndStop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	f := newFake(t, nil, func(h *Host) { h.Stopping = ctx })
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	if f.PeerTransport() == nil {
		t.Error("there is no transport")
	}
	cancel()
	f.Wait()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestNoTransportWithoutAState: the others know a node by its ledger.
func TestNoTransportWithoutAState(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t), nil)
	if err := f.directory.SetJoinToken("t"); err != nil {
		t.Fatal(err)
	}
	f.stateErr = errors.New("the disk is gone")
	if err := f.openTransport(); !errors.Is(err, f.stateErr) {
		t.Error(err)
	}
	if err := f.openToken(); !errors.Is(err, f.stateErr) {
		t.Error(err)
	}
	if f.PeerTransport() != nil {
		t.Error("there is a transport")
	}
}

// TestListenerThatFails ends the node, because it could not be reached.
func TestListenerThatFails(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	f := newFake(t, voters(t), func(h *Host) { h.Fail = func(err error) { failed <- err } })
	if err := f.host.Options.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	f.connect(t)
	if err := <-failed; !strings.Contains(err.Error(), "listen for other nodes") {
		t.Error(err)
	}
}
