package server_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// A script is what some clients do, one call after another. Each way to write does it in an organization of its own,
// and each must be answered as the model of the rules is. Ledger indexes differ from way to way, so that versions and
// sessions are compared by the step that gave them.

// turn is one call: a session that is opened, or some writes.
type turn struct {
	open   string // the client that opens a session; "" for writes
	expect bool   // the session that it knows
	writes []scriptWrite
}

type scriptWrite struct {
	step     int // its number in the script
	client   string
	session  int // 0: none, 1: the newest one of the client, 2: the one before
	sequence uint64
	key      byte // 0: none
	ops      []scriptOp
}

// scriptOp is an operation. A condition on a version names the write that gave it, by its step.
type scriptOp struct {
	machine.Operation

	version int
}

// answered is what a call came to, in one way.
type answered struct {
	receipt *seqledgerv1.Receipt
	refused *seqledgerv1.WriteError
}

// known is what one way has learnt from its answers.
type known struct {
	scope    machine.Scope
	sessions map[string][]uint64 // of a client, the newest last
	indexes  map[int]uint64      // of the committed writes, by step
	names    map[uint64]string   // of indexes
	// sent are the hashes of the steps' writes, and hashes those of the committed ones, by index. They are a way's own
	// where a condition has a version, which is an index.
	sent   map[int]string
	hashes map[uint64]string
}

func newKnown(organization string) *known {
	return &known{
		scope: machine.Scope{Organization: organization, Vault: "main"}, sessions: map[string][]uint64{},
		indexes: map[int]uint64{}, names: map[uint64]string{0: "none"},
		sent: map[int]string{}, hashes: map[uint64]string{},
	}
}

// write makes the write of a step out of what is known.
func (k *known) write(s *scriptWrite) *machine.Write {
	w := &machine.Write{Scope: k.scope, ClientID: s.client, Actor: "system:anonymous", Sequence: s.sequence}
	if all := k.sessions[s.client]; s.session > 0 && len(all) >= s.session {
		w.Session = all[len(all)-s.session]
	}
	if s.key != 0 {
		w.Key = machine.Key{UUID: [16]byte{s.key, 6: 0x40, 8: 0x80}, Present: true}
	}
	for _, op := range s.ops {
		if op.Condition.Kind == machine.ConditionVersion {
			op.Condition.Version = k.indexes[op.version]
		}
		w.Operations = append(w.Operations, op.Operation)
	}
	hash, _ := machine.HashOperations(nil, w.Operations)
	k.sent[s.step] = hash.String()
	return w
}

// opened notes a session, or nothing when none was opened.
func (k *known) opened(client string, session uint64) string {
	if session == 0 {
		return "refused"
	}
	if _, again := k.names[session]; !again {
		k.names[session] = fmt.Sprint("session ", len(k.sessions[client])+1, " of ", client)
		k.sessions[client] = append(k.sessions[client], session)
	}
	return k.names[session]
}

// text says what became of a step, and notes what it gave.
func (k *known) text(step int, a answered) string {
	if r := a.receipt; r != nil {
		if _, again := k.names[r.Index]; !again {
			k.names[r.Index], k.indexes[step] = fmt.Sprint("write ", step), r.Index
			k.hashes[r.Index] = k.sent[step]
		}
		changed := make([]bool, len(r.Results))
		for i, result := range r.Results {
			changed[i] = result.Version != 0
		}
		return fmt.Sprintf("%s: sequence %d, %s, replayed %v, its hash %v, changed %v, by %s", k.names[r.Index],
			r.Sequence, k.names[r.Session], r.Replayed, r.RequestHash == k.hashes[r.Index], changed, r.Actor)
	}
	e := a.refused
	return fmt.Sprintf("%s: last %d, %s, committed %d, operation %d, key %q, version %s, field %q",
		strings.TrimPrefix(e.Code.String(), "WRITE_ERROR_CODE_"), e.LastCommittedSequence, k.names[e.Session],
		e.CommittedSequence, e.OperationIndex, e.Key, k.names[e.CurrentVersion], e.Field)
}

