package transport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// node is a transport with its listener, and the messages it has received.
type node struct {
	*Transport
	address  string
	received chan *pb.Message
	lost     chan uint64
	log      *logged
	serving  sync.WaitGroup
}

// logged records log output.
type logged struct {
	mu    sync.Mutex
	text  strings.Builder
	lines chan struct{} // has capacity 1
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	signal(l.lines)
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits until a line was logged.
func (l *logged) await(t *testing.T, what string) {
	t.Helper()
	for {
		if strings.Contains(l.String(), what) {
			return
		}
		select {
		case <-l.lines:
		case <-time.After(time.Minute):
			t.Fatalf("never logged: %q; but %s", what, l.text.String())
		}
	}
}

// membersAreAll returns an Access that lets in every node with the token and treats it as a member.
func membersAreAll(token string) Access {
	return Access{
		Token:  func() string { return token },
		Member: func(uint64) (peer string, is, was bool) { return "127.0.0.1:1", true, false },
	}
}

func start(t *testing.T, id uint64, change func(*Options)) *node {
	t.Helper()
	address := must.Get(freeport.Address())(t) // one that stays free while the node is restarted
	return startOn(t, id, address, change)
}

func startOn(t *testing.T, id uint64, address string, change func(*Options)) *node {
	t.Helper()
	n := &node{
		received: make(chan *pb.Message, 100_000), lost: make(chan uint64, 100_000),
		log: &logged{lines: make(chan struct{}, 1)},
	}
	o := Options{
		Ledger: "ledger-1", ID: id, Unreachable: func(id uint64) { n.lost <- id },
		Logger: slog.New(slog.NewTextHandler(n.log, nil)), Access: membersAreAll(guardToken),
		Receive: func(messages []*pb.Message) {
			for _, m := range messages {
				n.received <- m
			}
		},
	}
	if change != nil {
		change(&o)
	}
	n.Transport = must.Get(New(o))(t)
	l := must.Get(freeport.Listen(t.Context(), address))(t)
	n.address = l.Addr().String()
	n.serving.Go(func() { // ends with Close; joined by stop
		check.Is(t, n.Serve(l), nil)
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) stop() {
	_ = n.Close()
	n.serving.Wait()
}

// join makes nodes each other's peers.
func join(t *testing.T, nodes ...*node) {
	t.Helper()
	addresses := map[uint64]string{}
	for _, n := range nodes {
		addresses[n.o.ID] = n.address
	}
	for _, n := range nodes {
		others := maps.Clone(addresses)
		delete(others, n.o.ID)
		must.Do(t, n.SetPeers(others))
	}
}

// message returns a message whose index is number.
func message(from, to, number uint64, kind pb.MessageType, bytes int) *pb.Message {
	m := &pb.Message{Type: kind.Enum(), From: &from, To: &to, Index: &number}
	if bytes > 0 {
		m.Entries = []*pb.Entry{{Data: make([]byte, bytes)}}
	}
	return m
}

// get returns the next message that arrives.
func (n *node) get(t *testing.T) *pb.Message {
	t.Helper()
	select {
	case m := <-n.received:
		return m
	case <-time.After(time.Minute):
		t.Fatalf("node %d receives nothing; it says %s", n.o.ID, n.log.text.String())
		return nil
	}
}

// reach sends from one node to another until a message arrives, because messages sent without a stream are lost.
func reach(t *testing.T, from, to *node) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(time.Minute); ; {
		from.Send([]*pb.Message{message(from.o.ID, to.o.ID, 0, pb.MsgHeartbeat, 0)})
		select {
		case <-to.received:
			return
		case <-deadline:
			t.Fatalf("node %d does not reach node %d: %s %s",
				from.o.ID, to.o.ID, from.log.text.String(), to.log.text.String())
		case <-ticker.C:
		}
	}
}

// Each node reaches each other node, over one stream per pair, and messages arrive in order.
func TestMessagesArrive(t *testing.T) {
	t.Parallel()
	nodes := []*node{start(t, 1, nil), start(t, 2, nil), start(t, 7, nil)}
	join(t, nodes...)
	for _, from := range nodes {
		for _, to := range nodes {
			if from == to {
				continue
			}
			reach(t, from, to)
			const count = 500
			for i := range uint64(count) {
				from.Send([]*pb.Message{message(from.o.ID, to.o.ID, i+1, pb.MsgApp, 100)})
			}
			for i := uint64(0); i < count; {
				m := to.get(t)
				if m.GetFrom() != from.o.ID || m.GetIndex() == 0 {
					continue // sent by reach
				}
				if i++; m.GetIndex() != i || len(m.GetEntries()[0].GetData()) != 100 {
					t.Fatalf("message %d of node %d where number %d should be", m.GetIndex(), from.o.ID, i)
				}
			}
		}
	}
	for _, n := range nodes {
		for id, connected := range n.Connected() {
			p := n.peer(id)
			if p.mu.Lock(); !connected || p.current != 1 {
				t.Errorf("node %d has had %d streams with node %d, connected: %t", n.o.ID, p.current, id, connected)
			}
			p.mu.Unlock()
		}
	}
}

// A node that restarts is reached again, also at another address.
func TestRestartedNodeIsReached(t *testing.T) {
	t.Parallel()
	one, two := start(t, 1, nil), start(t, 2, nil)
	join(t, one, two)
	reach(t, one, two)
	two.stop()
	two = startOn(t, 2, two.address, nil)
	join(t, one, two)
	reach(t, one, two)
	one.stop()
	one = start(t, 1, nil)
	join(t, one, two)
	reach(t, two, one)
	reach(t, one, two)
}

// A node reaches the others although they know an address at which it is not any more, whatever the ids are: they learn
// the new one from a leader, which needs a majority that reaches each other.
func TestNodeAtAnotherAddressIsReached(t *testing.T) {
	t.Parallel()
	one, two := start(t, 1, nil), start(t, 2, nil)
	nowhere := must.Get(freeport.Address())(t)
	must.Do(t, one.SetPeers(map[uint64]string{2: nowhere}))
	must.Do(t, two.SetPeers(map[uint64]string{1: one.address}))
	reach(t, two, one)
	reach(t, one, two)
	must.Do(t, one.SetPeers(map[uint64]string{2: two.address}))
	reach(t, one, two)
	reach(t, two, one)
}

// Nodes that do not belong to the cluster are refused, and the reason is logged on the side that can act on it. None of
// their messages is delivered.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Options) // of the connecting node
		peers  func(one, two *node) (ofOne, ofTwo map[uint64]string)
		says   string
	}{
		"another ledger": {
			func(o *Options) { o.Ledger = "ledger-2" },
			func(one, two *node) (_, _ map[uint64]string) {
				return map[uint64]string{2: two.address}, map[uint64]string{1: one.address}
			}, `node of ledger \"ledger-2\", and this is ledger \"ledger-1\"`,
		},
		"no member": {
			nil, func(_, two *node) (_, _ map[uint64]string) { return map[uint64]string{2: two.address}, nil },
			"node 1 is no member",
		},
		"wrong address": {
			nil, func(one, two *node) (_, _ map[uint64]string) {
				return map[uint64]string{3: two.address}, map[uint64]string{1: one.address}
			}, `it looks for node \"3\", and this is node 2`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two := start(t, 1, tt.change), start(t, 2, nil)
			ofOne, ofTwo := tt.peers(one, two)
			must.Do(t, errors.Join(one.SetPeers(ofOne), two.SetPeers(ofTwo)))
			one.log.await(t, tt.says)
			two.log.await(t, tt.says)
			for id := range ofOne {
				one.Send([]*pb.Message{message(1, id, 1, pb.MsgHeartbeat, 0)})
				check.Equal(t, <-one.lost, id, "lost to node %d")
			}
			if len(two.received) > 0 {
				t.Errorf("received %v", <-two.received)
			}
		})
	}
}

