package failure

import (
	"errors"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestEveryCodeRoundTrips converts each code as the detail of an RPC error and as a result in a stream. Both give the
// same Error, with every field and the Connect code of the API's table.
func TestEveryCodeRoundTrips(t *testing.T) {
	t.Parallel()
	sentinels := map[string]error{
		"SESSION_FENCED": ErrFenced, "SESSION_EXPIRED": ErrExpired, "OUTCOME_UNKNOWN": ErrOutcomeUnknown,
		"ALREADY_COMMITTED": ErrAlreadyCommitted, "KEY_EXISTS": ErrConditionFailed,
		"KEY_NOT_FOUND": ErrConditionFailed, "VERSION_MISMATCH": ErrConditionFailed,
		"VALUE_MISMATCH": ErrConditionFailed,
	}
	connectCodes := map[string]connect.Code{
		"ALREADY_COMMITTED": connect.CodeAlreadyExists, "INVALID_ARGUMENT": connect.CodeInvalidArgument,
		"PERMISSION_DENIED": connect.CodePermissionDenied, "QUEUE_FULL": connect.CodeResourceExhausted,
		"TOO_MANY_STREAMS": connect.CodeResourceExhausted, "NOT_LEADER": connect.CodeUnavailable,
		"DRAINING": connect.CodeUnavailable, "OUTCOME_UNKNOWN": connect.CodeUnavailable,
		"UNSPECIFIED": connect.CodeUnknown,
	}
	for number, full := range seqledgerv1.WriteErrorCode_name {
		name := full[len("WRITE_ERROR_CODE_"):]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, listed := connectCodes[name]
			if !listed {
				want = connect.CodeFailedPrecondition
			}
			wire := &seqledgerv1.WriteError{
				Code: seqledgerv1.WriteErrorCode(number), Message: "why", LastCommittedSequence: 1, Session: 2,
				CommittedSequence: 3, OperationIndex: 4, Key: "k", CurrentVersion: 5, Field: "f",
				RetryAfter: durationpb.New(6 * time.Second), LeaderAddress: "l:1",
			}
			rpc := connect.NewError(want, errors.New("why"))
			detail := must.Get(connect.NewErrorDetail(wire))(t)
			rpc.AddDetail(detail)
			fromRPC, fromStream := FromConnect(rpc, 0), FromStream(wire)
			fromRPC.cause, fromRPC.wire = nil, true // the only intended differences
			if *fromRPC != *fromStream {
				t.Errorf("the two ways differ:\n%+v\n%+v", fromRPC, fromStream)
			}
			expected := Error{
				Code: wire.GetCode(), ConnectCode: want, Message: "why", LastCommittedSequence: 1, Session: 2,
				CommittedSequence: 3, OperationIndex: 4, Key: "k", CurrentVersion: 5, Field: "f",
				RetryAfter: 6 * time.Second, LeaderAddress: "l:1", wire: true,
			}
			if *fromStream != expected {
				t.Errorf("got %+v\nwant %+v", fromStream, expected)
			}
			for _, sentinel := range []error{ErrFenced, ErrExpired, ErrOutcomeUnknown, ErrAlreadyCommitted,
				ErrConditionFailed} {
				//nolint:errorlint // Which of the sentinels it is, not what it wraps.
				want := sentinels[name] == sentinel
				check.Equal(t, errors.Is(fromStream, sentinel), want, "errors.Is(%s, %v) is %v", name, sentinel)
			}
			check.Equal(t, CodeOf(&NotExecutedError{Cause: fromStream}), wire.GetCode(),
				"CodeOf must find the code through the wrapping: %v")
		})
	}
}

// TestACodeOfANewerServerIsNeverTakenForARefusal: an unknown code leaves the outcome open, because the client cannot
// tell what the code means.
func TestACodeOfANewerServerIsNeverTakenForARefusal(t *testing.T) {
	t.Parallel()
	newer := FromStream(&seqledgerv1.WriteError{Code: 999})
	if !newer.IsOpen() || !newer.IsFinal() {
		t.Error("an unknown code must leave the outcome open, and not be repeated")
	}
}

// TestErrorsWithoutADetail: a bare code leaves a write's outcome open, unless it refuses the whole call.
func TestErrorsWithoutADetail(t *testing.T) {
	t.Parallel()
	for code, open := range map[connect.Code]bool{
		connect.CodeUnavailable: true, connect.CodeInternal: true, connect.CodeDeadlineExceeded: true,
		connect.CodeUnknown: true, connect.CodeUnauthenticated: false, connect.CodePermissionDenied: false,
		connect.CodeUnimplemented: false,
	} {
		check.Equal(t, FromConnect(connect.NewWireError(code, nil), 0).IsOpen(), open, "%v leaves the outcome open: %v",
			code)
		// An error made by this side or by a proxy is not an answer of the server.
		if !FromConnect(connect.NewError(code, nil), 0).IsOpen() {
			t.Errorf("%v made on this side must leave the outcome open", code)
		}
	}
	plain := errors.New("plain")
	if e := FromConnect(plain, 0); !errors.Is(e, plain) || !e.IsOpen() || !e.IsTemporary() {
		t.Error("an error of the transport must keep its cause, leave the outcome open and be temporary")
	}
}

func encoded(f testing.TB, m proto.Message) []byte {
	f.Helper()
	b := must.Get(proto.Marshal(m))(f)
	return b
}

// FuzzServerError: an error with any details is converted to one Error, keeps its code, and leaves the outcome open
// unless the server itself has decided.
func FuzzServerError(f *testing.F) {
	refusal := encoded(f, &seqledgerv1.WriteError{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS,
		Message: "m", Key: "k"})
	f.Add(uint32(connect.CodeFailedPrecondition), "said", "type.googleapis.com/seqledger.v1.WriteError", refusal, true)
	f.Add(uint32(connect.CodeUnavailable), "", "type.googleapis.com/seqledger.v1.WriteError", refusal[:3], false)
	f.Add(uint32(99), "\xff", "seqledger.v1.Nothing", []byte{}, true)
	f.Add(uint32(0), "", "", []byte{8, 99}, true)
	f.Fuzz(func(t *testing.T, code uint32, message, kind string, detail []byte, wire bool) {
		failure := connect.NewError(connect.Code(code), errors.New(message))
		if wire {
			failure = connect.NewWireError(connect.Code(code), errors.New(message))
		}
		added := must.Get(connect.NewErrorDetail(&anypb.Any{TypeUrl: kind, Value: detail}))(t)
		failure.AddDetail(added)
		e := FromConnect(failure, 0)
		if e.ConnectCode != connect.Code(code) || e.Error() == "" || !errors.Is(e, failure) {
			t.Errorf("%v became %v with code %v", failure, e, e.ConnectCode)
		}
		if utf8.ValidString(message) && !utf8.ValidString(e.Error()) {
			t.Errorf("%q is not UTF-8", e.Error())
		}
		if !wire && !e.IsOpen() {
			t.Errorf("%v did not come from the server, but counts as its decision", e)
		}
		_, known := seqledgerv1.WriteErrorCode_name[int32(e.Code)]
		if !known && !e.IsOpen() {
			t.Errorf("%v has an unknown code, but counts as a decision", e)
		}
	})
}