// decided is an outcome of the model as the API gives it out.
func decided(out *machine.Outcome) answered {
	if out.Code == machine.Committed || out.Code == machine.Replayed {
		r := &out.Receipt
		receipt := &seqledgerv1.Receipt{
			Sequence: r.Sequence, Session: r.Session, Index: r.Index, Replayed: out.Code == machine.Replayed,
			Actor: r.Actor, RequestHash: r.RequestHash.String(),
		}
		for _, version := range r.Versions {
			receipt.Results = append(receipt.Results, &seqledgerv1.OperationResult{Version: version})
		}
		return answered{receipt: receipt}
	}
	e := &seqledgerv1.WriteError{
		Code:                  codeNamed(out.Code.String()),
		LastCommittedSequence: out.Last, Session: out.Session, CommittedSequence: out.CommittedSequence,
	}
	switch out.Code {
	case machine.KeyExists, machine.KeyNotFound, machine.VersionMismatch, machine.ValueMismatch:
		e.OperationIndex, e.Key, e.CurrentVersion = uint32(out.OperationIndex), string(out.EntityKey),
			out.CurrentVersion
	}
	return answered{refused: e}
}

func codeNamed(name string) seqledgerv1.WriteErrorCode {
	return seqledgerv1.WriteErrorCode(seqledgerv1.WriteErrorCode_value["WRITE_ERROR_CODE_"+name])
}

// message is a write as the API has it.
func message(w *machine.Write) *seqledgerv1.WriteRequest {
	m := &seqledgerv1.WriteRequest{
		Scope:    &seqledgerv1.Scope{Organization: w.Scope.Organization, Vault: w.Scope.Vault},
		ClientId: w.ClientID, Session: w.Session, Sequence: w.Sequence,
	}
	if w.Key.Present {
		m.IdempotencyKey = machine.FormatUUID(w.Key.UUID)
	}
	for i := range w.Operations {
		op := &w.Operations[i]
		switch op.Kind {
		case machine.OpSetEntity:
			set := setOp(string(op.Key), string(op.Value))
			set.GetSetEntity().Condition = conditionOf(&op.Condition)
			m.Operations = append(m.Operations, set)
		case machine.OpDeleteEntity:
			m.Operations = append(m.Operations, &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
				DeleteEntity: &seqledgerv1.DeleteEntity{Key: string(op.Key), Condition: conditionOf(&op.Condition)},
			}})
		case machine.OpCreateRelationship:
			m.Operations = append(m.Operations, relateOp(string(op.Key), string(op.Relation), string(op.Subject)))
		default:
			m.Operations = append(m.Operations, appendOp(string(op.Value)))
		}
	}
	return m
}

func conditionOf(c *machine.Condition) *seqledgerv1.Condition {
	switch c.Kind {
	case machine.ConditionNotExists:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}
	case machine.ConditionMustExist:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}
	case machine.ConditionVersion:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: c.Version}}
	case machine.ConditionValueEquals:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: c.Value}}
	}
	return nil
}

// scripted makes up a script while the model runs it, and returns what the model says to each step.
type scripted struct {
	*known

	random *rand.Rand
	model  *ledgermodel.Model
	turns  []turn
	texts  []string
	steps  int
	past   []scriptWrite
}

func newScript(random *rand.Rand, turns int) *scripted {
	s := &scripted{known: newKnown("model"), random: random, model: ledgermodel.NewModel()}
	s.model.Begin(1)
	s.model.Apply(ledgermodel.Create{ID: 1, Config: machine.DefaultConfig()})
	for range turns {
		s.turns = append(s.turns, s.turn())
	}
	return s
}

func (s *scripted) turn() turn {
	client := []string{"till-1", "till-2", "till-3"}[s.random.IntN(3)]
	if s.random.IntN(12) == 0 {
		next := turn{open: client, expect: s.random.IntN(2) == 0}
		out := s.model.Apply(s.session(&next, len(s.turns)))
		session := uint64(0)
		if out.Code == machine.Committed {
			session = out.Session
		}
		s.texts = append(s.texts, s.opened(client, session))
		return next
	}
	next := turn{}
	for range 1 + s.random.IntN(5) {
		next.writes = append(next.writes, s.pick(client, next.writes))
	}
	// All are made of what is known before the call, as a client makes them.
	var writes []*machine.Write
	for i := range next.writes {
		writes = append(writes, s.write(&next.writes[i]))
	}
	for i, w := range writes {
		a := answered{refused: &seqledgerv1.WriteError{
			Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, Field: "client_id",
		}}
		if w.ClientID != "" {
			out := s.model.Apply(w)
			a = decided(&out)
		}
		s.texts = append(s.texts, s.text(next.writes[i].step, a))
	}
	return next
}

