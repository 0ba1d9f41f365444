package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// refusals lists the refusals behind a number.
func (h *harness) refusals(t *testing.T, after uint64) *seqledgerv1.ListRefusalsResponse {
	t.Helper()
	return reply(t, h.admin.ListRefusals, &seqledgerv1.ListRefusalsRequest{After: after})
}

// ways are the ways to write: each sends writes together, or one by one.
func (h *harness) ways(t *testing.T) map[string]func(writes ...*seqledgerv1.WriteRequest) {
	stream := h.client.WriteStream(within(t)) // which ends with the test
	return map[string]func(writes ...*seqledgerv1.WriteRequest){
		"Write": func(writes ...*seqledgerv1.WriteRequest) {
			for _, m := range writes {
				_, _ = h.client.Write(t.Context(), connect.NewRequest(m))
			}
		},
		"WriteBatch": func(writes ...*seqledgerv1.WriteRequest) {
			_, _ = h.client.WriteBatch(t.Context(), connect.NewRequest(&seqledgerv1.WriteBatchRequest{Writes: writes}))
		},
		"WriteStream": func(writes ...*seqledgerv1.WriteRequest) {
			must.Do(t, stream.Send(frameOf(writes...)))
			receive(t, stream, len(writes))
		},
	}
}

// TestEveryDecisionIsCounted: each moves its own counter of the way to write, by one, and no other; a refused write
// leaves one entry in the list, which says whose it was.
func TestEveryDecisionIsCounted(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"Write", "WriteBatch", "WriteStream"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h := startWith(t, server.Options{Ledger: openLedger(t, ledger.Options{
				Config: machine.Config{ReceiptWindow: 1, MaxStreams: 3},
			})})
			must.Get(h.client.OpenSession(t.Context(), connect.NewRequest(&seqledgerv1.OpenSessionRequest{
				Scope: scope(), ClientId: "s", AttemptId: make([]byte, 16),
			})))(t)
			check.Equal(t, h.results(t)["OpenSession COMMITTED"], 1, "%d sessions were counted")
			send := h.ways(t)[way]
			var want []string
			for _, c := range decisionCases() {
				before := h.results(t)
				before[way+" "+c.code]++
				send(c.request)
				for name, n := range h.results(t) {
					check.Equal(t, n, before[name], "%s: %s is %d", c.code, name)
				}
				if c.code != "COMMITTED" && c.code != "REPLAYED" {
					want = append(want, fmt.Sprintf("%d %s %s acme/main %s %d", len(want)+1, c.code, way,
						c.request.ClientId, c.request.Sequence))
				}
			}
			list := h.refusals(t, 0)
			if got := rendered(list); !slices.Equal(got, want) || list.Last != uint64(len(want)) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			for i, r := range list.Refusals {
				if i > 0 && r.Time.AsTime().Before(list.Refusals[i-1].Time.AsTime()) || r.Message == "" {
					t.Errorf("not in its place, or without a reason: %v", r)
				}
			}
			if rest := h.refusals(t, list.Last-2); !slices.Equal(rendered(rest), want[len(want)-2:]) {
				t.Errorf("behind %d: %v", list.Last-2, rest)
			}
		})
	}
}

// rendered words the entries.
func rendered(list *seqledgerv1.ListRefusalsResponse) (lines []string) {
	for _, r := range list.GetRefusals() {
		lines = append(lines, fmt.Sprintf("%d %s %s %s/%s %s %d", r.Number,
			strings.TrimPrefix(r.Code.String(), "WRITE_ERROR_CODE_"), r.Method, r.Scope.GetOrganization(),
			r.Scope.GetVault(), r.ClientId, r.Sequence))
	}
	return lines
}

