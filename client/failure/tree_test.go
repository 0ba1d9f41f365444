package failure

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// drawTree draws a tree of errors. It appends its refusals in the order of a walk, and its other leaves.
func drawTree(t *rapid.T, depth int, refusals *[]*Error, others *[]error) error {
	kind := rapid.IntRange(0, 4).Draw(t, "kind")
	if depth == 0 {
		kind %= 3
	}
	switch kind {
	case 0:
		codes := []seqledgerv1.WriteErrorCode{
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED, 999,
		}
		e := FromStream(&seqledgerv1.WriteError{Code: rapid.SampledFrom(codes).Draw(t, "code")})
		*refusals = append(*refusals, e)
		return e
	case 1:
		e := FromConnect(connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF), 0)
		*others = append(*others, e)
		return e
	case 2:
		e := fmt.Errorf("leaf %d", rapid.Int().Draw(t, "leaf"))
		*others = append(*others, e)
		return e
	case 3:
		return fmt.Errorf("wrapped: %w", drawTree(t, depth-1, refusals, others))
	default:
		return fmt.Errorf("%w, then %w", drawTree(t, depth-1, refusals, others), drawTree(t, depth-1, refusals, others))
	}
}

// TestAnOpenOutcomeInAnyTree: Refusal is the first refusal of the cause, errors.Is finds none as the write's own, and
// every other error is found. The end of the stream is found, because it concerns the stream.
func TestAnOpenOutcomeInAnyTree(t *testing.T) {
	t.Parallel()
	met := map[string]bool{"a refusal beside another error": false, "no refusal": false, "two refusals": false}
	rapidtest.CheckUntil(t,
		func() string {
			for what, seen := range met {
				if !seen {
					return what
				}
			}
			return ""
		},
		func(t *rapid.T) {
			var refusals []*Error
			var others []error
			cause := drawTree(t, 4, &refusals, &others)
			err := error(fmt.Errorf("outer: %w", OutcomeUnknown(3, "k", cause)))
			switch {
			case len(refusals) > 0 && len(others) > 0:
				met["a refusal beside another error"] = true
			case len(refusals) == 0:
				met["no refusal"] = true
			}
			if len(refusals) > 1 {
				met["two refusals"] = true
			}
			open, ok := errors.AsType[*OutcomeUnknownError](err)
			if !ok || !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNotExecuted) {
				t.Fatalf("want only an unknown outcome, got %v", err)
			}
			var first *Error
			if len(refusals) > 0 {
				first = refusals[0]
			}
			if open.Refusal != first || CodeOf(err) != 0 || errors.Is(err, ErrConditionFailed) {
				t.Fatalf("from %v: Refusal is %v, and errors.As finds %v", cause, open.Refusal, CodeOf(err))
			}
			for _, other := range others {
				must.Is(t, err, other, "%v is not found in", other)
			}
			for _, stream := range []error{ErrFenced, ErrExpired} {
				if want := first != nil && first.Is(stream); errors.Is(err, stream) != want {
					t.Fatalf("%v in %v: want %v", stream, cause, want)
				}
			}
		})
}

// TestAnswersOfIntermediaries: the HTTP status of an answer that is not the ledger's tells whether a repeat may help,
// and never decides a write.
func TestAnswersOfIntermediaries(t *testing.T) {
	t.Parallel()
	for status := 100; status < 600; status++ {
		e := FromConnect(connect.NewError(connect.CodeUnknown, errors.New("HTTP status")), status)
		want := status >= 500 && status != http.StatusNotImplemented && status != http.StatusHTTPVersionNotSupported ||
			status == http.StatusOK || // a body that broke off
			status == http.StatusRequestTimeout || status == http.StatusTooEarly || status == http.StatusTooManyRequests
		if e.IsTemporary() != want || e.IsFinal() || !e.IsOpen() || e.IsWire() {
			t.Errorf("status %d: temporary %v, final %v, open %v", status, e.IsTemporary(), e.IsFinal(), e.IsOpen())
		}
	}
	// In Connect's own form the status has no meaning.
	e := FromConnect(connect.NewWireError(connect.CodeNotFound, nil), http.StatusServiceUnavailable)
	if e.IsTemporary() || !errors.Is(e, ErrNotFound) || !e.IsWire() {
		t.Errorf("the HTTP status must not count in the ledger's own answer: %+v", e)
	}
}

