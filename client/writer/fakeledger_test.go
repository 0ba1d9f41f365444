package writer_test

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// code shortens the names of the codes.
type code = seqledgerv1.WriteErrorCode

const (
	codeGap          = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP
	codeCommitted    = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED
	codeKeyReused    = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED
	codeSeqReused    = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_REUSED
	codeExhausted    = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_EXHAUSTED
	codeExpired      = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED
	codeFenced       = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED
	codeNeedsSession = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_REQUIRED
	codeKeyExists    = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS
	codeKeyNotFound  = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_NOT_FOUND
	codeQueueFull    = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL
	codeDraining     = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING
	codeNotLeader    = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER
	codeUnknown      = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN
	codeDenied       = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED
	codeInvalid      = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT
)

// fakeLedger decides by the ledger's own state machine. Ledger time is time.Now, so
// that synctest moves it, and an eviction pass follows every command.
type fakeLedger struct {
	*ledgermodel.Ledger
	mu  sync.Mutex
	log []committed
}

// committed is what the audit reads.
type committed struct {
	stream            string
	created, sequence uint64
	key               string
	operations        []*seqledgerv1.Operation
}

func newFakeLedger() *fakeLedger {
	config := machine.DefaultConfig()
	config.EvictionInterval, config.ClientTTL = 1, int64(24*time.Hour)
	return &fakeLedger{Ledger: ledgermodel.NewLedger(ledgermodel.Create{ID: 0x0123456789abcdef, Config: config},
		time.Now)}
}

// txID is a transaction id.
func txID(ledger, index uint64) string {
	return machine.NewTxID(machine.LedgerID(ledger), index).String()
}

func streamName(scope *seqledgerv1.Scope, clientID string) string {
	return fmt.Sprintf("%s/%s/%s", scope.GetOrganization(), scope.GetVault(), clientID)
}

// id returns the id of the ledger.
func (l *fakeLedger) id() (id machine.LedgerID) {
	l.View(func(v machine.View) { id = v.LedgerID() })
	return id
}

// loses makes it a ledger to which a client has written nothing.
func (l *fakeLedger) loses(clientID string) {
	l.Rewrite(func(command any) any {
		if w, ok := command.(*machine.Write); ok && w.ClientID == clientID {
			return ledgermodel.Tick{}
		}
		return command
	})
}

// runsAhead writes up to a sequence in place of a client.
func (l *fakeLedger) runsAhead(clientID string, to uint64) {
	for state := l.state(org, clientID); state.GetLastCommittedSequence() < to; state = l.state(org, clientID) {
		l.Apply(&machine.Write{
			Scope: machineScope(org), ClientID: clientID, Actor: "client:other", Session: state.GetSession(),
			Sequence: state.GetLastCommittedSequence() + 1, Operations: []machine.Operation{{Kind: machine.OpAppend}},
		})
	}
}

// setWindow changes how many receipts a stream keeps.
func (l *fakeLedger) setWindow(receipts uint64) {
	l.Apply(&machine.ConfigUpdate{ReceiptWindow: &receipts})
}

// setTTL changes client_ttl.
func (l *fakeLedger) setTTL(ttl time.Duration) {
	l.Apply(&machine.ConfigUpdate{ClientTTL: new(int64(ttl))})
}

// apply decides one write.
func (l *fakeLedger) apply(request *seqledgerv1.WriteRequest) *seqledgerv1.WriteResult {
	w := &machine.Write{
		Scope: machineScope(request.GetScope()), ClientID: request.GetClientId(), Actor: "client:test",
		Session: request.GetSession(), Sequence: request.GetSequence(),
	}
	if key := request.GetIdempotencyKey(); key != "" {
		uuid, err := machine.ParseUUID(key)
		if err != nil {
			return refusal(&seqledgerv1.WriteError{Code: codeInvalid, Message: err.Error()})
		}
		w.Key = machine.Key{UUID: uuid, Present: true}
	}
	for _, operation := range request.GetOperations() {
		w.Operations = append(w.Operations, machineOperation(operation))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.Apply(w)
	switch out.Code {
	case machine.Committed:
		l.log = append(l.log, committed{
			streamName(request.GetScope(), w.ClientID), out.CreatedIndex, w.Sequence, request.GetIdempotencyKey(),
			request.GetOperations(),
		})
	case machine.Replayed:
	default:
		return refusal(&seqledgerv1.WriteError{
			Code: codeOf(out.Code), LastCommittedSequence: out.Last, Session: out.Session,
		})
	}
	r := &out.Receipt
	return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Receipt{Receipt: &seqledgerv1.Receipt{
		TxId: machine.NewTxID(r.LedgerID, r.Index).String(), Sequence: r.Sequence, Session: r.Session, Index: r.Index,
		Replayed: out.Code == machine.Replayed,
	}}}
}

