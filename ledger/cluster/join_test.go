package cluster

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// TestJoinRequestIsChecked: a request that no node can be made of is refused, with the field that is wrong.
func TestJoinRequestIsChecked(t *testing.T) {
	t.Parallel()
	nonce := [16]byte{1}
	long := strings.Repeat("x", core.MaxAddressBytes+1)
	for _, test := range []struct {
		what, field string
		q           JoinRequest
	}{
		{"a new node", "", JoinRequest{Nonce: nonce, Peer: "a:1"}},
		{"a member", "", JoinRequest{ID: 2, Peer: "a:1"}},
		{"a member with its nonce", "", JoinRequest{ID: 2, Nonce: nonce, Peer: "a:1", Client: "b:2"}},
		{"neither nonce nor id", "nonce", JoinRequest{Peer: "a:1"}},
		{"no address", "peer", JoinRequest{Nonce: nonce, Client: "b:2"}},
		{"a member without an address", "peer", JoinRequest{ID: 2}},
		{"the longest address", "", JoinRequest{Nonce: nonce, Peer: long[1:]}},
		{"too long an address", "peer", JoinRequest{Nonce: nonce, Peer: long}},
		{"too long an address for clients", "peer", JoinRequest{Nonce: nonce, Peer: "a:1", Client: long}},
		{"no text", "peer", JoinRequest{Nonce: nonce, Peer: "\xff:1"}},
	} {
		if err := test.q.validate(); fieldOf(err) != test.field || (err != nil) != (test.field != "") {
			t.Errorf("%s: %v, want the field %q", test.what, err, test.field)
		}
	}
}

// TestChangeThatAJoinNeeds: a node that asks again changes nothing more, and no address is given away twice.
func TestChangeThatAJoinNeeds(t *testing.T) {
	t.Parallel()
	members := raftlog.Members{
		Voters: []uint64{1, 2}, Learners: []uint64{5, 6}, Highest: 7, // 3, 4 and 7 were removed
		Addresses: []core.Address{
			{ID: 1, Peer: "one:1", Client: "c1:1"},
			{ID: 2, Nonce: [16]byte{2}, Peer: "two:1", Client: "c2:1"},
			{ID: 5, Nonce: [16]byte{5}, Peer: "five:1"},
			{ID: 6, Nonce: [16]byte{6}},
		},
	}
	const none = pb.ConfChangeType(-1)
	for _, test := range []struct {
		what  string
		q     JoinRequest
		kind  pb.ConfChangeType
		id    uint64
		field string // of the refusal
		err   error
	}{
		{what: "a new node", q: JoinRequest{Nonce: [16]byte{9}, Peer: "new:1"},
			kind: pb.ConfChangeAddLearnerNode, id: 8},
		{what: "it asks again", q: JoinRequest{Nonce: [16]byte{6}, Peer: "six:1"}, kind: none, id: 6},
		{what: "it asks again, from elsewhere", q: JoinRequest{Nonce: [16]byte{6}, Peer: "else:1"}, kind: none, id: 6},
		{what: "a copy of a node that has joined", q: JoinRequest{Nonce: [16]byte{5}, Peer: "copy:1"}, field: "nonce"},
		{what: "a copy at its address", q: JoinRequest{Nonce: [16]byte{5}, Peer: "five:1"}, field: "nonce"},
		{what: "a new node at the address of another", q: JoinRequest{Nonce: [16]byte{9}, Peer: "two:1"},
			field: "peer"},
		{what: "a member as it is, which knows no nonce", q: JoinRequest{ID: 2, Peer: "two:1", Client: "c2:1"},
			kind: none, id: 2},
		{what: "a member that has moved", q: JoinRequest{ID: 2, Peer: "moved:1", Client: "c2:1"},
			kind: pb.ConfChangeUpdateNode, id: 2},
		{what: "a member that has moved to where another was", q: JoinRequest{ID: 2, Peer: "five:1"},
			kind: pb.ConfChangeUpdateNode, id: 2},
		{what: "the first node has no nonce", q: JoinRequest{ID: 1, Peer: "one:2"}, kind: pb.ConfChangeUpdateNode,
			id: 1},
		{what: "a removed node", q: JoinRequest{ID: 3, Peer: "three:1"}, err: ErrNoSuchNode},
		{what: "a node that never was", q: JoinRequest{ID: 8, Peer: "eight:1"}, err: ErrNoSuchNode},
	} {
		change, id, err := test.q.change(&members)
		if test.field != "" || test.err != nil {
			if fieldOf(err) != test.field || !errors.Is(err, test.err) && test.err != nil || change != nil {
				t.Errorf("%s: %v, %v", test.what, change, err)
			}
			continue
		}
		if err != nil || id != test.id || (change == nil) != (test.kind == none) {
			t.Errorf("%s: %v of node %d, %v", test.what, change, id, err)
			continue
		}
		if change == nil {
			continue
		}
		if c := change.GetChanges()[0]; c.GetType() != test.kind || c.GetNodeId() != test.id {
			t.Errorf("%s: %v of node %d, want %v of %d", test.what, c.GetType(), c.GetNodeId(), test.kind, test.id)
		}
		// A new node has no address before it has answered at one.
		check.Equal(t, strings.Contains(string(change.GetContext()), test.q.Peer), test.q.ID != 0,
			"%s: the change has the address %q", test.what)
	}
}

