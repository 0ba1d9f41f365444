package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// keyedWrite returns a write that belongs to a key.
func keyedWrite(key, value string) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{
		Scope: scope(), Namespace: "jobs", IdempotencyKey: key, Operations: []*seqledgerv1.Operation{appendOp(value)},
	}
}

// Each mistake in a keyed write names its field, and a write of a stream has no field of a keyed one.
func TestMalformedKeyedWrites(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{})
	commands := h.ledger.Stats().Commands
	for field, spoil := range map[string]func(w *seqledgerv1.WriteRequest){
		"scope":         func(w *seqledgerv1.WriteRequest) { w.Scope = nil },
		"namespace":     func(w *seqledgerv1.WriteRequest) { w.Namespace = "\n" },
		"principal":     func(w *seqledgerv1.WriteRequest) { w.Principal = strings.Repeat("p", 2_000) },
		"client_id":     func(w *seqledgerv1.WriteRequest) { w.ClientId = "\x01" },
		"operations[0]": func(w *seqledgerv1.WriteRequest) { w.Operations = []*seqledgerv1.Operation{{}} },
		"sequence":      func(w *seqledgerv1.WriteRequest) { w.Sequence, w.ClientId, w.IdempotencyKey = 1, "c", "" },
		"sequence ":     func(w *seqledgerv1.WriteRequest) { w.IdempotencyKey, w.ClientId = "", "c" },
	} {
		w := keyedWrite("k", "job")
		spoil(w)
		err := call(t, h.client.Write, w)
		if got := detail(err); connect.CodeOf(err) != connect.CodeInvalidArgument ||
			got.GetField() != strings.TrimSpace(field) {
			t.Errorf("%s: %v, field %q", field, err, got.GetField())
		}
	}
	stream := h.client.WriteStream(within(t))
	must.Do(t, stream.Send(frameOf(keyedWrite("k", "job"))))
	check.Equal(t, must.Get(stream.Receive())(t).Results[0].GetError().GetCode(),
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT, "a keyed write on a stream: %v")
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	if now := h.ledger.Stats().Commands; now != commands {
		t.Errorf("%d commands reached the log", now-commands)
	}
}

// A stored response that its client does not read takes room of the credential, as any answer does: further ones are
// refused, and what owners must do is not.
func TestUnreadReplaysTakeRoom(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{"slow": `role: writer, scopes: [acme/main], client_ids: ["x"]`})
	c := g.records("slow")
	r := reserveOf("large", 1)
	owned := reply(t, c.Reserve, r)
	reply(t, c.Complete, &seqledgerv1.CompleteRequest{Owner: ownerOf(r, owned.Token),
		Response: bytes.Repeat([]byte{0xa5}, 1<<20)})
	held := reserveOf("held", 1)
	mine := reply(t, c.Reserve, held)
	body := must.Get(proto.Marshal(reserveOf("large", 2)))(t)
	var refused error
	// Each connection takes two mebibytes of 32, once what is between the two sides is full. One whose requests were
	// refused in the crowd may take none, and another one its place.
	eventually(t, "a refusal", func() bool {
		conn := must.Get(net.Dial("tcp", strings.TrimPrefix(g.url, "http://")))(t)
		t.Cleanup(func() { _ = conn.Close() })
		request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/proto\r\nContent-Length: %d\r\n\r\n%s",
			seqledgerv1connect.IdempotencyServiceReserveProcedure, g.keys["slow"], len(body), body)
		// As many as fill the buffers between the two sides.
		must.Get(io.WriteString(conn, strings.Repeat(request, 16)))(t)
		refused = call(t, c.Reserve, reserveOf("large", 3))
		return refused != nil
	})
	check.Equal(t, connect.CodeOf(refused), connect.CodeResourceExhausted, "%v: %v", refused)
	beat := reply(t, c.Heartbeat, &seqledgerv1.HeartbeatRequest{Owner: ownerOf(held, mine.Token)})
	if beat.Outcome != seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK {
		t.Error("an owner cannot keep its lease:", beat)
	}
}

