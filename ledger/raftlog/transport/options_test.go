package transport

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// plain returns options with everything that is required.
func plain() Options {
	return Options{Ledger: "l", ID: 2, Receive: func([]*pb.Message) {}, Access: membersAreAll("t")}
}

// TestOptionsThatAreMissing: a transport without one of these would accept every request, or none.
func TestOptionsThatAreMissing(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*Options){
		"Ledger is empty":            func(o *Options) { o.Ledger = "" },
		"ID is 0":                    func(o *Options) { o.ID = 0 },
		"Receive is nil":             func(o *Options) { o.Receive = nil },
		"Access lacks a function":    func(o *Options) { o.Access = Access{} },
		"lacks a function":           func(o *Options) { o.Access.Token = nil },
		"Options.Access lacks":       func(o *Options) { o.Access.Member = nil },
		"needs RootCAs":              func(o *Options) { o.TLS = &tls.Config{ClientCAs: x509.NewCertPool()} },
		"needs RootCAs and ClientCA": func(o *Options) { o.TLS = &tls.Config{RootCAs: x509.NewCertPool()} },
	} {
		o := plain()
		change(&o)
		n, err := New(o)
		if err == nil {
			_ = n.Close()
		}
		check.ErrorContains(t, err, says)
	}
	n := must.Get(New(plain()))(t)
	must.Do(t, n.Close())
}

// TestAllowed: without TLS, nothing crosses a network unless an operator says so.
func TestAllowed(t *testing.T) {
	t.Parallel()
	for address, loopback := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "192.0.2.1:1": false, "[2001:db8::1]:1": false,
		"0.0.0.0:1": false, "[::]:1": false, ":1": false, "node.example:1": false,
		"localhost:1": false, // whatever a name server says of it
		"127.0.0.1":   false, "": false,
	} {
		n := must.Get(New(plain()))(t)
		check.Equal(t, (n.Allowed(address) == nil), loopback, "%q: %v", address)
		n.o.Insecure = true
		must.Do(t, n.Allowed(address), "%q on a trusted network", address)
		n.o.Insecure, n.o.TLS = false, &tls.Config{}
		must.Do(t, n.Allowed(address), "%q with TLS", address)
		must.Do(t, n.Close())
	}
}

// TestIdentify: a stream is that of another node of the same ledger, which looks for this one.
func TestIdentify(t *testing.T) {
	t.Parallel()
	n := must.Get(New(plain()))(t)
	defer func() { _ = n.Close() }()
	for _, test := range []struct {
		what, ledger, from, to string
		id                     uint64
	}{
		{"a node", "l", "3", "2", 3},
		{"the highest id", "l", "18446744073709551615", "2", 1<<64 - 1},
		{"another ledger", "k", "3", "2", 0},
		{"no ledger", "", "3", "2", 0},
		{"for another node", "l", "3", "4", 0},
		{"without a recipient", "l", "3", "", 0},
		{"for this one in another form", "l", "3", "02", 0},
		{"without a sender", "l", "", "2", 0},
		{"from node 0", "l", "0", "2", 0},
		{"from this node", "l", "2", "2", 0},
		{"from no number", "l", "x", "2", 0},
		{"from a number that is too high", "l", "18446744073709551616", "2", 0},
	} {
		h := http.Header{}
		h.Set(headerLedger, test.ledger)
		h.Set(headerFrom, test.from)
		h.Set(headerTo, test.to)
		if id, err := n.identify(h); id != test.id || (err == nil) != (test.id != 0) {
			t.Errorf("%s: node %d, %v", test.what, id, err)
		}
	}
	h := http.Header{}
	n.introduce(h, 7)
	if h.Get(headerLedger) != "l" || h.Get(headerFrom) != "2" || h.Get(headerTo) != "7" {
		t.Errorf("it says of itself %v", h)
	}
}

// TestIdentityIsTheNodesOwn: headers that a caller of a forwarded call sets do not pass for those of the node.
func TestIdentityIsTheNodesOwn(t *testing.T) {
	t.Parallel()
	var seen http.Header
	next := roundTrip(func(r *http.Request) (*http.Response, error) {
		seen = r.Header
		return httptest.NewRecorder().Result(), nil
	})
	for _, test := range []struct {
		is   Identity
		want [3]string
	}{
		{Identity{Token: "t", Ledger: "l", From: 4}, [3]string{"t", "l", "4"}},
		{Identity{Token: "t"}, [3]string{"t", "", ""}}, // while it joins
		{Identity{}, [3]string{}},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		for _, name := range []string{headerToken, headerPeerLedger, headerPeerFrom} {
			r.Header.Add(name, "forged")
			r.Header.Add(name, "forged again")
		}
		r.Header.Set("Authorization", "Bearer of the caller")
		response := must.Get(As(next, func() Identity { return test.is }).RoundTrip(r))(t)
		_ = response.Body.Close()
		for i, name := range []string{headerToken, headerPeerLedger, headerPeerFrom} {
			check.Equal(t, strings.Join(seen.Values(name), ","), test.want[i], "%+v: %s is %q", test.is, name)
		}
		if seen.Get("Authorization") != "Bearer of the caller" || r.Header.Get(headerToken) != "forged" {
			t.Error("the caller's own request was changed, or its credential is lost")
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPeersThatCannotBe are refused, and one address that must not be used leaves the others.
func TestPeersThatCannotBe(t *testing.T) {
	t.Parallel()
	n, err := New(plain())
	must.Do(t, err)
	defer func() { _ = n.Close() }()
	for _, id := range []uint64{0, n.o.ID} {
		if err := n.SetPeers(map[uint64]string{id: "127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(),
			"node "+strconv.FormatUint(id, 10)) {
			t.Errorf("node %d: %v", id, err)
		}
	}
	err = n.SetPeers(map[uint64]string{1: "127.0.0.1:1", 3: "192.0.2.1:1"})
	if connected := n.Connected(); err == nil || !strings.Contains(err.Error(), "node 3") || len(connected) != 1 {
		t.Errorf("%v, %v", connected, err)
	}
	must.Do(t, n.Close())
	if err := n.SetPeers(map[uint64]string{1: "127.0.0.1:1"}); err != nil || len(n.Connected()) > 0 {
		t.Errorf("after Close: %v, %v", n.Connected(), err)
	}
	n.Send([]*pb.Message{message(2, 1, 1, pb.MsgHeartbeat, 0)}) // which drops it
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	must.Do(t, n.Serve(l), "Serve after Close")
}

// TestLoggedRefusalsAreBounded: a stranger cannot fill the log with one message for each of its requests.
func TestLoggedRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	var said told
	if !said.add("a") || said.add("a") || !said.add("b") {
		t.Error("a message is not said once")
	}
	count := 2
	for i := range 10 * maxTold {
		if said.add(strconv.Itoa(i)) {
			count++
		}
	}
	check.Equal(t, count, maxTold, "%d messages are said")
}

// TestFramesAlone: the codec of the streams takes nothing else.
func TestFramesAlone(t *testing.T) {
	t.Parallel()
	data := []byte("frame")
	f := new(frame)
	must.Do(t, (codec{}).Unmarshal(data, f))
	data[0] = 'x' // the library uses it again
	check.Equal(t, string(must.Get((codec{}).Marshal(f))(t)), "frame")
	if _, err := (codec{}).Marshal("frame"); err == nil {
		t.Error("a text was sent")
	}
	if err := (codec{}).Unmarshal(data, new(string)); err == nil {
		t.Error("a text was received")
	}
}
