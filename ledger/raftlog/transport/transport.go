package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/listen"
)

// Bounds of a transport.
const (
	// MaxQueueMessages and MaxQueueBytes bound the messages that wait for one node.
	MaxQueueMessages = 4096
	MaxQueueBytes    = 64 << 20
	// frameBytes is roughly the size of one frame; a single message may be larger.
	frameBytes = 1 << 20
	// maxFrameBytes is the maximum size of a frame: the largest entry with its message.
	maxFrameBytes = 64<<20 + 1<<20

	pingAfter    = 2 * time.Second
	pingTimeout  = 2 * time.Second
	firstRetry   = 50 * time.Millisecond
	longestRetry = time.Second
	// patientRetries is how many times longestRetry the node with the higher id waits before it connects.
	patientRetries = 3
	dialTimeout    = 2 * time.Second

	// streamWindow bounds the unread data of a stream. The window of a connection holds many unread streams, so that
	// waiting forwarded calls do not block the others on the connection.
	streamWindow     = 4 << 20
	connectionWindow = 256 << 20

	// maxHeaderBytes is the maximum size of the header of a forwarded call. HTTP/2 counts 32 bytes for each field
	// beside its name and value, and the 36 KiB that a client may send over HTTP/1.1 can be fields of one byte.
	maxHeaderBytes = 384 << 10
)

// ErrNotEncrypted means that other machines can reach an address and there is no TLS.
var ErrNotEncrypted = errors.New("transport: the address is not loopback, and there is no TLS")

// Options configures New. Ledger, ID, Receive and Access are required.
type Options struct {
	Ledger string // id of the ledger; nodes of other ledgers are refused
	ID     uint64 // of this node
	// Receive takes messages of one node in the order of its stream. It is called from one goroutine for each node, and
	// blocks that node's next messages until it returns.
	Receive func(messages []*pb.Message)
	// Unreachable is called when messages to a node were lost, from a goroutine of the transport; may be nil.
	Unreachable func(id uint64)
	// TLS is used on both sides: Certificates, RootCAs for the nodes that this one connects to, and ClientCAs for those
	// that connect to it. If it is nil, connections are not encrypted.
	TLS *tls.Config
	// Insecure allows addresses that are not loopback without TLS.
	Insecure bool
	// Access decides which requests of other nodes are let in, including streams.
	Access Access
	// Handler answers requests of nodes other than streams of the consensus; nil refuses them.
	Handler http.Handler
	Logger  *slog.Logger // nil: slog.Default()
}

