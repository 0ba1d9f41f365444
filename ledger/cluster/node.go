package cluster

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// Node is a node's part in its cluster: it tells who leads and who belongs to it, and changes that. A ledger on one
// node has one, too, which knows itself alone. Its methods may be called from many goroutines.
type Node struct {
	host      Host
	directory *datadir.Directory
	log       *raftlog.Log
	digests   digests
	loops     sync.WaitGroup

	term      atomic.Uint64 // the term in which this node leads and accepts writes; 0: it does not lead
	transport atomic.Pointer[transport.Transport]
	handler   atomic.Pointer[http.Handler] // see ServePeers
	changing  chan struct{}                // holds a value during a membership change; see lockChanges
	heard     contacts
	pulses    pulses
	serving   sync.WaitGroup
	joinToken joinToken
	complain  sync.Once
	announcer announcer
	opened    uint64 // index at which the log ended when it was opened

	uncompared []string // Options.Nodes, while none of them has told its ledger

	measure atomic.Pointer[func() (below, ample bool)] // see WatchRoom
	room    Room                                       // on this node's disk; used by compareLoop only
	yielded time.Time                                  // when tendLoop last tried to yield

	mu      sync.Mutex
	leader  Leader
	forgot  map[uint64]forgotten // by node; bounded by the members
	changed chan struct{}        // closed when leader changes
}

// Host is the ledger of a node, as far as the node needs it.
type Host struct {
	Options *Options // nil for a ledger on one node
	Logger  *slog.Logger
	Clock   func() time.Time // wall time
	// AcceptClock says that the operator vouches for Clock, however far it is ahead of the ledger.
	AcceptClock bool

	Stopping context.Context // ends when the ledger stops
	Failed   <-chan struct{} // closed when the ledger has failed
	Fail     func(error)     // stops the ledger for good

	// State returns what the ledger's state says of itself.
	State func() (State, error)
	// Tick commits a command that changes nothing but ledger time.
	Tick func(ctx context.Context) error
	// BeginTerm begins a term in which this node leads, in the ledger time that the node knows, and EndTerm is called
	// when it does not lead any more.
	BeginTerm, EndTerm func()
	// Now returns ledger time, Unix nanoseconds.
	Now func() int64
	// SetTime moves ledger time forward to a wall clock. It refuses one that is implausible unless that is accepted.
	SetTime func(wall time.Time, accept bool) error
}

// State is the head of a ledger's state.
type State struct {
	Created bool // the first command was applied, which gives the ledger its id
	Ledger  machine.LedgerID
	Config  machine.Config
}

// Driver is a Node with what its ledger alone may do: a caller that has the Node cannot stop it.
type Driver struct{ Node }

// New returns the node of a ledger that is about to be opened. It needs [Driver.Attach] before anything else but
// Leader, Send and the digests.
func New(h Host) *Driver {
	d := &Driver{Node{host: h, changed: make(chan struct{}), changing: make(chan struct{}, 1)}}
	d.digests.wake = make(chan struct{}, 1)
	return d
}

// Attach gives the node its directory and the log, which has been opened.
func (d *Driver) Attach(directory *datadir.Directory, log *raftlog.Log) {
	d.directory, d.log, d.opened = directory, log, log.Last()
}

// Start connects this node to the others, and lets it lead when it is elected. It does nothing in a ledger on one
// node. Wait must be called once Host.Stopping has ended, and Close in any case.
func (d *Driver) Start() error {
	if d.host.Options == nil {
		return nil
	}
	// First, because the transport shows the token with every request.
	if err := d.openToken(); err != nil {
		return err
	}
	if err := d.openTransport(); err != nil {
		return err
	}
	d.loops.Add(5)
	// Ends with stopping or a failure; joined by Wait.
	go d.leadLoop()
	// The same.
	go d.compareLoop()
	// The same.
	go d.tendLoop()
	// The same, or once a node has answered.
	go d.compareRest()
	// The same.
	go d.pulseLoop()
	return nil
}

// Wait returns once everything that Start began has ended, except the transport.
func (d *Driver) Wait() { d.loops.Wait() }

// Term returns the term in which this node leads and accepts writes, or 0 if it does not lead.
func (d *Driver) Term() uint64 { return d.term.Load() }

// Lead begins a term in which this node leads alone and has applied everything of the terms before. It fails if the
// clock is implausible.
func (d *Driver) Lead(term uint64) error {
	if err := d.host.SetTime(d.host.Clock(), d.host.AcceptClock); err != nil {
		return err
	}
	d.beginTerm(term)
	d.noteLeader()
	return nil
}

// beginTerm lets the ledger propose.
func (n *Node) beginTerm(term uint64) {
	n.host.BeginTerm()
	n.term.Store(term)
}

// NotLeading returns the error with which a node that does not lead refuses a request.
func (d *Driver) NotLeading() error { return d.notLeading() }

// id returns the id of this node.
func (n *Node) id() uint64 { return n.directory.Node() }
