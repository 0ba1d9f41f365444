package transport

import (
	"crypto/tls"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

const guardToken = "a secret of the nodes"

// guarded starts node 2, which answers every request with "here" and the identity headers that its handler sees.
func guarded(t *testing.T, change func(*Options)) *node {
	t.Helper()
	return start(t, 2, func(o *Options) {
		o.Access.Member = func(id uint64) (peer string, is, was bool) { return "127.0.0.1:1", id <= 3, id == 4 }
		o.Access.Joining = []string{"/seqledger.peer.v1/Join"}
		o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{headerToken, headerPeerLedger, headerPeerFrom, headerPeerTo} {
				check.Equal(t, r.Header.Get(name), "", "%s goes on to what answers the request: %v", name)
			}
			_, _ = io.WriteString(w, "here")
		})
		if change != nil {
			change(o)
		}
	})
}

// ask makes a request as a node, and returns the status and the body.
func ask(
	t *testing.T, n *node, path string, as Identity, config *tls.Config, change ...func(http.Header),
) (int, string) {
	t.Helper()
	scheme := "http://"
	if config != nil {
		scheme = "https://"
	}
	q := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, scheme+n.address+path, http.NoBody))(t)
	as.show(q.Header)
	for _, c := range change {
		c(q.Header)
	}
	r := must.Get(NewRoundTripper(config).RoundTrip(q))(t)
	defer r.Body.Close()
	b := must.Get(io.ReadAll(r.Body))(t)
	return r.StatusCode, string(b)
}

// paths are the paths that nodes request from each other, and that of a forwarded call.
var paths = []string{
	"/seqledger.peer.v1/Join", "/seqledger.peer.v1/Seed", "/seqledger.peer.v1/Pulse", "/seqledger.peer.v1/Digest",
	"/seqledger.peer.v1/Identity", "/seqledger.v1.LedgerService/Write", "/other",
}

// Every request, on any path, carries the token, the ledger and a member's id. A joining node has no ledger and no id
// yet, and may request only the joining paths.
func TestEveryRequestIsGuarded(t *testing.T) {
	t.Parallel()
	n := guarded(t, nil)
	whole := Identity{Token: guardToken, Ledger: "ledger-1", From: 3}
	for _, path := range paths {
		join := path == paths[0]
		for what, tt := range map[string]struct {
			as   Identity
			want int
			says string
		}{
			"a member":          {whole, http.StatusOK, "here"},
			"no token":          {Identity{Ledger: "ledger-1", From: 3}, http.StatusUnauthorized, "the join token"},
			"a wrong token":     {Identity{guardToken + "s", "ledger-1", 3}, http.StatusUnauthorized, "the join token"},
			"another ledger":    {Identity{guardToken, "ledger-2", 3}, http.StatusForbidden, "of ledger"},
			"a node to be":      {Identity{guardToken, "ledger-1", 9}, http.StatusForbidden, "node 9 is no member"},
			"a node of before":  {Identity{guardToken, "ledger-1", 4}, http.StatusForbidden, `"removed":true`},
			"a node that joins": {Identity{Token: guardToken}, http.StatusForbidden, "of ledger"},
			"no number":         {Identity{Token: guardToken, Ledger: "ledger-1"}, http.StatusForbidden, "of node"},
		} {
			if join && tt.as.From == 0 {
				tt.want, tt.says = http.StatusOK, "here"
			}
			if status, said := ask(t, n, path, tt.as, nil); status != tt.want || !strings.Contains(said, tt.says) {
				t.Errorf("%s of %s: %d %s", path, what, status, said)
			}
		}
	}
	// A caller's own credential is not a token.
	bearer := func(h http.Header) { h.Set("Authorization", "Bearer "+guardToken) }
	if status, _ := ask(t, n, paths[1], Identity{Ledger: "ledger-1", From: 3}, nil, bearer); status != 401 {
		t.Errorf("a token under Authorization: %d", status)
	}
	// An address may now belong to another node, whose answer would be mistaken for that of the first.
	for to, want := range map[uint64]int{2: http.StatusOK, 1: http.StatusMisdirectedRequest} {
		status, said := ask(t, n, paths[3], whole, nil, func(h http.Header) { AddressTo(h, to) })
		if status != want {
			t.Errorf("a request to node %d: %d %s", to, status, said)
		}
	}
}

