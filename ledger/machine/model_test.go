package machine

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// model is the ledger said again, in maps and slices and as plainly as can be.
// It shares no decision with the machine: only the types of requests and
// outcomes, the request hash and the way that ids are numbered.
type model struct {
	index    uint64
	time     int64
	config   Config
	count    uint64 // commands since the last eviction pass
	backlog  bool   // that pass left something due
	epochs   []modelEpoch
	streams  map[modelName]*modelStream
	entities map[modelName]modelEntity
	related  map[modelRelation]bool
	history  []*modelTx

	heights map[Scope]uint64 // blocks so far, the one of this entry included
	inBlock map[Scope]uint32 // transactions of this entry

	fired map[string]int // how often each rule has decided something
}

type modelEpoch struct {
	start      uint64
	id         LedgerID
	timeBefore int64 // 0: the epoch did not set the time back
}

// modelNewEpoch asks for an epoch.
type modelNewEpoch struct {
	id   LedgerID
	time int64 // 0: ledger time goes on
}

// modelTick asks for a tick.
type modelTick struct{}

// modelName is a client id or an entity key in a scope.
type modelName struct {
	scope Scope
	name  string
}

// encoded is what the order of a round goes by.
func (n modelName) encoded() string {
	return string(rune(len(n.scope.Organization))) + n.scope.Organization +
		string(rune(len(n.scope.Vault))) + n.scope.Vault + n.name
}

type modelRelation struct {
	scope                       Scope
	resource, relation, subject string
}

type modelStream struct {
	fenced                 uint64 // the session before the current one
	created, session, last uint64
	lastSeen               int64
	indexed                int64 // under which the expiry index has it
	attempts               [][16]byte
	window                 []*modelTx // newest first
}

type modelEntity struct {
	value     string
	version   uint64
	expiresAt int64
}

type modelTx struct {
	scope      Scope
	client     string
	created    uint64
	receipt    Receipt
	operations []Operation
}

func newModel(id LedgerID, config Config) *model {
	return &model{
		index: 1, config: config, epochs: []modelEpoch{{start: 1, id: id}}, count: 1 % config.EvictionInterval, streams: map[modelName]*modelStream{},
		entities: map[modelName]modelEntity{}, related: map[modelRelation]bool{}, heights: map[Scope]uint64{},
		inBlock: map[Scope]uint32{}, fired: map[string]int{},
	}
}

func (m *model) epoch() modelEpoch { return m.epochs[len(m.epochs)-1] }

// beginEntry starts a log entry: what follows shares its time and its blocks.
func (m *model) beginEntry(now int64) {
	m.time = max(m.time, now)
	clear(m.inBlock)
}

// expired tells whether an entity is absent though it may still have a record.
func (m *model) expired(e modelEntity) bool {
	return e.expiresAt != 0 && (e.expiresAt <= m.time || slices.ContainsFunc(m.epochs, func(epoch modelEpoch) bool {
		return epoch.start > e.version && epoch.timeBefore >= e.expiresAt
	}))
}

// apply decides one command: a *Write, *OpenSession, *ConfigUpdate,
// modelNewEpoch or modelTick.
func (m *model) apply(command any) Outcome {
	m.index++
	var out Outcome
	switch c := command.(type) {
	case *Write:
		out = m.write(c)
	case *OpenSession:
		out = m.openSession(c)
	case *ConfigUpdate:
		out = m.update(c)
	case modelNewEpoch:
		m.index = (m.index>>32+1)<<32 + 1<<40 + uint64(c.id)&(1<<40-1)
		epoch := modelEpoch{start: m.index, id: c.id}
		if c.time != 0 {
			if c.time < m.time {
				epoch.timeBefore = m.time
				m.fired["time set back"]++
			}
			m.time = c.time
		}
		m.epochs = append(m.epochs, epoch)
		clear(m.inBlock) // the blocks before it are closed
		out.Code = Committed
	case modelTick:
		out.Code = Committed
	default:
		panic(fmt.Sprintf("the model knows no %T", command))
	}
	out.Index = m.index
	m.fired[fmt.Sprintf("%T: %v", command, out.Code)]++
	if m.count++; m.count >= m.config.EvictionInterval {
		m.count = 0
		m.pass()
	}
	return out
}