// TestCopyOfAMember: a directory that was copied before its node had joined is refused since the node has announced an
// address. Otherwise two nodes would have one id, and the copy would vote again in terms in which that one voted.
func TestCopyOfAMember(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	q := JoinRequest{Nonce: [16]byte{7}, Peer: "127.0.0.1:7451"}
	first := must.Get(f.Admit(t.Context(), q))(t)
	moved := other(t, isNode(first.ID))
	must.Get(f.Admit(t.Context(), JoinRequest{ID: first.ID, Peer: moved}))(t)
	q.Peer = "127.0.0.1:7471"
	_, err := f.Admit(t.Context(), q)
	check.Equal(t, fieldOf(err), "nonce", "the copy is admitted: %v", err)
	members := f.log.Members()
	if a, _ := members.Address(first.ID); a.Peer != moved || a.Nonce != q.Nonce || members.Highest != 2 {
		t.Errorf("%+v", members)
	}
}

// TestAdmit: a node that joins gets an id, and the state that it fetches must hold its own joining.
func TestAdmit(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil)
	f.connect(t)
	q := JoinRequest{Nonce: [16]byte{7}, Peer: "127.0.0.1:7451", Client: "c:1"}
	a, err := f.Admit(t.Context(), q)
	if err != nil || a.ID != 2 || a.Ledger != testLedger || a.AtLeast == 0 || a.AtLeast != f.log.MembersChanged() {
		t.Fatalf("%+v, %v", a, err)
	}
	if f.ticks == 0 {
		t.Error("no command came behind the change: no state could be fetched")
	}
	again, err := f.Admit(t.Context(), q)
	if err != nil || again != a {
		t.Errorf("again: %+v, %v; want %+v", again, err, a)
	}
	members := f.log.Members()
	if leader, _ := members.Address(1); leader.Peer != f.host.Options.Peer {
		t.Errorf("a node that joins finds the leader at %+v", leader)
	}
	for _, test := range []struct {
		what, field string
		change      func(*JoinRequest)
		err         error
	}{
		{what: "an address that is not encrypted", field: "peer",
			change: func(q *JoinRequest) { q.Peer = "192.0.2.1:7451" }},
		{what: "an address without a port", field: "peer", change: func(q *JoinRequest) { q.Peer = "127.0.0.1" }},
		{what: "the address of a member", field: "peer", change: func(q *JoinRequest) { q.Peer = f.host.Options.Peer }},
		{what: "no address for others", field: "peer", change: func(q *JoinRequest) { q.Peer = "[::]:7451" }},
		{what: "an unknown member", change: func(q *JoinRequest) { q.ID = 9 }, err: ErrNoSuchNode},
	} {
		q := JoinRequest{Nonce: [16]byte{8}, Peer: q.Peer}
		test.change(&q)
		_, err := f.Admit(t.Context(), q)
		if err == nil || fieldOf(err) != test.field || !errors.Is(err, test.err) && test.err != nil {
			t.Errorf("%s: %v", test.what, err)
		}
	}
	// A member may move.
	moved := other(t, isNode(2))
	must.Do(t, check.Err(f.Admit(t.Context(), JoinRequest{ID: 2, Peer: moved})), "a member that moves")
	if m := f.log.Members(); m.Highest != 2 || len(m.Learners) != 1 {
		t.Errorf("the members are %+v", m)
	}
	f.tickErr = errors.New("no quorum")
	check.Is(t, check.Err(f.Admit(t.Context(), JoinRequest{ID: 2, Peer: moved, Client: "c:2"})), f.tickErr,
		"without a command after the change")
	f.tickErr, f.stateErr = nil, errors.New("the state cannot be read")
	q.Nonce = [16]byte{9}
	check.ErrorContains(t, check.Err(f.Admit(t.Context(), q)), f.stateErr.Error(), "without a state")
}

