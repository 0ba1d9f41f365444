package sim

import (
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// simple is a client without a session. It sends one write at a time, with a key, until it is answered. It uses no
// conditions, because no refusal of theirs would be final. After any result but success, or after its number of writes,
// it continues under another client id. With one write each, it is a million one-shot clients.
type simple struct {
	w      *world
	number int
	name   name
	lives  int
	left   int
	seq    uint64
	app    *appWrite
	write  *machine.Write
	tries  int
}

func (s *simple) start() { s.w.after(s.w.upTo(second), s.begin) }

func (s *simple) unsettled() string {
	if s.app == nil {
		return ""
	}
	return fmt.Sprintf("client %s waits for sequence %d", s.name.ID, s.seq)
}

func (s *simple) begin() {
	s.lives++
	s.name = name{Scope: scopes[s.number%len(scopes)], ID: fmt.Sprintf("simple-%d-%d", s.number, s.lives)}
	s.seq, s.left = 0, 1
	if s.w.chance(3) {
		s.left = 1 + s.w.rng.IntN(30)
	}
	s.next()
}

func (s *simple) next() {
	s.app = nil
	if s.w.calm {
		return
	}
	if s.left == 0 {
		s.w.after(s.w.upTo(50*millisecond), s.begin)
		return
	}
	s.left--
	s.seq++
	s.tries = 0
	s.app = s.w.newApp(s.name, false)
	s.write = &machine.Write{
		Scope: s.name.Scope, ClientID: s.name.ID, Actor: "client:simple", Sequence: s.seq,
		Key: machine.Key{UUID: s.w.uuid(), Present: true}, Operations: s.w.operations(s.app, false),
	}
	s.send()
}

func (s *simple) send() {
	app := s.app
	c := s.w.writeCommand(s.write, app)
	s.tries++
	s.w.datagrams([]*command{c}, func(_ int, a answer) {
		if a.kind != decided {
			return
		}
		committed := a.out.Code == machine.Committed || a.out.Code == machine.Replayed
		if committed {
			s.w.oracle.received(c, &a.out)
		}
		switch {
		case s.app != app:
		case committed, a.out.Code == machine.AlreadyCommitted:
			app.done(s.w, &a.out)
			s.next()
		default:
			s.giveUp()
		}
	})
	s.w.after(s.w.plan.latency*3+50*millisecond, func() {
		if s.app == app {
			s.send()
		}
	})
}

// giveUp abandons a client id, because its numbers cannot be trusted any more.
func (s *simple) giveUp() {
	s.app.unsettled(s.w)
	s.left = 0
	s.next()
}

// buggy sends arbitrary requests: the same sequence or key with other payloads, gaps, sessions of other clients and old
// sessions. The model says what is right, and the invariants hold.
type buggy struct {
	w       *world
	clients []string
}

func (b *buggy) start()            { b.w.after(b.w.upTo(second), b.act) }
func (b *buggy) unsettled() string { return "" }

func (b *buggy) act() {
	w := b.w
	if w.calm {
		return
	}
	n := name{Scope: pick(w, scopes...), ID: pick(w, b.clients...)}
	c := b.command(n)
	w.datagrams([]*command{c}, func(_ int, a answer) {
		if a.kind == decided && (a.out.Code == machine.Committed || a.out.Code == machine.Replayed) && c.write != nil {
			w.oracle.received(c, &a.out)
		}
	})
	w.after(w.upTo(20*millisecond), b.act)
}

func (b *buggy) command(n name) *command {
	w := b.w
	s := w.oracle.model.Stream(n.Scope, n.ID)
	if w.chance(8) {
		o := &machine.OpenSession{Scope: n.Scope, ClientID: n.ID, Actor: "client:buggy",
			AttemptID: [16]byte{byte(w.rng.IntN(12))}}
		if w.chance(2) {
			o.ExpectedSession = pick(w, s.Session, s.Fenced, 1)
		}
		return &command{open: o, encoded: machine.AppendOpenSession(nil, o)}
	}
	write := &machine.Write{
		Scope: n.Scope, ClientID: n.ID, Actor: "client:buggy",
		Session:  pick(w, s.Session, s.Session, s.Session, s.Fenced, 0, s.Session+1),
		Sequence: max(1, pick(w, s.Last+1, s.Last+1, s.Last, s.Last-min(s.Last, 3), s.Last+2)),
		Operations: []machine.Operation{
			{Kind: machine.OpAppend, Value: fmt.Appendf(nil, "%d", w.rng.IntN(3))},
		},
	}
	if w.chance(2) {
		write.Key = machine.Key{UUID: [16]byte{byte(w.rng.IntN(8))}, Present: true}
	}
	if w.chance(200) {
		write.Sequence = 1<<64 - 1
	}
	return w.writeCommand(write, nil)
}

// stale sends what a forgotten process might send, under sessions that have ended.
type stale struct{ w *world }

func (b *stale) start()            { b.w.after(b.w.upTo(second), b.act) }
func (b *stale) unsettled() string { return "" }

func (b *stale) act() {
	w := b.w
	if w.calm {
		return
	}
	if r, ok := pick(w, w.actors...).(*writer); ok {
		if s := w.oracle.model.Streams[r.name]; s != nil && s.Fenced != 0 {
			w.datagrams([]*command{w.writeCommand(&machine.Write{
				Scope: r.name.Scope, ClientID: r.name.ID, Actor: "client:stale",
				Session: pick(w, s.Fenced, s.Fenced, 0), Sequence: s.Last + 1,
				Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("stale")}},
			}, nil)}, func(int, answer) {})
		}
	}
	w.after(w.upTo(300*millisecond), b.act)
}