func (m *model) update(u *ConfigUpdate) Outcome {
	c := m.config
	c.EvictionInterval = *cmp.Or(u.EvictionInterval, &c.EvictionInterval)
	c.EvictionLimit = *cmp.Or(u.EvictionLimit, &c.EvictionLimit)
	c.ReceiptWindow = *cmp.Or(u.ReceiptWindow, &c.ReceiptWindow)
	c.MaxStreams = *cmp.Or(u.MaxStreams, &c.MaxStreams)
	c.ClientTTL = *cmp.Or(u.ClientTTL, &c.ClientTTL)
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
	}
	if field != "" {
		return Outcome{Code: InvalidArgument, Config: m.config, Field: &FieldError{Field: field}}
	}
	m.config = c
	return Outcome{Code: Committed, Config: c}
}

func (m *model) tooManyStreams(organization string) bool {
	n := uint64(0)
	for name := range m.streams {
		if name.scope.Organization == organization {
			n++
		}
	}
	return n >= m.config.MaxStreams
}

func (m *model) openSession(c *OpenSession) Outcome {
	name := modelName{c.Scope, c.ClientID}
	s, found := m.streams[name]
	if !found {
		s = &modelStream{}
	}
	out := Outcome{CreatedIndex: s.created, Last: s.last, Session: s.session}
	old := s.session < m.epoch().start // every session from before the epoch has expired
	attempt := slices.Index(s.attempts, c.AttemptID)
	switch {
	case attempt == 0 && old:
		out.Code = SessionExpired
	case attempt > 0:
		out.Code = SessionFenced
	case attempt < 0 && c.ExpectedSession != 0 && (!found || c.ExpectedSession < m.epoch().start):
		out.Code = SessionExpired
	case attempt < 0 && c.ExpectedSession != 0 && c.ExpectedSession != s.session:
		out.Code = SessionFenced
	case !found && m.tooManyStreams(c.Scope.Organization):
		out.Code = TooManyStreams
	}
	if out.Code != 0 {
		return out
	}
	if !found {
		s = &modelStream{created: m.index, indexed: m.time}
		m.streams[name] = s
	}
	if attempt < 0 {
		s.fenced, s.session = s.session, m.index
		s.attempts = append([][16]byte{c.AttemptID}, s.attempts...)
		s.attempts = s.attempts[:min(8, len(s.attempts))]
	}
	s.lastSeen = m.time
	out.Code, out.CreatedIndex, out.Session, out.Config = Committed, s.created, s.session, m.config
	out.PreviousSession = s.fenced // also for a repeat: the same answer again
	out.Stream = StreamState{CreatedIndex: s.created, Session: s.session, Last: s.last, LastSeen: s.lastSeen}
	return out
}

// write is the decision list, in its order.
func (m *model) write(w *Write) Outcome {
	name := modelName{w.Scope, w.ClientID}
	s, found := m.streams[name]
	if !found {
		s = &modelStream{}
	}
	out := Outcome{CreatedIndex: s.created, Last: s.last, Session: s.session}
	refuse := func(code Code) Outcome {
		out.Code = code
		return out
	}
	hash, _ := HashOperations(nil, w.Operations)
	if w.Session != 0 && (!found || w.Session > s.session || w.Session < m.epoch().start) {
		return refuse(SessionExpired) // 1
	}
	if w.Session != 0 && w.Session < s.session {
		return refuse(SessionFenced) // 2
	}
	if w.Session == 0 && s.session != 0 {
		return refuse(SessionRequired) // 3
	}
	if done := m.duplicate(s, w, hash, &out); done {
		return out // 4–6
	}
	if w.Sequence == 1<<64-1 {
		return refuse(SequenceExhausted) // 7
	}
	if w.Sequence > s.last+1 {
		return refuse(SequenceGap) // 8
	}
	if !found && m.tooManyStreams(w.Scope.Organization) {
		return refuse(TooManyStreams) // 9
	}
	entities, related, versions := maps.Clone(m.entities), maps.Clone(m.related), make([]uint64, len(w.Operations))
	for i, op := range w.Operations {
		key := modelName{w.Scope, string(op.Key)}
		e, there := entities[key]
		there = there && !m.expired(e)
		if code := modelCondition(op.Condition, e, there); code != 0 { // 10
			out.OperationIndex, out.EntityKey = i, op.Key
			if there {
				out.CurrentVersion = e.version
			}
			return refuse(code)
		}
		if m.operate(entities, related, w.Scope, op, there) {
			versions[i] = m.index
		}
	}
	m.entities, m.related = entities, related // 11
	return m.committed(name, s, found, w, hash, versions, out)
}

