package server_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// TestMetricsAreWellNamed asks Prometheus's own linter, after enough has happened that every metric is there.
func TestMetricsAreWellNamed(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.mustWrite(t, writeOf("c", 1, appendOp("x")))
	status, text := h.get(t, "/metrics")
	if status != http.StatusOK || !strings.Contains(text, "# HELP seqledger_requests_total ") {
		t.Fatal(status, text)
	}
	problems := must.Get(promlint.New(strings.NewReader(text)).Lint())(t)
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "seqledger_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for line := range strings.Lines(text) {
		if help, ok := strings.CutPrefix(line, "# HELP seqledger_"); ok && len(strings.Fields(help)) < 3 {
			t.Errorf("%q helps nobody", line)
		}
	}
}

// decisionCase is a command and the code that it must be counted under.
type decisionCase struct {
	code    string
	request *seqledgerv1.WriteRequest
}

// decisionCases are to be sent in their order to a ledger with a window of one receipt and room for three streams.
func decisionCases() []decisionCase {
	keyed := func(key string, m *seqledgerv1.WriteRequest) *seqledgerv1.WriteRequest {
		m = proto.CloneOf(m)
		m.IdempotencyKey = key
		return m
	}
	conditional := func(sequence uint64, key string, c *seqledgerv1.Condition) *seqledgerv1.WriteRequest {
		o := setOp(key, "v")
		o.GetSetEntity().Condition = c
		return writeOf("a", sequence, o)
	}
	inSession := func(session uint64, m *seqledgerv1.WriteRequest) *seqledgerv1.WriteRequest {
		m.Session = session
		return m
	}
	const one, two = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
	return []decisionCase{
		{"COMMITTED", writeOf("a", 1, setOp("k", "v"))},
		{"COMMITTED", keyed(one, writeOf("a", 2, appendOp("x")))},
		{"REPLAYED", keyed(one, writeOf("a", 2, appendOp("x")))},
		{"ALREADY_COMMITTED", writeOf("a", 1, setOp("k", "v"))},
		{"IDEMPOTENCY_KEY_REUSED", keyed(one, writeOf("a", 3, appendOp("y")))},
		{"SEQUENCE_REUSED", keyed(two, writeOf("a", 2, appendOp("z")))},
		{"SEQUENCE_GAP", writeOf("a", 9, appendOp("x"))},
		{"SEQUENCE_EXHAUSTED", writeOf("a", 1<<64-1, appendOp("x"))},
		{"SESSION_EXPIRED", inSession(1<<40, writeOf("a", 3, appendOp("x")))},
		{"SESSION_FENCED", inSession(1, writeOf("s", 1, appendOp("x")))},
		{"SESSION_REQUIRED", writeOf("s", 1, appendOp("x"))},
		{"KEY_EXISTS", conditional(3, "k",
			&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}})},
		{"KEY_NOT_FOUND", conditional(3, "no",
			&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}})},
		{"VERSION_MISMATCH", conditional(3, "k",
			&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: 9}})},
		{"VALUE_MISMATCH", conditional(3, "k",
			&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: []byte("w")}})},
		{"COMMITTED", writeOf("b", 1, appendOp("x"))},
		{"TOO_MANY_STREAMS", writeOf("c", 1, appendOp("x"))},
		{"INVALID_ARGUMENT", writeOf("a", 0, appendOp("x"))},
	}
}

// results returns seqledger_results_total by "method code".
func (h *harness) results(t testing.TB) map[string]int {
	t.Helper()
	_, text := h.get(t, "/metrics")
	counts := map[string]int{}
	for line := range strings.Lines(text) {
		labels, ok := strings.CutPrefix(line, `seqledger_results_total{code="`)
		if !ok {
			continue
		}
		parts := strings.Split(labels, `"`)
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(parts[len(parts)-1], "} ")))
		must.Do(t, err, "%v", line)
		counts[parts[2]+" "+parts[0]] = n
	}
	return counts
}