// codeOf returns a code of the machine as the API names it.
func codeOf(c machine.Code) code {
	return code(seqledgerv1.WriteErrorCode_value["WRITE_ERROR_CODE_"+c.String()])
}

func machineScope(s *seqledgerv1.Scope) machine.Scope {
	return machine.Scope{Organization: s.GetOrganization(), Vault: s.GetVault()}
}

// machineOperation converts the operations and conditions that the tests use.
func machineOperation(operation *seqledgerv1.Operation) machine.Operation {
	switch o := operation.GetOperation().(type) {
	case *seqledgerv1.Operation_Append:
		return machine.Operation{Kind: machine.OpAppend, Value: o.Append.GetPayload()}
	case *seqledgerv1.Operation_SetEntity:
		op := machine.Operation{Kind: machine.OpSetEntity, Key: []byte(o.SetEntity.GetKey()),
			Value: o.SetEntity.GetValue()}
		switch c := o.SetEntity.GetCondition(); {
		case c.GetNotExists():
			op.Condition.Kind = machine.ConditionNotExists
		case c.GetMustExist():
			op.Condition.Kind = machine.ConditionMustExist
		case c != nil:
			panic(fmt.Sprintf("the fake has no condition %v", c))
		}
		return op
	}
	panic(fmt.Sprintf("the fake has no operation %v", operation))
}

// openSession opens a session.
func (l *fakeLedger) openSession(request *seqledgerv1.OpenSessionRequest) (*seqledgerv1.OpenSessionResponse, code) {
	o := &machine.OpenSession{
		Scope: machineScope(request.GetScope()), ClientID: request.GetClientId(), Actor: "client:test",
		AttemptID: [16]byte(request.GetAttemptId()), ExpectedSession: request.GetExpectedSession(),
	}
	out := l.Apply(o)
	if out.Code != machine.Committed {
		return nil, codeOf(out.Code)
	}
	return &seqledgerv1.OpenSessionResponse{
		State: renderState(&out.Stream, &out.Config), PreviousSession: out.PreviousSession,
	}, 0
}

func renderState(s *machine.StreamState, c *machine.Config) *seqledgerv1.ClientState {
	return &seqledgerv1.ClientState{
		Status: seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE, LastCommittedSequence: s.Last,
		Session: s.Session, CreatedIndex: s.CreatedIndex, ReceiptWindow: uint32(c.ReceiptWindow),
		LastSeen:  timestamppb.New(time.Unix(0, s.LastSeen)),
		ExpiresAt: timestamppb.New(time.Unix(0, s.LastSeen+c.ClientTTL)),
	}
}

// state answers GetClientState.
func (l *fakeLedger) state(scope *seqledgerv1.Scope, clientID string) *seqledgerv1.ClientState {
	state := &seqledgerv1.ClientState{Status: seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN}
	l.View(func(v machine.View) {
		stream, found, err := v.Stream(machineScope(scope), clientID)
		if err != nil {
			panic(err)
		}
		if config := v.Config(); found {
			state = renderState(&stream, &config)
		}
	})
	return state
}

// evictDue removes every stream that is due.
func (l *fakeLedger) evictDue() { l.Advance(0) }

// evictAll lets so much time pass in the ledger that every stream is removed.
func (l *fakeLedger) evictAll() {
	var ttl int64
	l.View(func(v machine.View) { ttl = v.Config().ClientTTL })
	l.Advance(time.Duration(ttl) + 1)
}

// toggle creates or deletes an entity, as another client would, so that conditions
// change their mind.
func (l *fakeLedger) toggle(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &machine.Write{
		Scope: machineScope(org), ClientID: "toggle " + key, Actor: "client:toggle",
		Sequence: l.state(org, "toggle "+key).GetLastCommittedSequence() + 1,
	}
	for _, op := range []machine.Operation{
		{Kind: machine.OpSetEntity, Key: []byte(key), Condition: machine.Condition{Kind: machine.ConditionNotExists}},
		{Kind: machine.OpDeleteEntity, Key: []byte(key)},
	} {
		w.Operations = []machine.Operation{op}
		if l.Apply(w).Code == machine.Committed {
			return
		}
	}
	panic("the entity " + key + " could neither be created nor deleted")
}

// history returns what was committed, in order.
func (l *fakeLedger) history() []committed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]committed(nil), l.log...)
}

func refusal(e *seqledgerv1.WriteError) *seqledgerv1.WriteResult {
	return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Error{Error: e}}
}