func (m *model) duplicate(s *modelStream, w *Write, hash RequestHash, out *Outcome) bool {
	visible := s.window[:min(len(s.window), int(m.config.ReceiptWindow))]
	for _, x := range visible { // 4
		if x.receipt.Sequence != w.Sequence {
			continue
		}
		out.CommittedSequence = w.Sequence
		same := w.Key.Present && x.receipt.Key.Present && w.Key.UUID == x.receipt.Key.UUID
		empty := !w.Key.Present || !x.receipt.Key.Present
		switch {
		case (same || empty) && hash == x.receipt.RequestHash:
			out.Code, out.Receipt = Replayed, x.receipt
			out.Receipt.Replayed = true
		case same:
			out.Code = IdempotencyKeyReused
		default:
			out.Code = SequenceReused
		}
		m.fired["rule 4: "+out.Code.String()]++
		return true
	}
	if w.Sequence <= s.last { // 5
		out.Code, out.CommittedSequence = AlreadyCommitted, w.Sequence
		return true
	}
	for _, x := range visible { // 6
		if !w.Key.Present || !x.receipt.Key.Present || w.Key.UUID != x.receipt.Key.UUID {
			continue
		}
		out.Code, out.CommittedSequence = IdempotencyKeyReused, x.receipt.Sequence
		if hash == x.receipt.RequestHash {
			out.Code, out.Receipt = Replayed, x.receipt
			out.Receipt.Replayed = true
		}
		m.fired["rule 6: "+out.Code.String()]++
		return true
	}
	return false
}

func modelCondition(c Condition, e modelEntity, there bool) Code {
	switch {
	case c.Kind == ConditionNone:
		return 0
	case c.Kind == ConditionNotExists && there:
		return KeyExists
	case c.Kind == ConditionNotExists:
		return 0
	case !there:
		return KeyNotFound
	case c.Kind == ConditionVersion && c.Version != e.version:
		return VersionMismatch
	case c.Kind == ConditionValueEquals && string(c.Value) != e.value:
		return ValueMismatch
	}
	return 0
}

// operate applies one operation and tells whether it changed something. There
// tells whether the entity is there and has not expired.
func (m *model) operate(
	entities map[modelName]modelEntity, related map[modelRelation]bool, scope Scope, op Operation, there bool,
) bool {
	key := modelName{scope, string(op.Key)}
	relation := modelRelation{scope, string(op.Key), string(op.Relation), string(op.Subject)}
	switch op.Kind {
	case OpSetEntity:
		entities[key] = modelEntity{string(op.Value), m.index, op.ExpiresAt}
	case OpDeleteEntity:
		if !there { // an expired one waits for its round
			return false
		}
		delete(entities, key)
	case OpCreateRelationship:
		if related[relation] {
			return false
		}
		related[relation] = true
	case OpDeleteRelationship:
		if !related[relation] {
			return false
		}
		delete(related, relation)
	}
	return true
}

func (m *model) committed(
	name modelName, s *modelStream, found bool, w *Write, hash RequestHash, versions []uint64, out Outcome,
) Outcome {
	if !found {
		s = &modelStream{created: m.index, indexed: m.time}
		m.streams[name] = s
	}
	x := m.transact(w.Scope, Receipt{
		Sequence: w.Sequence, Session: w.Session, Actor: w.Actor, RequestHash: hash, Key: w.Key, Versions: versions,
	}, w.Operations)
	x.client, x.created = w.ClientID, s.created
	s.last, s.lastSeen = w.Sequence, m.time
	s.window = append([]*modelTx{x}, s.window...)
	s.window = s.window[:min(len(s.window), int(m.config.ReceiptWindow))]
	out.Code, out.CreatedIndex, out.Last, out.CommittedSequence = Committed, s.created, s.last, w.Sequence
	out.Receipt = x.receipt
	return out
}

