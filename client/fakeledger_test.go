package client_test

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

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

// fakeLedger decides like the real one, rule by rule, with the least state that
// the rules need. Ledger time is time.Now, so that synctest moves it.
type fakeLedger struct {
	mu       sync.Mutex
	id       uint64
	index    uint64
	window   uint64
	ttl      time.Duration
	streams  map[string]*fakeStream
	entities map[string]uint64
	log      []committed
}

// fakeStream is one life of one client id.
type fakeStream struct {
	created, session, last uint64
	fenced                 uint64   // the session before the current one
	attempts               [][]byte // oldest first; the last one is current
	receipts               []stored // oldest first
	lastSeen               time.Time
}

type stored struct {
	key     string
	payload []byte
	receipt *seqledgerv1.Receipt
}

// committed is what the audit reads.
type committed struct {
	stream            string
	created, sequence uint64
	key               string
	operations        []*seqledgerv1.Operation
}

func newFakeLedger() *fakeLedger {
	return &fakeLedger{
		id: 0x0123456789abcdef, window: 64, ttl: 24 * time.Hour,
		streams: make(map[string]*fakeStream), entities: make(map[string]uint64),
	}
}

// txID is a UUIDv8 as the ledger makes it.
func txID(ledger, index uint64) string {
	high := ledger>>16<<16 | 8<<12 | ledger>>4&0x0fff
	low := 1<<63 | ledger&0x0f<<58 | index
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", high>>32, high>>16&0xffff, high&0xffff, low>>48, low&0xffffffffffff)
}

func streamName(scope *seqledgerv1.Scope, clientID string) string {
	return fmt.Sprintf("%s/%s/%s", scope.GetOrganization(), scope.GetVault(), clientID)
}

// apply decides one write. It is the model of "The decision".
func (l *fakeLedger) apply(request *seqledgerv1.WriteRequest) *seqledgerv1.WriteResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	name := streamName(request.GetScope(), request.GetClientId())
	stream := l.streams[name]
	var session, last uint64
	if stream != nil {
		session, last = stream.session, stream.last
	}
	refuse := func(c code) *seqledgerv1.WriteResult {
		return refusal(&seqledgerv1.WriteError{Code: c, LastCommittedSequence: last, Session: session})
	}
	switch asked := request.GetSession(); {
	case asked != 0 && (stream == nil || asked > session):
		return refuse(codeExpired)
	case asked != 0 && asked < session:
		return refuse(codeFenced)
	case asked == 0 && session != 0:
		return refuse(codeNeedsSession)
	}
	if result := l.replay(stream, request, refuse); result != nil {
		return result
	}
	if request.GetSequence() > last+1 {
		return refuse(codeGap)
	}
	if failed := l.condition(request.GetOperations()); failed != 0 {
		return refuse(failed)
	}
	return l.commit(name, stream, request)
}

// replay is rules 4 to 6.
func (l *fakeLedger) replay(stream *fakeStream, request *seqledgerv1.WriteRequest,
	refuse func(code) *seqledgerv1.WriteResult) *seqledgerv1.WriteResult {
	if stream == nil {
		return nil
	}
	payload := payloadOf(request)
	for _, s := range stream.receipts {
		sameSequence := s.receipt.GetSequence() == request.GetSequence()
		sameKey := s.key == request.GetIdempotencyKey()
		sameHash := bytes.Equal(s.payload, payload)
		switch {
		case !sameSequence && !sameKey:
		case sameKey && sameHash:
			again := proto.CloneOf(s.receipt)
			again.Replayed = true
			return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Receipt{Receipt: again}}
		case sameKey:
			return refuse(codeKeyReused)
		default:
			return refuse(codeSeqReused)
		}
	}
	if request.GetSequence() <= stream.last {
		return refuse(codeCommitted)
	}
	return nil
}

// condition evaluates the two conditions that the tests use.
func (l *fakeLedger) condition(operations []*seqledgerv1.Operation) code {
	for _, operation := range operations {
		set := operation.GetSetEntity()
		_, exists := l.entities[set.GetKey()]
		if set.GetCondition().GetNotExists() && exists {
			return codeKeyExists
		}
		if set.GetCondition().GetMustExist() && !exists {
			return codeKeyNotFound
		}
	}
	return 0
}