// session is the OpenSession of a turn. Each has an attempt of its own.
func (k *known) session(t *turn, number int) *machine.OpenSession {
	o := &machine.OpenSession{
		Scope: k.scope, ClientID: t.open, Actor: "system:anonymous",
		AttemptID: [16]byte{1, byte(number), byte(number >> 8)},
	}
	if all := k.sessions[t.open]; t.expect && len(all) > 0 {
		o.ExpectedSession = all[len(all)-1]
	}
	return o
}

// pick makes up a write: mostly the next of its stream, else a repeat of an earlier one, one under a number or a key
// that is taken, a gap, or an invalid one. before are the writes of the same call.
func (s *scripted) pick(client string, before []scriptWrite) scriptWrite {
	w := scriptWrite{step: s.steps, client: client, session: s.random.IntN(8) / 5}
	s.steps++
	if len(s.sessions[client]) > 0 && s.random.IntN(5) > 0 {
		w.session = 1
	}
	if s.random.IntN(10) == 0 {
		w.session = 2
	}
	last := s.model.Stream(s.scope, client).Last
	for _, earlier := range before { // which are not decided yet
		if earlier.client == client && earlier.sequence == last+1 {
			last++
		}
	}
	w.sequence = last + 1
	w.key = byte(max(0, s.random.IntN(40)-20))
	for range 1 + s.random.IntN(3) {
		w.ops = append(w.ops, s.operation())
	}
	switch s.random.IntN(12) {
	case 0, 1, 2:
		own := slices.DeleteFunc(slices.Clone(s.past), func(e scriptWrite) bool { return e.client != client })
		if len(own) > 0 {
			w = own[s.random.IntN(len(own))]
			w.step = s.steps - 1
		}
	case 3:
		w.sequence = 1 + uint64(s.random.IntN(int(last)+2))
	case 4:
		w.sequence += 1 + uint64(s.random.IntN(3))
	case 5:
		if s.random.IntN(3) == 0 {
			w.client = ""
		}
	}
	s.past = append(s.past, w)
	return w
}

func (s *scripted) operation() scriptOp {
	key := []byte(fmt.Sprint("account/", s.random.IntN(4)))
	op := scriptOp{Operation: machine.Operation{Kind: machine.OpAppend, Value: fmt.Append(nil, s.random.IntN(5))}}
	switch s.random.IntN(6) {
	case 0, 1, 2:
		op.Kind, op.Key = machine.OpSetEntity, key
	case 3:
		op.Kind, op.Key, op.Value = machine.OpDeleteEntity, key, nil
	case 4:
		op.Operation = machine.Operation{Kind: machine.OpCreateRelationship, Key: key, Relation: []byte("owner"),
			Subject: []byte("ann")}
	}
	if op.Kind == machine.OpSetEntity || op.Kind == machine.OpDeleteEntity {
		op.Condition.Kind = machine.ConditionKind(max(0, s.random.IntN(9)-4))
		if op.Condition.Kind == machine.ConditionValueEquals {
			op.Condition.Value = fmt.Append(nil, s.random.IntN(5))
		}
		op.version = s.random.IntN(s.steps + 1)
	}
	return op
}

// way sends the writes of one call and returns an answer for each.
type way func(t *testing.T, writes []*seqledgerv1.WriteRequest) []answered

func answersOf(results []*seqledgerv1.WriteResult) (all []answered) {
	for _, r := range results {
		all = append(all, answered{r.GetReceipt(), r.GetError()})
	}
	return all
}

func unaryWay(c seqledgerv1connect.LedgerServiceClient) way {
	return func(t *testing.T, writes []*seqledgerv1.WriteRequest) (all []answered) {
		for _, w := range writes {
			answer, err := c.Write(within(t), connect.NewRequest(w))
			if err != nil && detail(err) == nil {
				t.Fatal(err)
			}
			if err != nil {
				all = append(all, answered{refused: detail(err)})
			} else {
				all = append(all, answered{receipt: answer.Msg.Receipt})
			}
		}
		return all
	}
}

func batchWay(c seqledgerv1connect.LedgerServiceClient) way {
	return func(t *testing.T, writes []*seqledgerv1.WriteRequest) []answered {
		answer := must.Get(c.WriteBatch(within(t), batchOf(writes...)))(t)
		return answersOf(answer.Msg.Results)
	}
}