// TestGatesAreCounted: a refused stream is, and an open one shows by its kind.
func TestGatesAreCounted(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{MaxOpenStreams: 1})
	stream := h.client.WriteStream(within(t))
	must.Do(t, stream.Send(frameOf(writeOf("c", 1, appendOp("x")))))
	receive(t, stream, 1)
	second := h.client.WriteStream(within(t))
	must.Do(t, second.Send(nil))
	if _, err := second.Receive(); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Error(err)
	}
	for name, want := range map[string]string{
		`seqledger_gate_refusals_total{gate="streams",of="server"}`:  "1",
		`seqledger_gate_refusals_total{gate="requests",of="server"}`: "0",
		`seqledger_write_streams_open`:                               "1", `seqledger_watches_open`: "0",
		`seqledger_write_streams_own_connection`: "0",
	} {
		check.Equal(t, h.metric(t, name), want, "%s is %q", name)
	}
	end(t, stream)
	h.awaitStreams(t, "0")
	check.Equal(t, h.metric(t, "seqledger_write_streams_open"), "0", "%s write streams are open after the last ended")
}

// What happens to keys is counted, and no key, namespace, principal or client id is in a label or anywhere else in the
// metrics.
func TestKeyedMetrics(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{})
	const secret = "secret"
	record := func(key string) *seqledgerv1.RecordKey {
		return &seqledgerv1.RecordKey{Scope: &seqledgerv1.Scope{Organization: secret + "-organization"},
			Namespace: secret + "-namespace", Principal: secret + "-principal", Key: secret + "-" + key}
	}
	reserve := func(key string, attempt byte) *seqledgerv1.ReserveRequest {
		r := reserveOf(key, attempt)
		r.Record = record(key)
		return r
	}
	c := h.idempotency()
	first := reserve("done", 1)
	token := reply(t, c.Reserve, first).Token
	reply(t, c.Reserve, reserve("done", 2))
	reply(t, c.Complete, &seqledgerv1.CompleteRequest{Owner: ownerOf(first, token)})
	reply(t, c.Reserve, reserve("done", 3))
	other := reserve("done", 4)
	other.Fingerprint.Digest[0]++
	reply(t, c.Reserve, other)
	reply(t, c.Reserve, reserve("pending", 1))
	w := keyedWrite("a-job", "x")
	w.Namespace, w.ClientId, w.IdempotencyKey = secret+"-namespace", secret+"-client", secret+"-write"
	for range 2 {
		reply(t, h.client.Write, proto.CloneOf(w))
	}
	_, text := h.get(t, "/metrics")
	if strings.Contains(text, secret) {
		t.Error("the metrics have what a client has chosen")
	}
	for _, want := range []string{
		`seqledger_keyed_calls_total{call="reserve",code="ACQUIRED"} 2`,
		`seqledger_keyed_calls_total{call="reserve",code="IN_FLIGHT"} 1`,
		`seqledger_keyed_calls_total{call="reserve",code="REPLAY"} 1`,
		`seqledger_keyed_calls_total{call="reserve",code="MISMATCH"} 1`,
		`seqledger_keyed_calls_total{call="reserve",code="INDETERMINATE"} 0`,
		`seqledger_keyed_calls_total{call="complete",code="OK"} 1`,
		`seqledger_keyed_calls_total{call="heartbeat",code="LEASE_LOST"} 0`,
		`seqledger_keyed_calls_total{call="write",code="COMMITTED"} 1`,
		`seqledger_keyed_calls_total{call="write",code="REPLAYED"} 1`,
		`seqledger_keyed_reservations 1`, `seqledger_keyed_waiters 0`, `seqledger_keyed_waited_total 0`,
		`seqledger_keyed_takeovers_total 0`, `seqledger_keyed_indeterminate_total 0`, `seqledger_keyed_expired_total 0`,
		`# TYPE seqledger_keyed_oldest_reservation_seconds gauge`,
	} {
		check.Contains(t, text, want+"\n", "the metrics have no line %s", want)
	}
	status := must.Get(h.admin.GetStatus(t.Context(), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
	node := status.Msg.GetStatus().GetNode()
	if node.GetReservations() != 1 || node.GetOldestReservation() == nil || node.GetWaitingReserves() != 0 ||
		node.GetReservationsIndeterminate() != 0 || node.GetCommandsRefused() != 0 {
		t.Errorf("status %v", node)
	}
}