// commit is rule 11.
func (l *fakeLedger) commit(name string, stream *fakeStream,
	request *seqledgerv1.WriteRequest) *seqledgerv1.WriteResult {
	if stream == nil {
		stream = &fakeStream{created: l.index}
		l.streams[name] = stream
	}
	for _, operation := range request.GetOperations() {
		if set := operation.GetSetEntity(); set != nil {
			l.entities[set.GetKey()] = l.index
		}
	}
	stream.last = request.GetSequence()
	stream.lastSeen = time.Now()
	receipt := &seqledgerv1.Receipt{
		TxId: txID(l.id, l.index), Sequence: request.GetSequence(),
		Session: request.GetSession(), Index: l.index,
	}
	stream.receipts = append(stream.receipts, stored{request.GetIdempotencyKey(), payloadOf(request), receipt})
	if extra := len(stream.receipts) - int(l.window); extra > 0 {
		stream.receipts = stream.receipts[extra:]
	}
	l.log = append(l.log, committed{
		name, stream.created, request.GetSequence(), request.GetIdempotencyKey(), request.GetOperations(),
	})
	return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Receipt{Receipt: proto.CloneOf(receipt)}}
}

// openSession is the paragraph of that name.
func (l *fakeLedger) openSession(request *seqledgerv1.OpenSessionRequest) (*seqledgerv1.OpenSessionResponse, code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	name := streamName(request.GetScope(), request.GetClientId())
	stream := l.streams[name]
	var previous uint64 // the stream's session before this call
	current := false
	if stream != nil {
		previous = stream.session
		for i, attempt := range stream.attempts {
			if bytes.Equal(attempt, request.GetAttemptId()) {
				if i < len(stream.attempts)-1 {
					return nil, codeFenced
				}
				current = true
			}
		}
	}
	if !current {
		switch expected := request.GetExpectedSession(); {
		case expected != 0 && stream == nil:
			return nil, codeExpired
		case expected != 0 && expected != previous:
			return nil, codeFenced
		}
		if stream == nil {
			stream = &fakeStream{created: l.index}
			l.streams[name] = stream
		}
		stream.session, stream.fenced = l.index, previous
		stream.attempts = append(stream.attempts, request.GetAttemptId())
	}
	stream.lastSeen = time.Now()
	return &seqledgerv1.OpenSessionResponse{State: l.stateOf(stream), PreviousSession: stream.fenced}, 0
}

func (l *fakeLedger) stateOf(stream *fakeStream) *seqledgerv1.ClientState {
	return &seqledgerv1.ClientState{
		Status: seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE, LastCommittedSequence: stream.last,
		Session: stream.session, CreatedIndex: stream.created, ReceiptWindow: uint32(l.window),
		LastSeen: timestamppb.New(stream.lastSeen), ExpiresAt: timestamppb.New(stream.lastSeen.Add(l.ttl)),
	}
}

// state answers GetClientState.
func (l *fakeLedger) state(scope *seqledgerv1.Scope, clientID string) *seqledgerv1.ClientState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream := l.streams[streamName(scope, clientID)]; stream != nil {
		return l.stateOf(stream)
	}
	return &seqledgerv1.ClientState{Status: seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN}
}

// evict removes a stream, or every stream that is due when clientID is empty.
func (l *fakeLedger) evict(clientID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, stream := range l.streams {
		due := clientID == "" && time.Since(stream.lastSeen) > l.ttl
		if due || clientID != "" && name == streamName(org, clientID) {
			delete(l.streams, name)
		}
	}
}

// toggle creates or deletes an entity behind everyone's back, as another client
// would, so that conditions change their mind.
func (l *fakeLedger) toggle(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	if _, exists := l.entities[key]; exists {
		delete(l.entities, key)
	} else {
		l.entities[key] = l.index
	}
}

// history returns what was committed, in order.
func (l *fakeLedger) history() []committed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]committed(nil), l.log...)
}

func payloadOf(request *seqledgerv1.WriteRequest) []byte {
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(
		&seqledgerv1.WriteRequest{Operations: request.GetOperations()})
	if err != nil {
		panic(err)
	}
	return payload
}

func refusal(e *seqledgerv1.WriteError) *seqledgerv1.WriteResult {
	return &seqledgerv1.WriteResult{Result: &seqledgerv1.WriteResult_Error{Error: e}}
}