// TestJoinHandler: what a node does with the response hangs on its status, on whether it is final, and on the leader
// that it names.
func TestJoinHandler(t *testing.T) {
	t.Parallel()
	const sound = `{"nonce":[9,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"peer":"127.0.0.1:7459"}`
	for _, test := range []struct {
		what, body string
		change     func(*fakeLedger)
		status     int
		want       JoinRefusal
	}{
		{what: "no JSON", body: "join me", status: http.StatusBadRequest,
			want: JoinRefusal{Message: "no JSON of a join", Final: true}},
		{what: "too much", body: `{"peer":"` + strings.Repeat("x", maxJoinBytes) + `"}`, status: http.StatusBadRequest,
			want: JoinRefusal{Message: "too large", Final: true}},
		{what: "no address", body: `{"nonce":[9,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}`, status: http.StatusBadRequest,
			want: JoinRefusal{Message: "peer: ", Final: true}},
		{what: "no member", body: `{"id":9,"peer":"127.0.0.1:7459"}`, status: http.StatusBadRequest,
			want: JoinRefusal{Message: "node 9 is no member", Final: true}},
		{what: "another node leads", body: sound, status: http.StatusMisdirectedRequest,
			change: func(f *fakeLedger) { f.leads(Leader{ID: 3, Peer: "three:1", Client: "c3:1"}) },
			want:   JoinRefusal{Message: "it is c3:1", Leader: "three:1"}},
		{what: "no leader", body: sound, status: http.StatusMisdirectedRequest,
			change: func(f *fakeLedger) { f.leads(Leader{}) }, want: JoinRefusal{Message: "there is none"}},
		{what: "no command", body: sound, status: http.StatusServiceUnavailable,
			change: func(f *fakeLedger) { f.tickErr = errors.New("no quorum") },
			want:   JoinRefusal{Message: "no quorum"}},
		{what: "sound", body: sound, status: http.StatusOK},
	} {
		f := newFake(t, nil, nil).connect(t)
		if test.change != nil {
			test.change(f)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, JoinPath, strings.NewReader(test.body))
		f.JoinHandler().ServeHTTP(w, r)
		var no JoinRefusal
		check.Is(t, json.Unmarshal(w.Body.Bytes(), &no), nil, "%s: %q", test.what, w.Body)
		if w.Code != test.status || !strings.Contains(no.Message, test.want.Message) || no.Leader != test.want.Leader ||
			no.Final != test.want.Final {
			t.Errorf("%s: %d %+v, want %d %+v", test.what, w.Code, no, test.status, test.want)
		}
	}
}