// TestTLSRefusals: a TLS refusal is not temporary, because nothing was sent and a repeat fails the same way.
func TestTLSRefusals(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{&tls.CertificateVerificationError{Err: io.EOF}, tls.RecordHeaderError{Msg: "m"}} {
		if e := FromConnect(connect.NewError(connect.CodeUnavailable, cause), 0); e.IsTemporary() || e.IsElsewhere() {
			t.Errorf("%T must not be temporary", cause)
		}
	}
	if e := FromConnect(connect.NewError(connect.CodeUnavailable, io.EOF), 0); !e.IsTemporary() || !e.IsElsewhere() {
		t.Error("a broken connection must be temporary")
	}
}

// TestWhatAnotherServerMayTake: a server that is full refuses on the ledger's behalf, so the next one would refuse
// too. A server that is not the leader, or drains, sends the client on.
func TestWhatAnotherServerMayTake(t *testing.T) {
	t.Parallel()
	for number, name := range seqledgerv1.WriteErrorCode_name {
		if number == 0 {
			continue
		}
		code := seqledgerv1.WriteErrorCode(number)
		e := FromStream(&seqledgerv1.WriteError{Code: code})
		want := code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER ||
			code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING
		check.Equal(t, e.IsElsewhere(), want, "%s: another server may take the call: %v", name)
		unknown := code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN
		temporary := want || unknown || code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL
		if e.IsTemporary() != temporary || e.IsFinal() == temporary ||
			errors.Is(e, ErrUnavailable) != (temporary && !unknown) {
			t.Errorf("%s is temporary: %v, final: %v", name, e.IsTemporary(), e.IsFinal())
		}
	}
	full := FromConnect(connect.NewWireError(connect.CodeResourceExhausted, nil), 0)
	if full.IsElsewhere() || !full.IsTemporary() || full.RefusesMessage() {
		t.Errorf("a full server: %+v", full)
	}
	if !FromConnect(connect.NewWireError(connect.CodeInvalidArgument, nil), 0).RefusesMessage() ||
		FromConnect(connect.NewError(connect.CodeInvalidArgument, nil), 0).RefusesMessage() {
		t.Error("only the server itself refuses a message")
	}
}

// TestAChallenge: only a seqledger server's own challenge counts, not that of a proxy in front of it.
func TestAChallenge(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		`Bearer realm="seqledger"`: true, `Bearer realm="seqledger", error="invalid_token"`: true,
		`Basic realm="proxy"`: false, "": false, `Bearer realm="other"`: false,
	} {
		for _, wire := range []bool{true, false} {
			err := connect.NewError(connect.CodeUnauthenticated, nil)
			if wire {
				err = connect.NewWireError(connect.CodeUnauthenticated, nil)
			}
			err.Meta().Set("WWW-Authenticate", header)
			check.Equal(t, FromConnect(err, 0).IsChallenge(), want && wire, "%q, from the wire %v: a challenge %v",
				header, wire)
		}
	}
}

// TestTexts: the text names the code, the field and the number.
func TestTexts(t *testing.T) {
	t.Parallel()
	refusal := FromStream(&seqledgerv1.WriteError{
		Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, Field: "key", Message: "is empty"})
	for _, test := range []struct {
		err  error
		want string
	}{
		{refusal, "INVALID_ARGUMENT (key): is empty"},
		{FromConnect(connect.NewError(connect.CodeUnavailable, errors.New("no route")), 0), "unavailable: no route"},
		{&NotExecutedError{Cause: refusal}, "write not executed: INVALID_ARGUMENT (key): is empty"},
		{&NotExecutedError{Sequence: 4, Cause: context.Canceled}, "write 4 not executed: context canceled"},
		{OutcomeUnknown(5, "k", context.Canceled),
			"outcome of write 5 (key k) unknown, repeat the same sequence and key " +
				"or ask GetClientState: context canceled"},
	} {
		if test.err.Error() != test.want {
			t.Errorf("%q, want %q", test.err, test.want)
		}
	}
	if !errors.Is(&NotExecutedError{Cause: context.Canceled}, context.Canceled) || CodeOf(nil) != 0 {
		t.Error("the cause is not found")
	}
}