// transact records a transaction at the current index and finds its place in
// a block.
func (m *model) transact(scope Scope, r Receipt, ops []Operation) *modelTx {
	if m.inBlock[scope] == 0 {
		m.heights[scope]++
	}
	r.LedgerID, r.Index, r.CommittedAt = m.epoch().id, m.index, m.time
	r.BlockHeight, r.Position = m.heights[scope], m.inBlock[scope]
	m.inBlock[scope]++
	x := &modelTx{scope: scope, receipt: r, operations: ops}
	m.history = append(m.history, x)
	return x
}

// pass is one eviction pass.
func (m *model) pass() {
	room := int(m.config.EvictionLimit)
	if m.backlog {
		room *= 10
		m.fired["pass after a backlog"]++
	}
	m.backlog = false
	// take sorts what is due by its time and then its key, and leaves out what
	// there is no room for.
	take := func(due []modelName, at func(modelName) int64) []modelName {
		slices.SortFunc(due, func(a, b modelName) int {
			return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(a.encoded(), b.encoded()))
		})
		if len(due) > room {
			m.backlog = true
			m.fired["limit left something"]++
			due = due[:room]
		}
		room -= len(due)
		return due
	}
	indexed := func(name modelName) int64 { return m.streams[name].indexed }
	var due []modelName
	for name, s := range m.streams {
		if m.time-s.indexed > m.config.ClientTTL {
			due = append(due, name)
		}
	}
	putBack := func(s *modelStream) {
		s.lastSeen = min(s.lastSeen, m.time)
		s.indexed = s.lastSeen
	}
	for _, name := range take(due, indexed) {
		if s := m.streams[name]; m.time-s.lastSeen > m.config.ClientTTL {
			delete(m.streams, name)
			m.fired["stream evicted"]++
		} else {
			putBack(s)
			m.fired["stream put back"]++
		}
	}
	var ahead []modelName
	for name, s := range m.streams {
		if s.indexed > m.time {
			ahead = append(ahead, name)
		}
	}
	for _, name := range take(ahead, indexed) {
		putBack(m.streams[name])
		m.fired["stream brought back"]++
	}
	var entities []modelName
	for name, e := range m.entities {
		if e.expiresAt != 0 && e.expiresAt <= m.time {
			entities = append(entities, name)
		}
	}
	m.expire(take(entities, func(name modelName) int64 { return m.entities[name].expiresAt }))
}

func (m *model) expire(due []modelName) {
	slices.SortFunc(due, func(a, b modelName) int { return cmp.Compare(a.encoded(), b.encoded()) })
	for i := 0; i < len(due); {
		var ops []Operation
		scope := due[i].scope
		for ; i < len(due) && due[i].scope == scope && len(ops) < 1_000; i++ {
			ops = append(ops, Operation{Kind: OpExpireEntity, Key: []byte(due[i].name)})
			delete(m.entities, due[i])
		}
		m.index++
		m.fired["entities expired"]++
		hash, _ := HashOperations(nil, ops)
		m.transact(scope, Receipt{Actor: "system:gc", RequestHash: hash}, ops)
	}
}

// differ says how an outcome differs from the model's, or nothing.
func differ(got, want Outcome) string {
	if (got.Field == nil) != (want.Field == nil) || got.Field != nil && got.Field.Field != want.Field.Field {
		return fmt.Sprintf("field %v, want %v", got.Field, want.Field)
	}
	if !bytes.Equal(got.EntityKey, want.EntityKey) || !slices.Equal(got.Receipt.Versions, want.Receipt.Versions) {
		return fmt.Sprintf("entity key or versions: %+v, want %+v", got, want)
	}
	got.Field, want.Field, got.EntityKey, want.EntityKey = nil, nil, nil, nil
	got.Receipt.Versions, want.Receipt.Versions = nil, nil
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		return fmt.Sprintf("%s\nwant %s", g, w)
	}
	return ""
}
