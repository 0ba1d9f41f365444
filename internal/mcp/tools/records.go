package tools

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/idempotency"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// addRecords adds the tools for records of keys.
func (t *tools) addRecords(s *mcp.Server) {
	add(s, "reserve", "Take a key before an action that must not happen twice. Do the action only if the outcome is "+
		"ACQUIRED, then call complete or reject. A repeat of the call with the same attempt_id gets the same answer.",
		hints("Reserve a key", false, true, false), t.reserve)
	add(s, "complete", "Store the result of an action that was done, so that every repeat of it gets this result. "+
		"Safe to "+
		"repeat.", hints("Store a result", false, true, false), t.complete)
	add(s, "reject", "Store that an action was refused for good (a declined card, an invalid order) and was not done. "+
		"Never for a timeout or an unknown outcome. Safe to repeat.", hints("Store a refusal", false, true, false),
		t.reject)
	add(s, "heartbeat", "Keep a reserved key while its action takes longer than the lease. Stop the action when the "+
		"outcome is LEASE_LOST.", hints("Keep a key", false, true, false), t.heartbeat)
	add(s, "look_up", "Read what has become of a key, without changing anything.",
		hints("Look a key up", true, true, false), t.lookUp)
	add(s, "resolve", "Settle a key whose outcome is INDETERMINATE, once you have found out, from the system that "+
		"does "+
		"the action, whether it was done. It cannot be undone. Never guess.",
		hints("Settle an unknown outcome", false, true,
			true), t.resolve)
}

type reserveInput struct {
	record

	Request        any    `json:"request" jsonschema:"the action's parameters; a repeat with other ones is refused"`
	AttemptID      string `json:"attempt_id,omitempty" jsonschema:"32 hex digits of your choice, the same when you repeat this call because its answer was lost"`
	LeaseSeconds   int64  `json:"lease_seconds,omitempty" jsonschema:"how long you may be silent: 1 to 86400, default 60"`
	TTLSeconds     int64  `json:"ttl_seconds,omitempty" jsonschema:"how long the result is kept, default 86400"`
	ForgetAfter    int64  `json:"forget_after_seconds,omitempty" jsonschema:"how long the key stays taken after the action has ended, at least ttl_seconds: later repeats are EXPIRED and not done again; default as long as the result"`
	WaitSeconds    int64  `json:"wait_seconds,omitempty" jsonschema:"how long to wait while another owner is at work: at most 60"`
	OnLeaseExpired string `json:"on_lease_expired,omitempty" jsonschema:"indeterminate (default: never done twice) or takeover (the action may run again)"`
}

type reserveOutput struct {
	Outcome           string        `json:"outcome" jsonschema:"ACQUIRED, REPLAY, IN_FLIGHT, MISMATCH, INDETERMINATE, EXPIRED, STALE or LEASE_LOST"`
	Next              string        `json:"next" jsonschema:"what to do now"`
	Token             string        `json:"token,omitempty" jsonschema:"only with ACQUIRED; complete and reject need it"`
	AttemptID         string        `json:"attempt_id,omitempty" jsonschema:"complete and reject need it"`
	Attempt           uint64        `json:"attempt,omitempty" jsonschema:"which owner you are, from 1"`
	Checkpoint        string        `json:"checkpoint,omitempty" jsonschema:"what the owner before has left"`
	CheckpointBase64  string        `json:"checkpoint_base64,omitempty" jsonschema:"the same in base64, where it is not text"`
	LeaseExpiresAt    string        `json:"lease_expires_at,omitempty"`
	RetryAfterSeconds float64       `json:"retry_after_seconds,omitempty"`
	Record            *recordOutput `json:"record,omitempty" jsonschema:"with REPLAY, INDETERMINATE and EXPIRED"`
}

// unknownNext says what to do if the outcome of an action is unknown.
const unknownNext = "The action may have happened: do not do it. Ask the system that does it whether it happened, " +
	"then call resolve."

// expiredNext says what to do about an action of which only the request is known.
const expiredNext = "The action was begun too long ago for its result: do not do it again. Ask the system that does " +
	"it what became of it."