func (o *Options) validate() error {
	switch {
	case o.Ledger == "":
		return errors.New("transport: Options.Ledger is empty")
	case o.ID == 0:
		return errors.New("transport: Options.ID is 0")
	case o.Receive == nil:
		return errors.New("transport: Options.Receive is nil")
	case o.TLS != nil && (o.TLS.RootCAs == nil || o.TLS.ClientCAs == nil):
		return errors.New("transport: Options.TLS needs RootCAs and ClientCAs, or any certificate would do")
	}
	if err := o.Access.validate(); err != nil {
		return err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Unreachable == nil {
		o.Unreachable = func(uint64) {}
	}
	return nil
}

// Transport sends and receives this node's messages. Its methods may be called from any goroutine.
type Transport struct {
	o      Options
	client *http.Client
	// requests serves RoundTripper. It has separate connections, so that a response that its caller does not read
	// cannot block messages of the consensus.
	requests *http.Transport
	server   *http.Server
	told     told // about refused requests

	ctx   context.Context //nolint:containedctx // It lives from New to Close.
	stop  context.CancelFunc
	loops sync.WaitGroup

	mu    sync.Mutex
	peers map[uint64]*peer
}

// New returns a transport without peers. The caller must Close it.
func New(o Options) (*Transport, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	t := &Transport{o: o, peers: map[uint64]*peer{}}
	t.ctx, t.stop = context.WithCancel(context.Background())
	protocols := new(http.Protocols)
	protocols.SetHTTP2(o.TLS != nil)
	protocols.SetUnencryptedHTTP2(o.TLS == nil)
	served := new(http.Protocols)
	*served = *protocols
	served.SetHTTP1(true) // nodes do not use it; a client at the wrong address is told so
	http2 := &http.HTTP2Config{
		SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
		MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: connectionWindow,
	}
	ours, theirs := o.TLS.Clone(), o.TLS.Clone() // nil stays nil
	if o.TLS != nil {
		theirs.ClientAuth = tls.RequireAndVerifyClientCert
		ours.MinVersion, theirs.MinVersion = tls.VersionTLS13, tls.VersionTLS13
	}
	messages := &http.Transport{
		TLSClientConfig: ours, Protocols: protocols, HTTP2: http2, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
	}
	t.requests = messages.Clone()
	t.requests.IdleConnTimeout = time.Minute
	t.client = &http.Client{Transport: messages}
	t.server = listen.Server(t.handler(), maxHeaderBytes, o.Logger)
	t.server.TLSConfig, t.server.Protocols, t.server.HTTP2 = theirs, served, http2
	t.server.ReadHeaderTimeout = dialTimeout
	return t, nil
}

// Serve accepts streams of other nodes until Close, and closes the listener.
func (t *Transport) Serve(l net.Listener) error {
	if err := t.Allowed(l.Addr().String()); err != nil {
		return errors.Join(err, l.Close())
	}
	err := listen.ServeLetIn(t.server, l, listen.Connections().Peers)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Allowed returns an error if a node must not be reached at an address, because the traffic would cross a network
// unencrypted.
func (t *Transport) Allowed(address string) error {
	if t.o.TLS != nil || t.o.Insecure {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("transport: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%w: %s", ErrNotEncrypted, address)
	}
	return nil
}

// SetPeers sets the other members and their addresses, host and port. The streams of all other nodes end, and these
// nodes are refused afterwards. So are nodes whose address is not Allowed; SetPeers returns an error for them.
func (t *Transport) SetPeers(addresses map[uint64]string) error {
	var refused error
	usable := make(map[uint64]string, len(addresses))
	for id, address := range addresses {
		if id == t.o.ID || id == 0 {
			return fmt.Errorf("transport: node %d cannot be a peer of node %d", id, t.o.ID)
		}
		if err := t.Allowed(address); err != nil {
			refused = errors.Join(refused, fmt.Errorf("node %d: %w", id, err))
			continue
		}
		usable[id] = address
	}
	addresses = usable
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return nil
	}
	for id, p := range t.peers {
		if addresses[id] != p.address {
			p.stop()
			delete(t.peers, id)
		}
	}
	for id, address := range addresses {
		if t.peers[id] == nil {
			t.peers[id] = t.newPeer(id, address)
		}
	}
	return refused
}

// peer returns the peer with an id, or nil.
func (t *Transport) peer(id uint64) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[id]
}

// begin counts an accepted stream. It returns false if Close was called.
func (t *Transport) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return false
	}
	t.loops.Add(1)
	return true
}

// Send queues messages to the nodes that they name. It does not block, and drops messages that do not fit. The messages
// must not be changed afterwards.
func (t *Transport) Send(messages []*pb.Message) {
	for _, m := range messages {
		if p := t.peer(m.GetTo()); p != nil {
			p.enqueue(m)
		}
	}
}

// Connected returns which peers have a stream.
func (t *Transport) Connected() map[uint64]bool {
	t.mu.Lock()
	peers := maps.Clone(t.peers)
	t.mu.Unlock()
	connected := make(map[uint64]bool, len(peers))
	for id, p := range peers {
		connected[id] = p.connected()
	}
	return connected
}

// Close ends all streams and waits for its goroutines. Waiting messages are dropped.
func (t *Transport) Close() error {
	t.mu.Lock()
	// Under the lock, so that neither begin nor SetPeers adds a goroutine once Wait has begun.
	t.stop()
	t.peers = map[uint64]*peer{}
	t.mu.Unlock()
	err := t.server.Close()
	t.client.CloseIdleConnections()
	t.requests.CloseIdleConnections()
	t.loops.Wait()
	return err
}

// NewRoundTripper returns a RoundTripper for requests to nodes of a cluster from a node that has no transport yet,
// because it is not a member.
func NewRoundTripper(config *tls.Config) http.RoundTripper {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(config != nil)
	protocols.SetUnencryptedHTTP2(config == nil)
	return &http.Transport{
		TLSClientConfig: config.Clone(), Protocols: protocols, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout: time.Minute,
	}
}

// identity returns what this node sends to the others with each request.
func (t *Transport) identity() Identity {
	return Identity{Token: t.o.Access.Token(), Ledger: t.o.Ledger, From: t.o.ID}
}

// RoundTripper returns a RoundTripper that sends requests to other nodes as this one.
func (t *Transport) RoundTripper() http.RoundTripper { return As(t.requests, t.identity) }