// TestAskToJoin: what a node makes of the responses of the others.
func TestAskToJoin(t *testing.T) {
	t.Parallel()
	q := JoinRequest{Nonce: [16]byte{1}, Peer: "me:1", Client: "c:1"}
	for _, test := range []struct {
		what    string
		answer  http.HandlerFunc
		refusal *JoinRefusal
		err     string
	}{
		{what: "admitted", answer: says(200, `{"id":4,"ledger":65261,"atLeast":12}`)},
		{what: "admitted, and no JSON", answer: says(200, "welcome"), err: "invalid character"},
		{what: "admitted, and cut off", answer: says(200, `{"id":4,"more":"`+strings.Repeat("x", maxJoinBytes)+`"}`),
			err: "unexpected end of JSON"},
		{what: "another node leads", answer: says(421, `{"error":"not me","leader":"three:1"}`),
			refusal: &JoinRefusal{Message: "not me", Leader: "three:1"}},
		{what: "for good", answer: says(400, `{"error":"no","final":true}`), refusal: &JoinRefusal{Message: "no",
			Final: true}},
		{what: "a proxy", answer: says(502, "<html>bad gateway"), err: `502 Bad Gateway: "<html>bad gateway"`},
		{what: "JSON of something else", answer: says(503, `{"message":"down"}`), err: "503 Service Unavailable"},
	} {
		url := "http://" + other(t, func(w http.ResponseWriter, r *http.Request) {
			var got JoinRequest
			err := json.NewDecoder(r.Body).Decode(&got)
			if err != nil || got != q || r.Method != http.MethodPost || r.URL.Path != JoinPath {
				t.Errorf("%s: %s %s of %+v: %v", test.what, r.Method, r.URL.Path, got, err)
			}
			test.answer(w, r)
		})
		a, err := AskToJoin(t.Context(), transport.NewRoundTripper(nil), url, q)
		refusal, _ := errors.AsType[*JoinRefusal](err)
		switch {
		case test.refusal != nil:
			if refusal == nil || *refusal != *test.refusal || err.Error() != test.refusal.Message {
				t.Errorf("%s: %v", test.what, err)
			}
		case test.err != "":
			if err == nil || refusal != nil || !strings.Contains(err.Error(), test.err) ||
				!strings.Contains(err.Error(), url) {
				t.Errorf("%s: %v", test.what, err)
			}
		default:
			if want := (JoinAnswer{ID: 4, Ledger: testLedger, AtLeast: 12}); err != nil || a != want {
				t.Errorf("%s: %+v, %v", test.what, a, err)
			}
		}
	}
	for what, url := range map[string]string{"no listener": "http://127.0.0.1:1", "no address": "http://[::1"} {
		if _, err := AskToJoin(t.Context(), transport.NewRoundTripper(nil), url, q); err == nil {
			t.Errorf("%s: it was admitted", what)
		}
	}
}

// TestAnnounce: a node whose address has changed tells it to the nodes that it knows, and goes on to the leader that
// they name.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	var asked []string
	node := func(name string, answer http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, name)
			answer(w, r)
		}
	}
	leader := other(t, node("leader", says(200, `{"id":1}`)))
	toLeader := says(421, `{"error":"not me","leader":"`+leader+`"}`)
	for _, test := range []struct {
		what, want string
		others     []http.HandlerFunc
		warns      string
	}{
		{"the first is asked alone", "two", []http.HandlerFunc{node("two", says(200, `{"id":1}`)), node("three",
			toLeader)}, ""},
		{"the leader is another node", "two three leader", []http.HandlerFunc{node("two", toLeader), node("three",
			toLeader)}, ""},
		{"one is down", "three leader", []http.HandlerFunc{nil, node("three", toLeader)}, ""},
		{"all refuse", "two three", []http.HandlerFunc{
			node("two", says(503, `{"error":"busy"}`)), node("three", says(421, `{"error":"no leader"}`)),
		}, "no leader"},
	} {
		asked = nil
		f := newFake(t, voters(t, test.others...), nil)
		f.connect(t)
		f.announce() // its address is not the one that the others know
		check.Equal(t, strings.Join(asked, " "), test.want, "%s: asked %s", test.what)
		if logged := f.logged.String(); strings.Contains(logged, "tried again") != (test.warns != "") ||
			!strings.Contains(logged, test.warns) {
			t.Errorf("%s: it says %s", test.what, logged)
		}
	}
}

// TestAnnounceEnds: nodes that name each other as the leader are not asked for ever.
func TestAnnounceEnds(t *testing.T) {
	t.Parallel()
	asked, self := 0, ""
	self = other(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		says(421, `{"error":"not me","leader":"`+self+`"}`)(w, r)
	})
	m := voters(t, nil)
	m.Addresses[1].Peer = self
	f := newFake(t, m, nil)
	f.connect(t)
	f.announce()
	check.Equal(t, asked, 1, "asked %d times, want once")
}