// TestRefusalsOfOneFrame: the writes of a frame are each listed with their own stream, valid or not.
func TestRefusalsOfOneFrame(t *testing.T) {
	t.Parallel()
	h := start(t)
	other := writeOf("b", 3, appendOp("x"))
	other.Scope = &seqledgerv1.Scope{Organization: "elsewhere"}
	for way, send := range h.ways(t) {
		before := h.refusals(t, 0).Last
		send(writeOf("a", 9, appendOp("x")), writeOf("a", 0, appendOp("x")), other, writeOf("a", 8, appendOp("x")))
		want := []string{"SEQUENCE_GAP " + way + " acme/main a 9", "INVALID_ARGUMENT " + way + " acme/main a 0",
			"SEQUENCE_GAP " + way + " elsewhere/ b 3", "SEQUENCE_GAP " + way + " acme/main a 8"}
		got := rendered(h.refusals(t, before))
		for i := range got {
			_, got[i], _ = strings.Cut(got[i], " ")
		}
		check.EqualSlices(t, got, want, "%s: got %q", way)
	}
}

// TestRefusalsHaveNothingOfTheWrite: no entity key, value, payload or idempotency key, and no text that a client has
// made up, in whatever protocol it came.
func TestRefusalsHaveNothingOfTheWrite(t *testing.T) {
	t.Parallel()
	h := start(t)
	const secret = "5ec2e700-0000-4000-8000-00005ec2e700"
	condition := setOp(secret, secret)
	condition.GetSetEntity().Condition = &seqledgerv1.Condition{
		Condition: &seqledgerv1.Condition_MustExist{MustExist: true},
	}
	w := writeOf("a", 1, condition)
	w.IdempotencyKey = secret
	tooLong := writeOf("a", 1, setOp(strings.Repeat(secret, 100), secret))
	for _, send := range h.ways(t) {
		send(w)
		send(tooLong)
	}
	for _, body := range []string{
		`{"` + secret + `":1}`, `{"clientId":"a","sequence":"` + secret + `"}`, `{"operations":[{"` + secret + `":{}}]}`,
		`{"scope":{"organization":"acme"},"clientId":"a","sequence":"1","operations":[{"setEntity":{"key":"` + secret +
			`","value":"` + secret + `!"}}]}`,
		`{"operations":[{"setEntity":{"` + secret + `":1}}]}`,
	} {
		h.post(t, "/seqledger.v1.LedgerService/Write", "application/json", body)
		h.post(t, "/seqledger.v1.LedgerService/WriteBatch", "application/json", `{"writes":[`+body+`]}`)
	}
	list := h.refusals(t, 0)
	text, err := protojson.Marshal(list)
	if err != nil || len(list.Refusals) < 16 {
		t.Fatal(len(list.Refusals), err)
	}
	if strings.Contains(string(text), "5ec2e700") {
		t.Errorf("%s", text)
	}
}

// TestRefusedCalls: a call that is refused as a whole is listed once, with what is known of its first command.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	l, _ := g.as("inspector") // a reader
	w, _ := g.as("writer")
	_ = call(t, l.Write, writeOf("till-7", 4, appendOp("x")))
	_ = call(t, w.Write, writeOf("other", 5, appendOp("x")))
	_ = call(t, w.WriteBatch, &seqledgerv1.WriteBatchRequest{Writes: []*seqledgerv1.WriteRequest{
		writeOf("other", 6, appendOp("x")), writeOf("other", 7, appendOp("x")),
	}})
	_ = call(t, w.OpenSession, &seqledgerv1.OpenSessionRequest{
		Scope: scope(), ClientId: "other", AttemptId: make([]byte, 16),
	})
	_, admin := g.as("root")
	list := reply(t, admin.ListRefusals, new(seqledgerv1.ListRefusalsRequest))
	want := []string{
		"1 PERMISSION_DENIED Write /  0", // of its role nothing is read
		"2 PERMISSION_DENIED Write acme/main other 5", "3 PERMISSION_DENIED WriteBatch acme/main other 6",
		"4 PERMISSION_DENIED WriteBatch acme/main other 7", "5 PERMISSION_DENIED OpenSession acme/main other 0",
	}
	check.EqualSlices(t, rendered(list), want, "got %q")
}