// A removed member is cut off, and refused when it reconnects.
func TestRemovedMemberIsCutOff(t *testing.T) {
	t.Parallel()
	one, two := start(t, 1, nil), start(t, 2, nil)
	join(t, one, two)
	reach(t, one, two)
	must.Do(t, two.SetPeers(nil))
	one.log.await(t, "node 1 is no member")
	check.Equal(t, len(two.Connected()), 0, "connected: %v")
}

// A message that claims to be from another node ends the stream, and is not delivered.
func TestForgedMessageEndsTheStream(t *testing.T) {
	t.Parallel()
	one, two := start(t, 1, nil), start(t, 2, nil)
	join(t, one, two)
	reach(t, one, two)
	one.peer(2).enqueue(message(3, 2, 99, pb.MsgApp, 0))
	one.log.await(t, "node 1 sent a message from node 3 to node 2")
	reach(t, one, two) // the node may reconnect
	for len(two.received) > 0 {
		if m := <-two.received; m.GetIndex() == 99 {
			t.Error("a forged message was delivered")
		}
	}
}

// If a node does not read, the queue to it is bounded, nothing blocks, and the loss is reported.
func TestFullQueueDropsMessages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ count, bytes int }{
		"count": {3 * MaxQueueMessages, 0}, "bytes": {300, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold := make(chan struct{})
			var once sync.Once
			release := func() { once.Do(func() { close(hold) }) }
			one := start(t, 1, nil)
			two := start(t, 2, func(o *Options) {
				receive := o.Receive
				o.Receive = func(m []*pb.Message) { <-hold; receive(m) }
			})
			t.Cleanup(release)
			join(t, one, two)
			for !one.Connected()[2] {
				<-time.After(time.Millisecond)
			}
			for len(one.lost) > 0 {
				<-one.lost
			}
			p := one.peer(2)
			for i := range tt.count {
				one.Send([]*pb.Message{message(1, 2, uint64(i+1), pb.MsgApp, tt.bytes)})
				p.mu.Lock()
				messages, bytes := len(p.urgent)+len(p.bulk), p.bytes
				p.mu.Unlock()
				if messages > MaxQueueMessages || bytes > MaxQueueBytes {
					t.Fatalf("%d messages with %d bytes wait", messages, bytes)
				}
			}
			if tt.bytes > 0 { // the sockets buffer less than all of it
				check.Equal(t, <-one.lost, 2, "lost to node %d")
			}
			release()
			two.get(t)
		})
	}
}