// nextAfter says what to do after an outcome.
var nextAfter = map[seqledgerv1.RecordOutcome]string{
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED: "You own the key: do the action now, once, and then call " +
		"complete with token and attempt_id, or reject if it was refused for good.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_REPLAY: "The action was finished before: do not do it again; use " +
		"record.response.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_IN_FLIGHT: "Another owner is doing the action: do nothing, and repeat " +
		"this call with the same key after retry_after_seconds at the latest.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_MISMATCH: "The key stands for another request: do nothing. Take a new " +
		"key only if this is a new action.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_INDETERMINATE: unknownNext,
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_EXPIRED:       expiredNext,
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_STALE: "The call came too late and nothing is reserved: call again " +
		"with a new attempt_id and the same key.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_LEASE_LOST: "This attempt has ended and you do not own the key: stop " +
		"the action. Call reserve with a new attempt_id and the same key to see what became of it.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_ALREADY_COMPLETED: "The key is finished with another result, which " +
		"stands: see record.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK: "Done.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FOUND: "There is no record of this key: nothing was settled. " +
		"Check key and namespace.",
	seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FINAL: "The owner may still be at work: nothing was settled. Call " +
		"again when its lease has ended; look_up shows when.",
}

// outcome returns the name of an outcome and what to do.
func outcome(o seqledgerv1.RecordOutcome) (name, next string) {
	return strings.TrimPrefix(o.String(), "RECORD_OUTCOME_"), nextAfter[o]
}

// validity is how long a reserve may be in flight: a copy that arrives later reserves nothing.
const validity = idempotency.DefaultValidity

func (t *tools) reserve(ctx context.Context, in *reserveInput) (*reserveOutput, error) {
	key, err := t.key(&in.record)
	if err != nil {
		return nil, err
	}
	print, err := fingerprint(ctx, in.Request)
	if err != nil {
		return nil, err
	}
	if in.AttemptID == "" {
		id := idempotency.NewAttemptID()
		in.AttemptID = hex.EncodeToString(id[:])
	}
	id, err := attemptID(in.AttemptID)
	if err != nil {
		return nil, err
	}
	request := &seqledgerv1.ReserveRequest{
		Record: key, Fingerprint: print, AttemptId: id, ValidUntil: timestamppb.New(time.Now().Add(validity)),
		Lease: seconds(in.LeaseSeconds), Ttl: seconds(in.TTLSeconds), Wait: seconds(in.WaitSeconds),
		ForgetAfter: seconds(in.ForgetAfter),
	}
	switch in.OnLeaseExpired {
	case "", "indeterminate":
	case "takeover":
		request.OnLeaseExpired = seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER
	default:
		return nil, errors.New("on_lease_expired must be indeterminate or takeover; nothing was done")
	}
	wait := min(max(0, time.Duration(in.WaitSeconds)*time.Second), idempotency.MaxWait)
	ctx, cancel := t.within(ctx, wait)
	defer cancel()
	answer, err := t.Client.Reserve(ctx, request)
	if err != nil {
		return nil, advise(err)
	}
	out := &reserveOutput{AttemptID: in.AttemptID, Attempt: answer.GetAttempt(),
		LeaseExpiresAt: moment(answer.GetLeaseExpiresAt()), Record: showRecord(answer.GetRecord()),
		RetryAfterSeconds: answer.GetRetryAfter().AsDuration().Seconds()}
	out.Checkpoint, out.CheckpointBase64 = textOrBytes(answer.GetCheckpoint())
	if out.Outcome, out.Next = outcome(answer.GetOutcome()); answer.GetToken() != 0 {
		out.Token = number(answer.GetToken())
	}
	if answer.GetIncomparable() {
		out.Next = unknownNext
	}
	return out, nil
}

type finishInput struct {
	owner

	Response   string `json:"response,omitempty" jsonschema:"the result, which repeats get: at most 1 MiB"`
	TTLSeconds int64  `json:"ttl_seconds,omitempty" jsonschema:"how long it is kept; leave it out for what reserve asked for"`
}

type finishOutput struct {
	Outcome   string        `json:"outcome" jsonschema:"OK, ALREADY_COMPLETED, EXPIRED, LEASE_LOST, NOT_FOUND or NOT_FINAL"`
	Next      string        `json:"next" jsonschema:"what to do now"`
	ExpiresAt string        `json:"expires_at,omitempty" jsonschema:"when the result, or the lease, ends"`
	Record    *recordOutput `json:"record,omitempty" jsonschema:"the result that stands, if it is another one"`
}

// finished returns the output of a call that ends an ownership.
func finished(
	o seqledgerv1.RecordOutcome, expires *timestamppb.Timestamp, record *seqledgerv1.IdempotencyRecord, err error,
) (*finishOutput, error) {
	if err != nil {
		return nil, advise(err)
	}
	out := &finishOutput{ExpiresAt: moment(expires), Record: showRecord(record)}
	out.Outcome, out.Next = outcome(o)
	return out, nil
}

