package server_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// wireError is a Connect error as it stands in an HTTP/1.1 answer.
type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	} `json:"details"`
}

// writeError returns the WriteError among the details and whether there is a BadRequest beside it.
func (e *wireError) writeError(t testing.TB) (detail *seqledgerv1.WriteError, bad bool) {
	t.Helper()
	detail = new(seqledgerv1.WriteError)
	for _, d := range e.Details {
		switch d.Type {
		case "seqledger.v1.WriteError":
			b := must.Get(base64.RawStdEncoding.DecodeString(d.Value))(t)
			must.Do(t, proto.Unmarshal(b, detail))
		case "google.rpc.BadRequest":
			bad = true
		}
	}
	return detail, bad
}

// good is a valid write in JSON, with room for changes.
const good = `"scope":{"organization":"acme"},"clientId":"c","sequence":"1"`

// TestMalformedWritesChangeNothing: each is refused with the field, in both encodings. Package wire has every mistake.
func TestMalformedWritesChangeNothing(t *testing.T) {
	t.Parallel()
	h := start(t)
	before := h.state(t)
	for _, c := range []struct{ body, field string }{
		{`nonsense`, ""}, {`{"sequence":-1}`, "sequence"}, {`{` + good + `,"operations":[{"append":{}}],"extra":1}`, "extra"},
		{`{"clientId":"c","sequence":"1","operations":[{"append":{}}]}`, "scope"},
		{`{` + good + `,"operations":[{"append":{"payload":"*"}}]}`, "operations[0].append.payload"},
		{`{` + good + `,"operations":[{"append":{}},{}]}`, "operations[1]"},
		{`{` + good + `,"operations":[{"setEntity":{"key":"k","expiresAt":"1969-01-01T00:00:00Z"}}]}`,
			"operations[0].set_entity.expires_at"},
	} {
		status, _, text := h.post(t, seqledgerv1connect.LedgerServiceWriteProcedure, "application/json", c.body)
		h.checkRefusal(t, c.body, status, text, c.field)
	}
	ok := must.Get(proto.Marshal(writeOf("c", 1, appendOp("x"))))(t)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	noText := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{0xff})
	for field, body := range map[string][]byte{
		"99": append(bytes.Clone(ok), unknown...), "client_id": append(bytes.Clone(ok), noText...),
		"operations[0]": ok[:len(ok)-1], "": {0xff, 0xff},
	} {
		status, _, text := h.post(t, seqledgerv1connect.LedgerServiceWriteProcedure, "application/proto", string(body))
		h.checkRefusal(t, field, status, text, field)
	}
	if after := h.state(t); after != before {
		t.Errorf("malformed requests changed the ledger from %v to %v", before, after)
	}
}

func (h *harness) checkRefusal(t *testing.T, name string, status int, text, field string) {
	t.Helper()
	var e wireError
	if err := json.Unmarshal([]byte(text), &e); err != nil || status != http.StatusBadRequest ||
		e.Code != "invalid_argument" {
		t.Errorf("%s: got %d %s", name, status, text)
		return
	}
	detail, bad := e.writeError(t)
	if detail.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT || !bad {
		t.Errorf("%s: got the details %v, BadRequest %t", name, detail, bad)
	}
	if detail.Field != field || !strings.Contains(e.Message, field) {
		t.Errorf("%s: names the field %q in %q, want %q", name, detail.Field, e.Message, field)
	}
}