// A key never stands in a URL: GetRecord takes no GET, and the clients that would send one use POST.
func TestNoKeyInAURL(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{})
	reply(t, h.idempotency().Reserve, reserveOf("my-secret-key", 1))
	message := `{"record":{"scope":{"organization":"acme","vault":"main"},"namespace":"POST /charge","key":"my-secret-key"}}`
	target := h.url + seqledgerv1connect.IdempotencyServiceGetRecordProcedure +
		"?connect=v1&encoding=json&message=" + url.QueryEscape(message)
	r := must.Get(http.NewRequestWithContext(within(t), http.MethodGet, target, http.NoBody))(t)
	if status, _, text := h.do(t, r); status != http.StatusMethodNotAllowed {
		t.Errorf("a GET with a key in its query: %d %s", status, text)
	}
	seen := &urlsOf{RoundTripper: h.h1.Transport}
	c := seqledgerv1connect.NewIdempotencyServiceClient(&http.Client{Transport: seen}, h.url, connect.WithHTTPGet())
	answer, err := c.GetRecord(within(t), connect.NewRequest(&seqledgerv1.GetRecordRequest{
		Record: recordKey("my-secret-key"),
	}))
	if err != nil || answer.Msg.GetRecord().GetState() != seqledgerv1.RecordState_RECORD_STATE_PENDING {
		t.Error(answer, err)
	}
	if strings.Contains(seen.last, "?") || !strings.HasPrefix(seen.last, http.MethodPost) {
		t.Error("the client sent", seen.last)
	}
}

// urlsOf notes the last request's method and URL.
type urlsOf struct {
	http.RoundTripper

	last string
}

func (u *urlsOf) RoundTrip(r *http.Request) (*http.Response, error) {
	u.last = r.Method + " " + r.URL.String()
	return u.RoundTripper.RoundTrip(r)
}

// What a request leaves open is as the server's options say.
func TestTimesOfKeys(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{KeyLease: time.Hour, KeyTTL: 48 * time.Hour, KeyRejectedTTL: 2 * time.Hour})
	c := h.idempotency()
	near := func(what string, at *timestamppb.Timestamp, want time.Duration) {
		t.Helper()
		if in := time.Until(at.AsTime()); in < want-time.Minute || in > want+time.Minute {
			t.Errorf("%s in %v, want %v", what, in, want)
		}
	}
	first, before := reserveOf("done", 1), h.ledger.Stats().Commands
	owned := reply(t, c.Reserve, first)
	near("the lease ends", owned.LeaseExpiresAt, time.Hour)
	beat := reply(t, c.Heartbeat, &seqledgerv1.HeartbeatRequest{Owner: ownerOf(first, owned.Token)})
	near("the extended lease ends", beat.LeaseExpiresAt, time.Hour)
	done := reply(t, c.Complete, &seqledgerv1.CompleteRequest{Owner: ownerOf(first, owned.Token)})
	near("the result expires", done.ExpiresAt, 48*time.Hour)
	check.Equal(t, h.ledger.Stats().Commands-before, 3, "a reservation, a heartbeat and a result are %d commands")
	second := reserveOf("refused", 1)
	refused := reply(t, c.Reject, &seqledgerv1.RejectRequest{Owner: ownerOf(second, reply(t, c.Reserve, second).Token)})
	near("the refusal expires", refused.ExpiresAt, 2*time.Hour)
	second = reserveOf("named", 1)
	done = reply(t, c.Complete, &seqledgerv1.CompleteRequest{
		Owner: ownerOf(second, reply(t, c.Reserve, second).Token), Ttl: durationpb.New(3 * time.Hour)})
	near("the result of an owner that says when expires", done.ExpiresAt, 3*time.Hour)
	if _, err := server.New(server.Options{Ledger: h.ledger, KeyLease: time.Millisecond}); err == nil {
		t.Error("a lease of a millisecond is taken")
	}
}