// Heartbeats and votes overtake waiting entries, and the size of a frame is bounded.
func TestHeartbeatsPassEntries(t *testing.T) {
	t.Parallel()
	p := &peer{attached: true, wake: make(chan struct{}, 1), lost: make(chan struct{}, 1)}
	for i := range uint64(20) {
		p.enqueue(message(1, 2, i, pb.MsgApp, 300<<10))
	}
	p.enqueue(message(1, 2, 100, pb.MsgHeartbeat, 0))
	var order []uint64
	for {
		f := must.Get(p.next())(t)
		if len(f.bytes) == 0 {
			break
		}
		if len(f.bytes) > frameBytes {
			t.Errorf("a frame of %d bytes", len(f.bytes))
		}
		messages := must.Get(decode(f))(t)
		for _, m := range messages {
			order = append(order, m.GetIndex())
		}
	}
	if len(order) != 21 || order[0] != 100 || order[1] != 0 || order[20] != 19 || p.bytes != 0 {
		t.Errorf("order %v, and %d bytes are left", order, p.bytes)
	}
	p.enqueue(message(1, 2, 1, pb.MsgApp, maxFrameBytes))
	if len(p.bulk) > 0 || len(p.lost) == 0 {
		t.Error("a message that no frame can hold was queued")
	}
}

// authority signs certificates of nodes.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	certificate := must.Get(x509.ParseCertificate(der))(t)
	return &authority{certificate, key}
}

// config returns the TLS configuration of a node with a certificate of this authority that trusts the given
// authorities.
func (a *authority) config(t *testing.T, trusted ...*authority) *tls.Config {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key))(t)
	pool := x509.NewCertPool()
	for _, other := range trusted {
		pool.AddCert(other.certificate)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool, ClientCAs: pool,
		MinVersion: tls.VersionTLS13,
	}
}

// With TLS, each side needs a certificate of an authority that the other side trusts.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	with := func(c *tls.Config) func(*Options) { return func(o *Options) { o.TLS = c } }
	t.Run("trusted", func(t *testing.T) {
		t.Parallel()
		one, two := start(t, 1, with(ours.config(t, ours))), start(t, 2, with(ours.config(t, ours)))
		join(t, one, two)
		reach(t, one, two)
		reach(t, two, one)
	})
	for name, change := range map[string]func(*Options){
		"a client of another authority": with(theirs.config(t, ours)),
		"a client that trusts another":  with(ours.config(t, theirs)),
		"a client without TLS":          nil,
		"a client without certificate": with(func() *tls.Config {
			c := ours.config(t, ours)
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return new(tls.Certificate), nil
			}
			return c
		}()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two := start(t, 1, change), start(t, 2, with(ours.config(t, ours)))
			join(t, one, two)
			one.log.await(t, "no stream to a node of the cluster")
			if two.Connected()[1] || len(two.received) > 0 {
				t.Error("it was let in")
			}
		})
	}
}

// Without TLS nothing crosses a network, unless Insecure is set.
func TestNotEncrypted(t *testing.T) {
	t.Parallel()
	n := start(t, 1, nil)
	check.Is(t, n.SetPeers(map[uint64]string{2: "192.0.2.7:7451"}), ErrNotEncrypted, "a peer elsewhere")
	l := must.Get(net.Listen("tcp", "0.0.0.0:0"))(t)
	check.Is(t, n.Serve(l), ErrNotEncrypted, "a listener for everybody")
	insecure := start(t, 1, func(o *Options) { o.Insecure = true })
	must.Do(t, insecure.Allowed("192.0.2.7:7451"))
}

// TestOptions: invalid options are refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*Options){
		"Ledger": func(o *Options) { o.Ledger = "" }, "ID": func(o *Options) { o.ID = 0 },
		"Receive": func(o *Options) { o.Receive = nil }, "RootCAs": func(o *Options) { o.TLS = new(tls.Config) },
	} {
		o := Options{Ledger: "x", ID: 1, Receive: func([]*pb.Message) {}}
		change(&o)
		if n, err := New(o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, %v", what, n, err)
		}
	}
	n := start(t, 1, nil)
	for _, id := range []uint64{0, 1} {
		if err := n.SetPeers(map[uint64]string{id: "127.0.0.1:1"}); err == nil {
			t.Errorf("node %d was taken for a peer", id)
		}
	}
}