// operator changes the configuration, moves the wall clock, and sometimes restores the ledger.
type operator struct {
	w        *world
	restores int
}

func (o *operator) start()            { o.w.after(o.w.upTo(5*second), o.act) }
func (o *operator) unsettled() string { return "" }

func (o *operator) act() {
	w := o.w
	if w.calm {
		return
	}
	if w.plan.wallJump > 0 {
		w.wallOff += w.upTo(2*w.plan.wallJump) - w.plan.wallJump
	}
	c := &command{}
	switch w.rng.IntN(12) {
	case 0:
		c.update = &machine.ConfigUpdate{ReceiptWindow: new(pick[uint64](w, 0, 1, 4, 64))}
	case 1:
		c.update = &machine.ConfigUpdate{ClientTTL: new(pick[int64](w, 0, 2, 5, 3600) * second)}
	case 2:
		c.update = &machine.ConfigUpdate{EvictionInterval: new(pick[uint64](w, 3, 10, 1000)),
			EvictionLimit: new(pick[uint64](w, 1, 5, 2000))}
	case 3:
		c.update = &machine.ConfigUpdate{MaxStreams: new(pick[uint64](w, 30, 200, 10_000_000))}
	case 4:
		if w.plan.epochs && o.restores < 3 {
			o.restores++
			c.epoch = ledgerID + machine.LedgerID(o.restores)
			c.encoded = machine.AppendEpoch(nil, c.epoch, 0)
		}
	case 7:
		c.update = &machine.ConfigUpdate{RetainBlocks: new(pick[int64](w, 0, 1, 5, 60) * second)}
	case 5, 6:
		c.tick, c.encoded = true, machine.AppendTick(nil)
	}
	if c.update != nil {
		c.encoded = machine.AppendUpdateConfig(nil, c.update, "user:sim")
	}
	if c.encoded != nil {
		w.datagrams([]*command{c}, func(int, answer) {})
	}
	w.after(w.upTo(2*second), o.act)
}

// historian reads committed transactions, most often near the horizon.
type historian struct{ w *world }

func (h *historian) start()            { h.w.after(h.w.upTo(second), h.act) }
func (h *historian) unsettled() string { return "" }

func (h *historian) act() {
	w := h.w
	if w.calm {
		return
	}
	if n := w.node; n != nil && n.ready {
		m := w.oracle.model
		at := m.Horizon
		if w.chance(3) {
			at = w.rng.Uint64N(m.Index + 1)
		}
		err := n.state.view(func(r machine.Reader) error {
			w.auditAround(n.m.View(n.reader(r)), at, m.Index)
			return nil
		})
		w.must(err, "reading the history")
	}
	w.after(w.upTo(200*millisecond), h.act)
}

// streamRead is the result of a read.
type streamRead struct {
	stream  machine.StreamState
	version uint64 // of the stream's own entity; 0: absent
}

// readStream reads as the engine does: from a state that includes every acknowledged write.
func (n *node) readStream(at name, answered func(got streamRead)) {
	if !n.ready {
		return
	}
	var got streamRead
	err := n.state.view(func(r machine.Reader) (err error) {
		got, err = readStream(n.m.View(n.reader(r)), at)
		return err
	})
	n.w.must(err, "reading a stream")
	if s := n.w.oracle.model.Streams[at]; s != nil && got.stream != s.StreamState {
		n.w.fail(&at, "the state has the stream at %+v, the model at %+v", got.stream, *s)
	}
	answered(got)
}

func readStream(v machine.View, at name) (got streamRead, err error) {
	if got.stream, _, err = v.Stream(at.Scope, at.ID); err != nil {
		return got, err
	}
	e, err := v.Entity(at.Scope, string(ownKey(at)))
	got.version = e.Version
	if errors.Is(err, machine.ErrNotFound) {
		err = nil
	}
	return got, err
}