func (t *tools) complete(ctx context.Context, in *finishInput) (*finishOutput, error) {
	owner, err := t.ownership(&in.owner)
	if err != nil {
		return nil, err
	}
	ctx, cancel := t.within(ctx, 0)
	defer cancel()
	answer, err := t.Client.Complete(ctx, &seqledgerv1.CompleteRequest{
		Owner: owner, Response: []byte(in.Response), Ttl: seconds(in.TTLSeconds),
	})
	return finished(answer.GetOutcome(), answer.GetExpiresAt(), answer.GetRecord(), err)
}

func (t *tools) reject(ctx context.Context, in *finishInput) (*finishOutput, error) {
	owner, err := t.ownership(&in.owner)
	if err != nil {
		return nil, err
	}
	ctx, cancel := t.within(ctx, 0)
	defer cancel()
	answer, err := t.Client.Reject(ctx, &seqledgerv1.RejectRequest{
		Owner: owner, Response: []byte(in.Response), Ttl: seconds(in.TTLSeconds),
	})
	return finished(answer.GetOutcome(), answer.GetExpiresAt(), answer.GetRecord(), err)
}

type heartbeatInput struct {
	owner

	LeaseSeconds int64 `json:"lease_seconds,omitempty" jsonschema:"how long you may be silent from now on: 1 to 86400, default 60"`
}

func (t *tools) heartbeat(ctx context.Context, in *heartbeatInput) (*finishOutput, error) {
	owner, err := t.ownership(&in.owner)
	if err != nil {
		return nil, err
	}
	ctx, cancel := t.within(ctx, 0)
	defer cancel()
	answer, err := t.Client.Heartbeat(ctx, &seqledgerv1.HeartbeatRequest{Owner: owner, Lease: seconds(in.LeaseSeconds)})
	return finished(answer.GetOutcome(), answer.GetLeaseExpiresAt(), nil, err)
}

type lookUpOutput struct {
	Found  bool          `json:"found"`
	Next   string        `json:"next" jsonschema:"what to do now"`
	Record *recordOutput `json:"record,omitempty"`
}

// nextIn says what to do about a record that was read.
var nextIn = map[seqledgerv1.RecordState]string{
	seqledgerv1.RecordState_RECORD_STATE_PENDING: "An owner is at work, or was killed. Wait; do not do the action. " +
		"Look again when the lease has ended.",
	seqledgerv1.RecordState_RECORD_STATE_COMMITTED:     "The action was done: do not do it again; use record.response.",
	seqledgerv1.RecordState_RECORD_STATE_REJECTED:      "The action was refused for good and was not done.",
	seqledgerv1.RecordState_RECORD_STATE_INDETERMINATE: unknownNext,
	seqledgerv1.RecordState_RECORD_STATE_WRITTEN:       "The write is committed.",
	seqledgerv1.RecordState_RECORD_STATE_EXPIRED:       expiredNext,
}

func (t *tools) lookUp(ctx context.Context, in *record) (*lookUpOutput, error) {
	key, err := t.key(in)
	if err != nil {
		return nil, err
	}
	ctx, cancel := t.within(ctx, 0)
	defer cancel()
	r, err := t.Client.GetRecord(ctx, &seqledgerv1.GetRecordRequest{Record: key})
	switch {
	case errors.Is(err, failure.ErrNotFound):
		return &lookUpOutput{Next: "There is no record of this key: the action was never begun under it, or it is " +
			"forgotten. " +
			"Call reserve before you do the action."}, nil
	case err != nil:
		return nil, advise(err)
	}
	return &lookUpOutput{Found: true, Next: nextIn[r.GetState()], Record: showRecord(r)}, nil
}

type resolveInput struct {
	record

	State      string `json:"state" jsonschema:"what the action turned out to be: committed (it was done) or rejected (it was not)"`
	Response   string `json:"response,omitempty" jsonschema:"the result, which repeats get"`
	TTLSeconds int64  `json:"ttl_seconds,omitempty" jsonschema:"how long it is kept; leave it out for what reserve asked for"`
}

func (t *tools) resolve(ctx context.Context, in *resolveInput) (*finishOutput, error) {
	key, err := t.key(&in.record)
	if err != nil {
		return nil, err
	}
	state := seqledgerv1.RecordState_RECORD_STATE_COMMITTED
	switch in.State {
	case "committed":
	case "rejected":
		state = seqledgerv1.RecordState_RECORD_STATE_REJECTED
	default:
		return nil, errors.New("state must be committed or rejected; nothing was settled")
	}
	ctx, cancel := t.within(ctx, 0)
	defer cancel()
	answer, err := t.Client.ResolveRecord(ctx, &seqledgerv1.ResolveRecordRequest{
		Record: key, State: state, Response: []byte(in.Response), Ttl: seconds(in.TTLSeconds),
	})
	return finished(answer.GetOutcome(), nil, answer.GetRecord(), err)
}