// A forwarded call is refused in its own protocol and may be retried, because its caller has done nothing wrong.
func TestForwardedCallIsRefusedAsUnavailable(t *testing.T) {
	t.Parallel()
	n := guarded(t, nil)
	json := func(h http.Header) { h.Set("Content-Type", "application/json") }
	status, said := ask(t, n, paths[5], Identity{}, nil, json)
	if status != http.StatusServiceUnavailable || !strings.Contains(said, `"unavailable"`) {
		t.Errorf("%d %s", status, said)
	}
}

// A certificate of the authority does not let its owner act as any node: it must be for the address of the node that
// the owner claims to be.
func TestCertificateIsOfTheNode(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	n := guarded(t, func(o *Options) {
		o.TLS = a.config(t, a)
		o.Access.Member = func(id uint64) (peer string, is, was bool) {
			return map[uint64]string{1: "127.0.0.1:7", 3: "127.0.0.3:7"}[id], true, false
		}
	})
	own := a.config(t, a) // for 127.0.0.1
	for _, path := range append(slices.Clone(paths[1:]), Procedure) {
		if status, said := ask(t, n, path, Identity{guardToken, "ledger-1", 3}, own); status != http.StatusForbidden ||
			!strings.Contains(said, "certificate") {
			t.Errorf("%s as another node: %d %s", path, status, said)
		}
		if path == Procedure {
			continue
		}
		if status, said := ask(t, n, path, Identity{guardToken, "ledger-1", 1}, own); status != http.StatusOK {
			t.Errorf("%s as the node: %d %s", path, status, said)
		}
	}
}

// A member that has announced no address has none that its certificate could be for, so any owner of a certificate
// could act as it. It may do nothing but fetch the state.
func TestMemberWithoutAnAddress(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	member := func(uint64) (peer string, is, was bool) { return "", true, false }
	encrypted := guarded(t, func(o *Options) {
		o.TLS, o.Access.Member, o.Access.Unannounced = a.config(t, a), member, paths[1:2]
	})
	plain := guarded(t, func(o *Options) { o.Access.Member = member })
	config := a.config(t, a)
	as := Identity{guardToken, "ledger-1", 3}
	for _, path := range append(slices.Clone(paths[1:]), Procedure) {
		want := http.StatusForbidden
		if path == paths[1] {
			want = http.StatusOK
		}
		if status, said := ask(t, encrypted, path, as, config); status != want ||
			want == http.StatusForbidden && !strings.Contains(said, "no address") {
			t.Errorf("%s over TLS: %d %s", path, status, said)
		}
		if path == Procedure {
			continue
		}
		if status, said := ask(t, plain, path, as, nil); status != http.StatusOK { // only the token protects it
			t.Errorf("%s without TLS: %d %s", path, status, said)
		}
	}
	if logged := encrypted.log.String(); strings.Contains(logged, "was refused") {
		t.Errorf("a node that joins is reported: %s", logged)
	}
}

// A stream of the consensus needs the token, too, because a forged message could decide what is committed.
func TestStreamNeedsTheToken(t *testing.T) {
	t.Parallel()
	one := start(t, 1, func(o *Options) { o.Access.Token = func() string { return "another secret" } })
	two := start(t, 2, nil)
	join(t, one, two)
	one.log.await(t, "join token is missing or wrong")
	two.log.await(t, "join token is missing or wrong")
	one.Send([]*pb.Message{message(1, 2, 1, pb.MsgApp, 0)})
	if <-one.lost; len(two.received) > 0 {
		t.Errorf("received %v", <-two.received)
	}
}
