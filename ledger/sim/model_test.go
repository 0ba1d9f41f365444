package sim

import (
	"cmp"
	"math"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

// model decides what is right: the rules of the ledger in maps and slices. It
// shares nothing with the machine but the types of requests and outcomes, and
// the request hash.
type model struct {
	index   uint64
	time    int64
	since   uint64 // commands since the last eviction pass
	backlog bool   // that pass left something due
	config  machine.Config
	epochs  []modelEpoch
	streams map[name]*stream
	count   map[string]uint64 // streams of an organization
	oldest  int64             // no stream is indexed before this

	entities map[name]entity
	mortal   map[name]struct{} // entities with an end
	related  map[relation]bool

	txs     map[uint64]*transaction // by index
	heights map[machine.Scope]uint64
	inBlock map[machine.Scope]uint32 // transactions of this log entry
	fired   map[string]int
}

type modelEpoch struct {
	start uint64
	id    machine.LedgerID
}

// name is a client id or an entity's key in a scope.
type name struct {
	scope machine.Scope
	id    string
}

// encoded is what the order of a round goes by.
func (n name) encoded() string {
	return string([]byte{byte(len(n.scope.Organization))}) + n.scope.Organization +
		string([]byte{byte(len(n.scope.Vault))}) + n.scope.Vault + n.id
}

type relation struct {
	scope                       machine.Scope
	resource, relation, subject string
}

type stream struct {
	created, session, fenced, last uint64
	lastSeen, indexed              int64
	attempts                       [][16]byte
	window                         []*transaction // oldest first
}

type entity struct {
	value     string
	version   uint64
	expiresAt int64
	gone      bool // deleted by an earlier operation of the same write
}

type transaction struct {
	stream     name
	created    uint64
	receipt    machine.Receipt
	operations []machine.Operation
	command    *command
}

func newModel() *model {
	return &model{
		streams: map[name]*stream{}, count: map[string]uint64{}, oldest: math.MaxInt64,
		entities: map[name]entity{}, mortal: map[name]struct{}{}, related: map[relation]bool{},
		txs: map[uint64]*transaction{}, heights: map[machine.Scope]uint64{}, inBlock: map[machine.Scope]uint32{},
		fired: map[string]int{},
	}
}

func (m *model) epoch() modelEpoch { return m.epochs[len(m.epochs)-1] }

// begin starts a log entry: what follows shares its time and its blocks.
func (m *model) begin(now int64) {
	m.time = max(m.time, now)
	clear(m.inBlock)
}

func (m *model) apply(c *command) (out machine.Outcome) {
	m.index++
	switch {
	case c.write != nil:
		out = m.write(c)
	case c.open != nil:
		out = m.open(c.open)
	case c.update != nil:
		out = m.update(c.update)
	case c.tick:
		out.Code = machine.Committed
	case c.create != nil:
		m.config, m.epochs = *c.create, []modelEpoch{{1, ledgerID}}
		out = machine.Outcome{Code: machine.Committed, Config: m.config}
	default:
		// Far above the next multiple of 2^32, and elsewhere for each id.
		m.index = (m.index>>32+1)<<32 + 1<<40 + uint64(c.epoch)&(1<<40-1)
		m.epochs = append(m.epochs, modelEpoch{m.index, c.epoch})
		clear(m.inBlock) // the blocks before it are closed
		out.Code = machine.Committed
	}
	out.Index = m.index
	m.fired[out.Code.String()]++
	if m.since++; m.since >= m.config.EvictionInterval {
		m.since = 0
		m.pass()
	}
	return out
}

func (m *model) update(u *machine.ConfigUpdate) machine.Outcome {
	c := m.config
	c.EvictionInterval = *cmp.Or(u.EvictionInterval, &c.EvictionInterval)
	c.EvictionLimit = *cmp.Or(u.EvictionLimit, &c.EvictionLimit)
	c.ReceiptWindow = *cmp.Or(u.ReceiptWindow, &c.ReceiptWindow)
	c.MaxStreams = *cmp.Or(u.MaxStreams, &c.MaxStreams)
	c.ClientTTL = *cmp.Or(u.ClientTTL, &c.ClientTTL)
	if c.EvictionInterval < 1 || c.EvictionInterval > 1_000_000 || c.ClientTTL < second ||
		c.EvictionLimit < 1 || c.EvictionLimit > 100_000 || c.ReceiptWindow < 1 || c.ReceiptWindow > 1_024 || c.MaxStreams < 1 {
		return machine.Outcome{Code: machine.InvalidArgument, Config: m.config}
	}
	m.config = c
	return machine.Outcome{Code: machine.Committed, Config: c}
}

func (m *model) open(o *machine.OpenSession) machine.Outcome {
	n := name{o.Scope, o.ClientID}
	s, found := m.streams[n]
	if !found {
		s = &stream{}
	}
	out := machine.Outcome{CreatedIndex: s.created, Last: s.last, Session: s.session}
	over := s.session < m.epoch().start
	place := slices.Index(s.attempts, o.AttemptID)
	switch {
	case place == 0 && over:
		out.Code = machine.SessionExpired
	case place > 0:
		out.Code = machine.SessionFenced
	case place < 0 && o.ExpectedSession != 0 && (!found || o.ExpectedSession < m.epoch().start):
		out.Code = machine.SessionExpired
	case place < 0 && o.ExpectedSession != 0 && o.ExpectedSession != s.session:
		out.Code = machine.SessionFenced
	case !found && m.count[o.Scope.Organization] >= m.config.MaxStreams:
		out.Code = machine.TooManyStreams
	}
	if out.Code != 0 {
		return out
	}
	if !found {
		s = m.create(n)
	}
	if place < 0 {
		s.fenced, s.session = s.session, m.index
		s.attempts = append([][16]byte{o.AttemptID}, s.attempts...)
		s.attempts = s.attempts[:min(8, len(s.attempts))]
	}
	s.lastSeen = m.time
	return machine.Outcome{
		Code: machine.Committed, CreatedIndex: s.created, Last: out.Last, Session: s.session, PreviousSession: s.fenced,
		Config: m.config,
		Stream: machine.StreamState{CreatedIndex: s.created, Session: s.session, Last: s.last, LastSeen: s.lastSeen},
	}
}

func (m *model) create(n name) *stream {
	s := &stream{created: m.index, lastSeen: m.time, indexed: m.time}
	m.streams[n] = s
	m.count[n.scope.Organization]++
	m.oldest = min(m.oldest, m.time)
	return s
}

// before is rules 1–6: what decides without looking at entities. It changes
// nothing.
func (m *model) before(c *command) (s *stream, found bool, hash machine.RequestHash, out machine.Outcome) {
	w := c.write
	s, found = m.streams[name{w.Scope, w.ClientID}]
	if !found {
		s = &stream{}
	}
	hash, _ = machine.HashOperations(nil, w.Operations)
	out = machine.Outcome{CreatedIndex: s.created, Last: s.last, Session: s.session}
	switch {
	case w.Session != 0 && (!found || w.Session > s.session || w.Session < m.epoch().start):
		out.Code = machine.SessionExpired // 1
		return
	case w.Session != 0 && w.Session < s.session:
		out.Code = machine.SessionFenced // 2
		return
	case w.Session == 0 && s.session != 0:
		out.Code = machine.SessionRequired // 3
		return
	}
	visible := s.window[max(0, len(s.window)-int(m.config.ReceiptWindow)):]
	for _, x := range visible {
		r := &x.receipt
		sameKey := w.Key.Present && r.Key.Present && w.Key.UUID == r.Key.UUID
		noKey := !w.Key.Present || !r.Key.Present
		switch {
		case r.Sequence == w.Sequence && (sameKey || noKey) && r.RequestHash == hash: // 4
			out.Code, out.Receipt = machine.Replayed, *r
		case r.Sequence == w.Sequence && sameKey:
			out.Code = machine.IdempotencyKeyReused
		case r.Sequence == w.Sequence:
			out.Code = machine.SequenceReused
		case w.Sequence > s.last && sameKey && r.RequestHash == hash: // 6
			out.Code, out.Receipt = machine.Replayed, *r
		case w.Sequence > s.last && sameKey:
			out.Code = machine.IdempotencyKeyReused
		default:
			continue
		}
		out.Receipt.Replayed = out.Code == machine.Replayed
		out.CommittedSequence = r.Sequence
		return
	}
	if w.Sequence <= s.last { // 5
		out.Code, out.CommittedSequence = machine.AlreadyCommitted, w.Sequence
	}
	return
}

// write is the decision list, in its order.
func (m *model) write(c *command) machine.Outcome {
	s, found, hash, out := m.before(c)
	w := c.write
	switch {
	case out.Code != 0:
	case w.Sequence == math.MaxUint64: // 7
		out.Code = machine.SequenceExhausted
	case w.Sequence > s.last+1: // 8
		out.Code = machine.SequenceGap
	case !found && m.count[w.Scope.Organization] >= m.config.MaxStreams: // 9
		out.Code = machine.TooManyStreams
	}
	if out.Code != 0 {
		return out
	}
	changes := newChanges(m, w.Scope)
	for i := range w.Operations {
		if code := changes.operate(&w.Operations[i]); code != 0 { // 10
			out.Code, out.OperationIndex, out.EntityKey = code, i, w.Operations[i].Key
			out.CurrentVersion = changes.find(w.Operations[i].Key).version
			return out
		}
	}
	changes.keep() // 11
	n := name{w.Scope, w.ClientID}
	if !found {
		s = m.create(n)
	}
	x := m.transact(w.Scope, machine.Receipt{
		Sequence: w.Sequence, Session: w.Session, Actor: w.Actor, RequestHash: hash, Key: w.Key, Versions: changes.versions,
	}, w.Operations)
	x.stream, x.created, x.command = n, s.created, c
	s.last, s.lastSeen = w.Sequence, m.time
	s.window = append(s.window, x)
	if surplus := len(s.window) - int(m.config.ReceiptWindow); surplus > 0 {
		s.window = s.window[surplus:]
	}
	out.Code, out.CreatedIndex, out.Last, out.CommittedSequence = machine.Committed, s.created, s.last, w.Sequence
	out.Receipt = x.receipt
	return out
}

// transact records a transaction at the current index.
func (m *model) transact(scope machine.Scope, r machine.Receipt, ops []machine.Operation) *transaction {
	if m.inBlock[scope] == 0 {
		m.heights[scope]++
	}
	r.LedgerID, r.Index, r.CommittedAt = m.epoch().id, m.index, m.time
	r.BlockHeight, r.Position = m.heights[scope], m.inBlock[scope]
	m.inBlock[scope]++
	x := &transaction{stream: name{scope: scope}, receipt: r, operations: ops}
	m.txs[m.index] = x
	return x
}