// streamWay has one stream for all calls, and a frame for each write or for each call.
func streamWay(t *testing.T, c seqledgerv1connect.LedgerServiceClient, whole bool) way {
	t.Helper()
	stream := c.WriteStream(within(t))
	t.Cleanup(func() { _ = errors.Join(stream.CloseRequest(), stream.CloseResponse()) })
	return func(t *testing.T, writes []*seqledgerv1.WriteRequest) []answered {
		frames := [][]*seqledgerv1.WriteRequest{writes}
		if !whole {
			frames = slices.Collect(slices.Chunk(writes, 1))
		}
		for _, frame := range frames {
			must.Do(t, stream.Send(frameOf(frame...)))
		}
		return answersOf(receive(t, stream, len(writes)))
	}
}

func upgradedWay(t *testing.T, h *harness) way {
	t.Helper()
	stream := mustOpenUpgraded(t, h)
	return func(t *testing.T, writes []*seqledgerv1.WriteRequest) []answered {
		return answersOf(ask(t, stream, writes...))
	}
}

// play runs a script in one way and compares what each step came to with what the model says.
func (s *scripted) play(t *testing.T, h *harness, organization string, send way) {
	t.Helper()
	k, at := newKnown(organization), 0
	say := func(what any, got string) {
		t.Helper()
		must.Equal(t, got, s.texts[at], "%s, step %d %+v:\ngot %s", organization, at, what)
		at++
	}
	for number := range s.turns {
		next := &s.turns[number]
		if next.open != "" {
			o := k.session(next, number)
			answer, err := h.client.OpenSession(within(t), connect.NewRequest(&seqledgerv1.OpenSessionRequest{
				Scope: message(&machine.Write{Scope: o.Scope}).Scope, ClientId: o.ClientID, AttemptId: o.AttemptID[:],
				ExpectedSession: o.ExpectedSession,
			}))
			if err != nil && detail(err) == nil {
				t.Fatal(err)
			}
			session := uint64(0)
			if err == nil {
				session = answer.Msg.GetState().GetSession()
			}
			say(next, k.opened(next.open, session))
			continue
		}
		var writes []*seqledgerv1.WriteRequest
		for i := range next.writes {
			writes = append(writes, message(k.write(&next.writes[i])))
		}
		all := send(t, writes)
		if len(all) != len(writes) {
			t.Fatalf("%d answers to %d writes", len(all), len(writes))
		}
		for i, a := range all {
			say(next.writes[i], k.text(next.writes[i].step, a))
		}
	}
}

// TestEveryWayDecidesAlike: whichever way a client writes, each write is decided as the model of the rules decides it,
// with the same numbers in the answer.
func TestEveryWayDecidesAlike(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	turns := 400
	if testing.Short() {
		turns = 40
	}
	script := newScript(rand.New(rand.NewPCG(seed, 0)), turns)
	seen := map[string]bool{}
	for _, text := range script.texts {
		word, _, _ := strings.Cut(text, ":")
		seen[strings.Fields(word)[0]] = true
	}
	for _, code := range []string{"write", "session", "SEQUENCE_GAP", "SEQUENCE_REUSED", "KEY_EXISTS", "KEY_NOT_FOUND",
		"VERSION_MISMATCH", "VALUE_MISMATCH", "SESSION_REQUIRED"} {
		if !seen[code] && !testing.Short() {
			t.Errorf("no step comes to %s: the test tests too little", code)
		}
	}
	h := start(t)
	http1 := seqledgerv1connect.NewLedgerServiceClient(h.h1, h.url)
	type opener func(t *testing.T, c seqledgerv1connect.LedgerServiceClient) way
	ways := map[string]opener{
		"unary":  func(_ *testing.T, c seqledgerv1connect.LedgerServiceClient) way { return unaryWay(c) },
		"batch":  func(_ *testing.T, c seqledgerv1connect.LedgerServiceClient) way { return batchWay(c) },
		"stream": func(t *testing.T, c seqledgerv1connect.LedgerServiceClient) way { return streamWay(t, c, false) },
		"frames": func(t *testing.T, c seqledgerv1connect.LedgerServiceClient) way { return streamWay(t, c, true) },
	}
	for name, options := range wire {
		for kind, open := range ways {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				c := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, options...)
				organization := strings.ReplaceAll(name+"-"+kind, " ", "-")
				script.play(t, h, organization, open(t, c))
			})
		}
	}
	t.Run("over HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		script.play(t, h, "http1", unaryWay(http1))
	})
	t.Run("upgraded", func(t *testing.T) {
		t.Parallel()
		script.play(t, h, "upgraded", upgradedWay(t, h))
	})
}
