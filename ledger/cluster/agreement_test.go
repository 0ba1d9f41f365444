package cluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

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
	for path, want := range map[string]string{pulsePath: `{"clock":12000000034}`} {
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
	if status, text := get(pulsePath); status != http.StatusOK || text == "handled" {
		t.Errorf("the handler has the pulse: %d %q", status, text)
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
		err                 error
		made                bool
	}{
		{what: "the first node makes one", members: alone, made: true},
		{what: "the first node is given one", given: "g", members: alone, want: "g"},
		{what: "the first node has one", stored: "s", members: alone, want: "s"},
		{what: "another one is given", given: "g", stored: "s", members: many, want: "g"},
		{what: "the same is given", given: "s", stored: "s", members: many, want: "s"},
		{what: "one is stored", stored: "s", members: many, want: "s"},
		{what: "none, and the others need it", members: many, err: ErrNoToken},
		{what: "none, and a learner needs it", members: learner, err: ErrNoToken},
	} {
		f := newFake(t, test.members, func(h *Host) { h.Options.Token = test.given })
		if test.stored != "" {
			must.Do(t, f.directory.SetJoinToken(test.stored))
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
	}
}

// TestTokenThatCannotBeRead: the node does not start with another one in its place.
func TestTokenThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t), nil)
	must.Do(t, os.Mkdir(f.directory.JoinTokenFile(), 0o700))
	check.ErrorContains(t, f.Start(), datadir.TokenName)
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
}

// TestStartAndStop: a node starts its loops and ends them, and nothing else is left.
func TestStartAndStop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	f := newFake(t, nil, func(h *Host) { h.Stopping = ctx })
	must.Do(t, f.Start())
	if f.PeerTransport() == nil {
		t.Error("there is no transport")
	}
	cancel()
	f.Wait()
	must.Do(t, f.Close())
}

// TestNoTransportWithoutAState: the others know a node by its ledger.
func TestNoTransportWithoutAState(t *testing.T) {
	t.Parallel()
	f := newFake(t, voters(t), nil)
	must.Do(t, f.directory.SetJoinToken("t"))
	f.stateErr = errors.New("the disk is gone")
	check.Is(t, f.openTransport(), f.stateErr)
	if f.PeerTransport() != nil {
		t.Error("there is a transport")
	}
}

// TestListenerThatFails ends the node, because it could not be reached.
func TestListenerThatFails(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	f := newFake(t, voters(t), func(h *Host) { h.Fail = func(err error) { failed <- err } })
	must.Do(t, f.host.Options.Listener.Close())
	f.connect(t)
	if err := <-failed; !strings.Contains(err.Error(), "listen for other nodes") {
		t.Error(err)
	}
}
