package ledgermodel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/seqledger/seqledger/ledger/machine"
)

const second = int64(1_000_000_000)

// Model decides commands in the order of a log. It shares with the machine only
// the types of requests and outcomes, the hash of a request, and the way in which
// ids are numbered. Its fields are to be read.
type Model struct {
	Index    uint64
	Time     int64 // Unix nanoseconds of ledger time
	Config   machine.Config
	Streams  map[Name]*Stream
	Entities map[Name]Entity // those included that have expired and not been removed
	Related  map[Relation]bool
	Keys     map[machine.KeyedID]*Key // those included that say nothing any more and have not been removed
	// Transactions has everything that was ever committed, by ledger index.
	Transactions map[uint64]*Transaction
	// Fired counts how often each rule has decided something.
	Fired map[string]int

	// Horizon is the first ledger index that is kept; 0: all are. Bytes counts the operations of all
	// transactions.
	Horizon, Bytes uint64
	// Backlog tells that the last pass left something due.
	Backlog bool

	marks     []mark // from the horizon on
	marked    mark   // the last one
	sincePass uint64 // commands since the last eviction pass
	added     int    // entries that the expiry index got since
	addedWork int    // what a pass has with them
	epochs    []epoch
	heights   map[machine.Scope]uint64 // blocks so far, the one of this entry included
	inBlock   map[machine.Scope]uint32 // transactions of this entry

	// After an outage a lease that was set before floorSet lasts until leaseFloor.
	leaseFloor, floorSet int64

	// What follows only spares a pass from looking at every stream and entity.
	streamsOf      map[string]uint64 // streams of an organization
	mortal         map[Name]struct{} // entities with an end
	oldest, newest int64             // no stream is indexed before or after these
}

// Name is a client id or the key of an entity in a scope.
type Name struct {
	Scope machine.Scope
	ID    string
}

// encoded is what the order of a pass goes by.
func (n Name) encoded() string {
	return string([]byte{byte(len(n.Scope.Organization))}) + n.Scope.Organization +
		string([]byte{byte(len(n.Scope.Vault))}) + n.Scope.Vault + n.ID
}

// Relation is a relationship in a scope.
type Relation struct {
	Scope                       machine.Scope
	Resource, Relation, Subject string
}

// Stream is one life of a client id.
type Stream struct {
	machine.StreamState
	Fenced   uint64         // the session before the current one
	Attempts [][16]byte     // newest first
	Window   []*Transaction // oldest first
	indexed  int64          // the time under which the expiry index has it
}

// Entity is an entity's record.
type Entity struct {
	Value     string
	Version   uint64
	ExpiresAt int64
	gone      bool // deleted by an earlier operation of the same write
}

// Transaction is a committed write, or what a pass has removed.
type Transaction struct {
	Stream     Name // without an id for a pass
	Created    uint64
	Receipt    machine.Receipt
	Operations []machine.Operation
	Write      *machine.Write      // nil for a pass and a keyed write
	Keyed      *machine.KeyedWrite // nil for anything else
}

type epoch struct {
	start      uint64
	id         machine.LedgerID
	timeBefore int64 // 0: the epoch did not set the time back
}

// Create, Epoch and Tick are the commands that have no type in package machine.
type (
	// Create makes the ledger.
	Create struct {
		ID     machine.LedgerID
		Config machine.Config
	}
	// Epoch begins an epoch.
	Epoch struct {
		ID   machine.LedgerID
		Time int64 // 0: ledger time continues
	}
	// Tick moves ledger time.
	Tick struct{}
)

// NewModel returns a ledger that has not been created.
func NewModel() *Model {
	return &Model{
		Streams: map[Name]*Stream{}, Entities: map[Name]Entity{}, Related: map[Relation]bool{},
		Keys: map[machine.KeyedID]*Key{}, Transactions: map[uint64]*Transaction{}, Fired: map[string]int{},
		heights: map[machine.Scope]uint64{}, inBlock: map[machine.Scope]uint32{},
		streamsOf: map[string]uint64{}, mortal: map[Name]struct{}{}, oldest: math.MaxInt64, newest: math.MinInt64,
	}
}

func (m *Model) epoch() epoch { return m.epochs[len(m.epochs)-1] }