func TestMalformedCallsChangeNothing(t *testing.T) {
	t.Parallel()
	h := start(t)
	before := h.state(t)
	ledgerService := "/" + seqledgerv1connect.LedgerServiceName + "/"
	adminService := "/" + seqledgerv1connect.AdminServiceName + "/"
	for _, c := range []struct{ procedure, body, field string }{
		{ledgerService + "OpenSession", `{` + scoped + `,"clientId":"c"}`, "attempt_id"},
		{ledgerService + "OpenSession", `{` + scoped + `,"attemptId":"` + attempt + `"}`, "client_id"},
		{ledgerService + "GetClientState", `{"clientId":"c"}`, "scope"},
		{ledgerService + "GetClientState", `{` + scoped + `}`, "client_id"},
		{ledgerService + "GetEntity", `{` + scoped + `}`, "key"},
		{ledgerService + "GetEntity", `{"key":"k"}`, "scope"},
		{ledgerService + "ListEntities", `{}`, "scope"},
		{ledgerService + "ListEntities", `{` + scoped + `,"pageSize":1001}`, "page_size"},
		{ledgerService + "ListEntities", `{` + scoped + `,"pageToken":"x"}`, "page_token"},
		{ledgerService + "ListEntities", `{` + scoped + `,"prefix":"` + strings.Repeat("p", 1_025) + `"}`, "prefix"},
		{ledgerService + "ListRelationships", `{` + scoped + `,"relation":"r"}`, "relation"},
		{ledgerService + "ListRelationships", `{` + scoped + `,"pageSize":4294967295}`, "page_size"},
		{ledgerService + "ListRelationships", `{` + scoped + `,"pageToken":"AAAA"}`, "page_token"},
		{ledgerService + "ListBlocks", `{` + scoped + `,"pageSize":1001}`, "page_size"},
		{ledgerService + "ListBlocks", `{` + scoped + `,"pageToken":"AAAAAAAAAAAAAAAA"}`, "page_token"},
		{ledgerService + "GetBlock", `{` + scoped + `}`, "height"},
		{ledgerService + "GetBlock", `{"height":"1"}`, "scope"},
		{ledgerService + "GetTransaction", `{}`, "tx_id"},
		{ledgerService + "GetTransaction", `{"txId":"00000000-0000-4000-8000-000000000000"}`, "tx_id"},
		{adminService + "GetStatus", `{"verbose":true}`, "verbose"},
		{adminService + "ListClients", `{"pageSize":1001}`, "page_size"},
		{adminService + "ListClients", `{"scope":{}}`, "scope.organization"},
		{adminService + "ListClients", `{"pageToken":"AAAA"}`, "page_token"},
		{adminService + "UpdateConfig", `{"evictionInterval":"0"}`, "eviction_interval"},
	} {
		status, _, text := h.post(t, c.procedure, "application/json", c.body)
		h.checkRefusal(t, c.procedure+" "+c.body, status, text, c.field)
	}
	if after := h.state(t); after != before {
		t.Errorf("malformed requests changed the ledger from %v to %v", before, after)
	}
}

const (
	scoped  = `"scope":{"organization":"acme"}`
	attempt = "AAAAAAAAAAAAAAAAAAAAAA=="
)

func TestOversizeBody(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{MaxRequestBytes: 1_000})
	before := h.state(t)
	body := `{` + good + `,"operations":[{"append":{"payload":"` + strings.Repeat("AAAA", 1_000) + `"}}]}`
	for _, clients := range wire {
		client := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, clients...)
		_, err := client.Write(t.Context(), connect.NewRequest(writeOf("c", 1, appendOp(body))))
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "1000") ||
			detail(err).GetField() != "operations" {
			t.Error("the refusal must name field and limit:", err)
		}
	}
	status, _, text := h.post(t, seqledgerv1connect.LedgerServiceWriteProcedure, "application/json", body)
	if status != http.StatusBadRequest || !strings.Contains(text, "1000") {
		t.Error(status, text)
	}
	check.Equal(t, h.state(t), before, "an oversize request changed the ledger: %v")
}

// TestLargestWrite: what the limits allow must fit into a request.
func TestLargestWrite(t *testing.T) {
	t.Parallel()
	h := start(t)
	value := strings.Repeat("x", machine.MaxValueBytes)
	request := writeOf("c", 1, appendOp(value), appendOp(value), appendOp(value), appendOp(value))
	for name, options := range wire {
		client := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, options...)
		must.Do(t, check.Err(client.Write(t.Context(), connect.NewRequest(request))), "%v", name)
	}
}