// Credentials that share a namespace have one record for a key there, without the role delegate. For any other
// credential, and in any other namespace or scope, it is another record, and the shared one is out of reach.
func TestSharedNamespaces(t *testing.T) {
	t.Parallel()
	const shares = `role: writer, scopes: [acme/main, acme/shop], client_ids: ["x"], shared_namespaces: [jobs]`
	g := guard(t, server.Options{}, map[string]string{
		"one": shares, "two": shares, "looks": `role: reader, scopes: [acme/main], shared_namespaces: [jobs]`,
		"alone": `role: writer, scopes: [acme/main], client_ids: ["x"]`, "else": `role: writer, scopes: [acme/main], ` +
			`client_ids: ["x"], shared_namespaces: [mail, "jobs/*"]`,
		"away": `role: writer, scopes: [acme/shop], client_ids: ["x"], shared_namespaces: [jobs]`,
	})
	in := func(namespace, principal string, attempt byte) *seqledgerv1.ReserveRequest {
		r := reserveOf("k", attempt)
		r.Record.Namespace, r.Record.Principal = namespace, principal
		return r
	}
	owned := reply(t, g.records("one").Reserve, in("jobs", "", 1))
	outcome := func(id string, r *seqledgerv1.ReserveRequest) seqledgerv1.RecordOutcome {
		t.Helper()
		return reply(t, g.records(id).Reserve, r).Outcome
	}
	const acquired, inFlight = seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED,
		seqledgerv1.RecordOutcome_RECORD_OUTCOME_IN_FLIGHT
	for _, principal := range []string{"", "shared"} {
		check.Equal(t, outcome("two", in("jobs", principal, 2)), inFlight,
			"principal %q: another that shares the namespace: %v", principal)
	}
	for what, got := range map[string]seqledgerv1.RecordOutcome{
		"one that shares none": outcome("alone", in("jobs", "", 3)), "others": outcome("else", in("jobs", "", 4)),
		"another namespace": outcome("two", in("mail", "", 5)), "its own": outcome("two", in("jobs", "client:two", 6)),
	} {
		check.Equal(t, got, acquired, "%s: %v, want a record of its own", what)
	}
	shared := in("jobs", "shared", 7)
	for _, id := range []string{"alone", "else", "away", "looks"} {
		check.Equal(t, connect.CodeOf(call(t, g.records(id).Reserve, shared)), connect.CodePermissionDenied,
			"%s reserves the shared key: %v", id)
		err := call(t, g.records(id).GetRecord, &seqledgerv1.GetRecordRequest{Record: shared.Record})
		if want := id != "looks"; (connect.CodeOf(err) == connect.CodePermissionDenied) != want {
			t.Errorf("%s reads the shared record: %v", id, err)
		}
	}
	owner := ownerOf(in("jobs", "", 1), owned.Token)
	check.Equal(t, reply(t, g.records("two").Complete, &seqledgerv1.CompleteRequest{Owner: owner}).Outcome,
		seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK, "another process completes what the first has reserved: %v")
	record := reply(t, g.records("one").GetRecord,
		&seqledgerv1.GetRecordRequest{Record: in("jobs", "", 1).Record}).Record
	if record.Principal != "shared" || record.State != seqledgerv1.RecordState_RECORD_STATE_COMMITTED {
		t.Error(record)
	}
	for what, test := range map[string]struct {
		id   string
		m    *seqledgerv1.ListRecordsRequest
		want int
	}{
		"the shared ones": {"two", &seqledgerv1.ListRecordsRequest{Scope: scope(), Namespace: "jobs"}, 1},
		"its own":         {"two", &seqledgerv1.ListRecordsRequest{Scope: scope()}, 2},
		"an admin's list of all": {"foreman", &seqledgerv1.ListRecordsRequest{
			Scope: scope(), Namespace: "jobs", EveryPrincipal: true}, 4},
	} {
		if got := reply(t, g.records(test.id).ListRecords, test.m).Records; len(got) != test.want {
			t.Errorf("%s: %d records, want %d: %v", what, len(got), test.want, got)
		}
	}
	write := func(id string) *seqledgerv1.Receipt {
		t.Helper()
		c := seqledgerv1connect.NewLedgerServiceClient(
			&http.Client{Transport: withBearer{g.keys[id], g.h2.Transport}}, g.url)
		return reply(t, c.Write, keyedWrite("job", "once")).Receipt
	}
	first, second, other := write("one"), write("two"), write("alone")
	if !second.Replayed || second.TxId != first.TxId || other.Replayed || first.Actor != "client:one" {
		t.Errorf("a keyed write: %v, %v, %v", first, second, other)
	}
}