// Epochs returns how many epochs there have been.
func (m *Model) Epochs() int { return len(m.epochs) }

// Begin begins a log entry: the commands that follow share its time and its blocks.
func (m *Model) Begin(now int64) {
	m.advance(now)
	clear(m.inBlock)
}

func (m *Model) advance(now int64) {
	if m.Time > 0 && now-m.Time > outage {
		m.leaseFloor, m.floorSet = now+outageGrace, now
		m.Fired["outage"]++
	}
	m.Time = max(m.Time, now)
}

// Apply decides one command: a *machine.Write, *machine.OpenSession,
// *machine.ConfigUpdate, *machine.KeyedCommand, *machine.KeyedWrite, Create, Epoch or Tick.
func (m *Model) Apply(command any) (out machine.Outcome) {
	m.Index++
	kind := ""
	switch c := command.(type) {
	case *machine.Write:
		kind, out = "write: ", m.write(c)
	case *machine.OpenSession:
		kind, out = "open session: ", m.openSession(c)
	case *machine.ConfigUpdate:
		kind, out = "update config: ", m.update(c)
	case *machine.KeyedCommand:
		kind, out = "keyed: ", m.keyed(c)
	case *machine.KeyedWrite:
		kind, out = "keyed write: ", m.keyedWrite(c)
	case Create:
		m.Config, m.epochs, m.marked.time = c.Config, []epoch{{start: m.Index, id: c.ID}}, m.Time
		kind, out = "create: ", machine.Outcome{Code: machine.Committed, Config: c.Config}
	case Epoch:
		m.begin(c)
		kind, out.Code = "epoch: ", machine.Committed
	case Tick:
		kind, out.Code = "tick: ", machine.Committed
	default:
		panic(fmt.Sprintf("the model knows no %T", command))
	}
	out.Index = m.Index
	m.Fired[kind+out.Code.String()]++
	if m.passDue() {
		m.pass()
		m.sincePass, m.added, m.addedWork = 0, 0, 0
		m.retain()
	}
	return out
}

// passDue counts a command.
func (m *Model) passDue() bool {
	m.sincePass++
	overdue := m.Backlog && m.addedWork >= 5_000
	if overdue {
		m.Fired["pass for what was added"]++
	}
	return overdue || m.sincePass >= m.Config.EvictionInterval
}

// grow counts an entry that a command adds to the expiry index, with what a pass has with it.
func (m *Model) grow(work int) {
	m.added++
	m.addedWork += work
}

// begin begins an epoch, far above the next multiple of 2^32, and elsewhere for
// each id.
func (m *Model) begin(c Epoch) {
	m.Index = (m.Index>>32+1)<<32 + 1<<40 + uint64(c.ID)&(1<<40-1)
	next := epoch{start: m.Index, id: c.ID}
	if c.Time != 0 {
		if c.Time < m.Time {
			next.timeBefore = m.Time
			m.setMarksBack(c.Time)
			m.Fired["time set back"]++
			// Owners have some seconds, whatever the clock was that set their leases.
			m.leaseFloor, m.floorSet = c.Time+outageGrace, m.Time+1
		}
		m.Time = c.Time
	}
	m.epochs = append(m.epochs, next)
	clear(m.inBlock) // the blocks before it are closed
}

func (m *Model) update(u *machine.ConfigUpdate) machine.Outcome {
	c := m.Config
	c.EvictionInterval = *cmp.Or(u.EvictionInterval, &c.EvictionInterval)
	c.EvictionLimit = *cmp.Or(u.EvictionLimit, &c.EvictionLimit)
	c.ReceiptWindow = *cmp.Or(u.ReceiptWindow, &c.ReceiptWindow)
	c.MaxStreams = *cmp.Or(u.MaxStreams, &c.MaxStreams)
	c.ClientTTL = *cmp.Or(u.ClientTTL, &c.ClientTTL)
	c.RetainBlocks = *cmp.Or(u.RetainBlocks, &c.RetainBlocks)
	c.RetainBytes = *cmp.Or(u.RetainBytes, &c.RetainBytes)
	field := ""
	switch {
	case c.EvictionInterval < 1 || c.EvictionInterval > 1_000_000:
		field = "eviction_interval"
	case c.ClientTTL < second:
		field = "client_ttl"
	case c.EvictionLimit < 1 || c.EvictionLimit > 100_000:
		field = "eviction_limit"
	case c.ReceiptWindow < 1 || c.ReceiptWindow > 1_024:
		field = "receipt_window"
	case c.MaxStreams < 1:
		field = "max_streams"
	case c.RetainBlocks != 0 && c.RetainBlocks < second:
		field = "retain_blocks"
	case c.RetainBytes != 0 && c.RetainBytes < 1<<20:
		field = "retain_bytes"
	}
	if field != "" {
		return machine.Outcome{
			Code: machine.InvalidArgument, Config: m.Config, Field: &machine.FieldError{Field: field},
		}
	}
	m.Config = c
	return machine.Outcome{Code: machine.Committed, Config: c}
}

