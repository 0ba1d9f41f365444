package sim

import (
	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/ledger/machine"
)

// name is a client id or an entity's key in a scope.
type name = ledgermodel.Name

// command is a command for the log. It never changes once it is sent, so that copies may share it.
type command struct {
	write  *machine.Write
	open   *machine.OpenSession
	update *machine.ConfigUpdate
	epoch  machine.LedgerID
	create *machine.Config
	keyed  *machine.KeyedCommand
	job    *machine.KeyedWrite // a keyed write
	tick   bool

	encoded []byte
	retry   machine.Command // of a write: used to look for a retry
	app     *appWrite       // what a well-behaved client means by the command, or nil
}

func (w *world) writeCommand(write *machine.Write, app *appWrite) *command {
	encoded, _, err := write.Encode(nil)
	w.must(err, "a client's mistake that no server would let pass")
	return &command{write: write, encoded: encoded.Encoded(), retry: encoded, app: app}
}

// forModel returns the command in the model's form.
func (c *command) forModel() any {
	switch {
	case c.write != nil:
		return c.write
	case c.open != nil:
		return c.open
	case c.update != nil:
		return c.update
	case c.keyed != nil:
		return c.keyed
	case c.job != nil:
		return c.job
	case c.tick:
		return ledgermodel.Tick{}
	case c.create != nil:
		return ledgermodel.Create{ID: ledgerID, Config: *c.create}
	}
	return ledgermodel.Epoch{ID: c.epoch}
}

// name returns the stream that a command is about, or nil.
func (c *command) name() *name {
	switch {
	case c.write != nil:
		return &name{Scope: c.write.Scope, ID: c.write.ClientID}
	case c.open != nil:
		return &name{Scope: c.open.Scope, ID: c.open.ClientID}
	}
	return nil
}

type answerKind uint8

const (
	decided      answerKind = iota
	unknown                 // it may have committed
	neverQueued             // it was not proposed
	notConnected            // not proposed, and the connection is gone
)

// answer is the response to one command.
type answer struct {
	kind answerKind
	out  machine.Outcome // if decided
}

// server is what clients connect to: the only node, or a node of a cluster.
type server interface {
	receive(r request)
	// readStream answers as soon as the server may read, or never.
	readStream(at name, answered func(got streamRead))
}

// endpoint returns the server that a client connects to next. In a cluster it may be any node.
func (w *world) endpoint() server {
	if w.cluster != nil {
		return w.cluster.nodes[w.rng.IntN(len(w.cluster.nodes))]
	}
	return w.node
}

// request is a group of commands sent to a server.
type request struct {
	commands []*command
	reply    func(i int, a answer)
}

// datagrams sends commands over a network that loses, duplicates, delays and reorders messages.
func (w *world) datagrams(commands []*command, answered func(i int, a answer)) {
	reply := func(i int, a answer) {
		w.transmit(func() { answered(i, a) })
	}
	to, arrived := w.endpoint(), false
	w.transmit(func() {
		if !arrived || commands[0].epoch == 0 { // an epoch begins once: restore commits it on its own node
			to.receive(request{commands, reply})
		}
		arrived = true
	})
}

// transmit delivers a message zero or more times.
func (w *world) transmit(deliver func()) {
	copies := 1
	if !w.calm && w.chance(w.plan.drop) {
		copies = 0
	}
	if !w.calm && w.chance(w.plan.dup) {
		copies++
	}
	for range copies {
		delay := w.upTo(w.plan.latency)
		if !w.calm && w.chance(100) { // delayed for a long time in some queue
			delay = w.upTo(20 * second)
		}
		w.after(delay, deliver)
	}
}

// conn is a connection. It delivers messages once and in order. When it breaks, the responses are lost, and requests in
// flight may still arrive, much later.
type conn struct {
	w        *world
	to       server
	broken   bool
	up, down int64 // when the last message arrives in each direction
	onBreak  func()
}

func (w *world) connect(onBreak func()) *conn { return &conn{w: w, to: w.endpoint(), onBreak: onBreak} }

func (c *conn) send(commands []*command, answered func(i int, a answer)) {
	w := c.w
	if !w.calm && w.chance(w.plan.connBreak) {
		w.after(w.upTo(w.plan.latency), c.break_)
	}
	reply := func(i int, a answer) {
		c.down = max(c.down, w.now+w.upTo(w.plan.latency))
		w.after(c.down-w.now, func() {
			switch {
			case c.broken:
			case a.kind == notConnected:
				c.break_()
			default:
				answered(i, a)
			}
		})
	}
	c.up = max(c.up, w.now+w.upTo(w.plan.latency))
	w.after(c.up-w.now, func() {
		if !c.broken {
			c.to.receive(request{commands, reply})
			return
		}
		if w.chance(2) { // it was in a buffer somewhere
			w.after(w.upTo(3*second), func() { c.to.receive(request{commands, reply}) })
		}
	})
}

func (c *conn) break_() {
	if !c.broken {
		c.broken = true
		c.w.counted["connections broken"]++
		c.onBreak()
	}
}