// Stream returns a copy of a stream, an empty one when there is none.
func (m *Model) Stream(scope machine.Scope, client string) Stream {
	if s := m.Streams[Name{scope, client}]; s != nil {
		return *s
	}
	return Stream{}
}

// create makes a stream.
func (m *Model) create(n Name) *Stream {
	s := &Stream{StreamState: machine.StreamState{CreatedIndex: m.Index, LastSeen: m.Time}, indexed: m.Time}
	m.Streams[n] = s
	m.streamsOf[n.Scope.Organization]++
	m.grow(1)
	m.oldest, m.newest = min(m.oldest, m.Time), max(m.newest, m.Time)
	return s
}

func (m *Model) tooManyStreams(organization string) bool {
	return m.streamsOf[organization] >= m.Config.MaxStreams
}

func (m *Model) openSession(o *machine.OpenSession) machine.Outcome {
	n := Name{o.Scope, o.ClientID}
	s, found := m.Streams[n]
	if !found {
		s = &Stream{}
	}
	out := machine.Outcome{CreatedIndex: s.CreatedIndex, Last: s.Last, Session: s.Session}
	old := s.Session < m.epoch().start // every session from before the epoch has expired
	attempt := slices.Index(s.Attempts, o.AttemptID)
	switch {
	case attempt == 0 && old:
		out.Code = machine.SessionExpired
	case attempt > 0:
		out.Code = machine.SessionFenced
	case attempt < 0 && o.ExpectedSession != 0 && (!found || o.ExpectedSession < m.epoch().start):
		out.Code = machine.SessionExpired
	case attempt < 0 && o.ExpectedSession != 0 && o.ExpectedSession != s.Session:
		out.Code = machine.SessionFenced
	case !found && m.tooManyStreams(o.Scope.Organization):
		out.Code = machine.TooManyStreams
	}
	if out.Code != 0 {
		return out
	}
	if !found {
		s = m.create(n)
	}
	if attempt < 0 {
		s.Fenced, s.Session = s.Session, m.Index
		s.Attempts = append([][16]byte{o.AttemptID}, s.Attempts...)
		s.Attempts = s.Attempts[:min(8, len(s.Attempts))]
	}
	s.LastSeen = m.Time
	out.Code, out.CreatedIndex, out.Session, out.Config = machine.Committed, s.CreatedIndex, s.Session, m.Config
	out.PreviousSession = s.Fenced // also for a repeat: the same answer again
	out.Stream = s.StreamState
	return out
}

// Window returns the receipts of a stream that retries may still ask for, oldest
// first.
func (m *Model) Window(s *Stream) []*Transaction {
	window := s.Window[max(0, len(s.Window)-int(m.Config.ReceiptWindow)):]
	gone := 0
	for gone < len(window) && window[gone].Receipt.Index < m.Horizon {
		gone++
	}
	return window[gone:]
}

// Retry returns what rules 1 to 6 say of a write, without deciding it; the Code is
// 0 when they say nothing.
func (m *Model) Retry(w *machine.Write) machine.Outcome {
	s := m.Stream(w.Scope, w.ClientID)
	out, _ := m.retry(&s, w)
	return out
}

// retry is rules 1 to 6: what decides without looking at entities.
func (m *Model) retry(s *Stream, w *machine.Write) (out machine.Outcome, rule int) {
	out = machine.Outcome{CreatedIndex: s.CreatedIndex, Last: s.Last, Session: s.Session}
	switch {
	case w.Session != 0 && (s.CreatedIndex == 0 || w.Session > s.Session || w.Session < m.epoch().start):
		out.Code = machine.SessionExpired
		return out, 1
	case w.Session != 0 && w.Session < s.Session:
		out.Code = machine.SessionFenced
		return out, 2
	case w.Session == 0 && s.Session != 0:
		out.Code = machine.SessionRequired
		return out, 3
	}
	hash, _ := machine.HashOperations(nil, w.Operations)
	for _, x := range m.Window(s) {
		r := &x.Receipt
		sameKey := w.Key.Present && r.Key.Present && w.Key.UUID == r.Key.UUID
		noKey := !w.Key.Present || !r.Key.Present
		rule = 4
		switch {
		case r.Sequence == w.Sequence && (sameKey || noKey) && r.RequestHash == hash:
			out.Code = machine.Replayed
		case r.Sequence == w.Sequence && sameKey:
			out.Code = machine.IdempotencyKeyReused
		case r.Sequence == w.Sequence:
			out.Code = machine.SequenceReused
		case w.Sequence > s.Last && sameKey && r.RequestHash == hash:
			out.Code, rule = machine.Replayed, 6
		case w.Sequence > s.Last && sameKey:
			out.Code, rule = machine.IdempotencyKeyReused, 6
		default:
			continue
		}
		if out.CommittedSequence = r.Sequence; out.Code == machine.Replayed {
			out.Receipt = *r
			out.Receipt.Replayed = true
		}
		return out, rule
	}
	if w.Sequence <= s.Last {
		out.Code, out.CommittedSequence = machine.AlreadyCommitted, w.Sequence
		return out, 5
	}
	return out, 0
}

// write is the decision list, in its order.
func (m *Model) write(w *machine.Write) machine.Outcome {
	n := Name{w.Scope, w.ClientID}
	s, found := m.Streams[n]
	if !found {
		s = &Stream{}
	}
	out, rule := m.retry(s, w)
	switch {
	case out.Code != 0:
		if rule == 4 || rule == 6 {
			m.Fired[fmt.Sprintf("rule %d: %s", rule, out.Code)]++
		}
	case w.Sequence == math.MaxUint64: // 7
		out.Code = machine.SequenceExhausted
	case w.Sequence > s.Last+1: // 8
		out.Code = machine.SequenceGap
	case !found && m.tooManyStreams(w.Scope.Organization): // 9
		out.Code = machine.TooManyStreams
	}
	if out.Code != 0 {
		return out
	}
	c := m.tryOperations(w.Scope, w.Operations, &out) // 10
	if out.Code != 0 {
		return out
	}
	c.keep() // 11
	if !found {
		s = m.create(n)
	}
	hash, _ := machine.HashOperations(nil, w.Operations)
	x := m.transact(w.Scope, machine.Receipt{
		Sequence: w.Sequence, Session: w.Session, Actor: w.Actor, RequestHash: hash, Key: w.Key, Versions: c.versions,
	}, w.Operations)
	x.Stream, x.Created, x.Write = n, s.CreatedIndex, w
	s.Last, s.LastSeen = w.Sequence, m.Time
	s.Window = append(s.Window, x)
	s.Window = s.Window[max(0, len(s.Window)-int(m.Config.ReceiptWindow)):]
	out.Code, out.CreatedIndex, out.Last, out.CommittedSequence = machine.Committed, s.CreatedIndex, s.Last, w.Sequence
	out.Receipt = x.Receipt
	return out
}

// transact records a transaction at the current index and finds its place in a
// block.
func (m *Model) transact(scope machine.Scope, r machine.Receipt, ops []machine.Operation) *Transaction {
	if m.inBlock[scope] == 0 {
		m.heights[scope]++
	}
	r.LedgerID, r.Index, r.CommittedAt = m.epoch().id, m.Index, m.Time
	r.BlockHeight, r.Position = m.heights[scope], m.inBlock[scope]
	m.inBlock[scope]++
	_, encoded := machine.HashOperations(nil, ops)
	m.Bytes += uint64(len(encoded) - len(binary.AppendUvarint(nil, uint64(len(ops)))))
	x := &Transaction{Stream: Name{Scope: scope}, Receipt: r, Operations: ops}
	m.Transactions[m.Index] = x
	return x
}
