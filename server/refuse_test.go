package server_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

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
			b, err := base64.RawStdEncoding.DecodeString(d.Value)
			if err != nil {
				t.Fatal(err)
			}
			if err := proto.Unmarshal(b, detail); err != nil {
				t.Fatal(err)
			}
		case "google.rpc.BadRequest":
			bad = true
		}
	}
	return detail, bad
}

// good is a valid write in JSON, with room for changes.
const good = `"scope":{"organization":"acme"},"clientId":"c","sequence":"1"`

// badWrites are the bodies of a Write that must be refused, and the field that the refusal must name.
var badWrites = map[string]struct{ body, field string }{
	"not JSON":             {`{"scope":`, ""},
	"empty":                {``, ""},
	"null":                 {`null`, ""},
	"an array":             {`[]`, ""},
	"two objects":          {`{` + good + `,"operations":[{"append":{}}]}{}`, ""},
	"unknown at the top":   {`{` + good + `,"operations":[{"append":{}}],"extra":1}`, "extra"},
	"unknown in the scope": {`{"scope":{"organization":"acme","region":"x"}}`, "scope.region"},
	"unknown operation":    {`{` + good + `,"operations":[{"append":{}},{"increment":{}}]}`, "operations[1].increment"},
	"unknown in operation": {`{` + good + `,"operations":[{"setEntity":{"key":"k","ttl":1}}]}`,
		"operations[0].set_entity.ttl"},
	"unknown condition": {`{` + good + `,"operations":[{"setEntity":{"key":"k","condition":{"lessThan":1}}}]}`,
		"operations[0].set_entity.condition.lessThan"},
	"wrong type":         {`{` + good + `,"includeProof":"yes"}`, "include_proof"},
	"sequence too large": {`{"sequence":"18446744073709551616"}`, "sequence"},
	"negative sequence":  {`{"sequence":-1}`, "sequence"},
	"fractional session": {`{"session":1.5}`, "session"},
	"bad base64": {`{` + good + `,"operations":[{"append":{"payload":"*"}}]}`,
		"operations[0].append.payload"},
	"scope is text":        {`{"scope":"acme"}`, "scope"},
	"operations not array": {`{` + good + `,"operations":{}}`, "operations"},
	"null operation":       {`{` + good + `,"operations":[null]}`, "operations[0]"},
	"field twice":          {`{"sequence":"1","sequence":"2"}`, "sequence"},
	"two operations in one": {
		`{` + good + `,"operations":[{"append":{},"deleteEntity":{"key":"k"}}]}`, "operations[0]",
	},
	"invalid UTF-8": {"{\"clientId\":\"\xff\"}", "client_id"},
	"no scope":      {`{"clientId":"c","sequence":"1","operations":[{"append":{}}]}`, "scope"},
	"no organization": {`{"scope":{"vault":"v"},"clientId":"c","sequence":"1","operations":[{"append":{}}]}`,
		"scope.organization"},
	"bad organization": {
		`{"scope":{"organization":"a b"},"clientId":"c","sequence":"1","operations":[{"append":{}}]}`,
		"scope.organization",
	},
	"bad vault": {
		`{"scope":{"organization":"a","vault":"ä"},"clientId":"c","sequence":"1","operations":[{"append":{}}]}`,
		"scope.vault",
	},
	"no client": {`{"scope":{"organization":"a"},"sequence":"1","operations":[{"append":{}}]}`, "client_id"},
	"long client": {`{"scope":{"organization":"a"},"clientId":"` + strings.Repeat("c", 257) +
		`","sequence":"1","operations":[{"append":{}}]}`, "client_id"},
	"sequence 0":    {`{"scope":{"organization":"a"},"clientId":"c","operations":[{"append":{}}]}`, "sequence"},
	"bad UUID":      {`{` + good + `,"idempotencyKey":"1234","operations":[{"append":{}}]}`, "idempotency_key"},
	"no operations": {`{` + good + `}`, "operations"},
	"too many operations": {
		`{` + good + `,"operations":[` + strings.Repeat(`{"append":{}},`, 1_000) + `{"append":{}}]}`, "operations",
	},
	"empty operation": {`{` + good + `,"operations":[{"append":{}},{}]}`, "operations[1]"},
	"expire_entity":   {`{` + good + `,"operations":[{"expireEntity":{"key":"k"}}]}`, "operations[0].expire_entity"},
	"no key":          {`{` + good + `,"operations":[{"setEntity":{}}]}`, "operations[0].set_entity.key"},
	"long key": {`{` + good + `,"operations":[{"deleteEntity":{"key":"` + strings.Repeat("k", 1_025) + `"}}]}`,
		"operations[0].delete_entity.key"},
	"no subject": {`{` + good + `,"operations":[{"createRelationship":{"resource":"r","relation":"l"}}]}`,
		"operations[0].create_relationship.subject"},
	"empty condition": {`{` + good + `,"operations":[{"setEntity":{"key":"k","condition":{}}}]}`,
		"operations[0].set_entity.condition"},
	"not_exists false": {`{` + good + `,"operations":[{"setEntity":{"key":"k","condition":{"notExists":false}}}]}`,
		"operations[0].set_entity.condition.not_exists"},
	"must_exist false": {`{` + good + `,"operations":[{"deleteEntity":{"key":"k","condition":{"mustExist":false}}}]}`,
		"operations[0].delete_entity.condition.must_exist"},
	"expires in 1970": {`{` + good + `,"operations":[{"setEntity":{"key":"k","expiresAt":"1970-01-01T00:00:00Z"}}]}`,
		"operations[0].set_entity.expires_at"},
	"expires in 1969": {`{` + good + `,"operations":[{"setEntity":{"key":"k","expiresAt":"1969-01-01T00:00:00Z"}}]}`,
		"operations[0].set_entity.expires_at"},
	"expires too late": {`{` + good + `,"operations":[{"setEntity":{"key":"k","expiresAt":"9000-01-01T00:00:00Z"}}]}`,
		"operations[0].set_entity.expires_at"},
	"expires at never": {`{` + good + `,"operations":[{"setEntity":{"key":"k","expiresAt":"soon"}}]}`,
		"operations[0].set_entity.expires_at"},
	"long value": {`{` + good + `,"operations":[{"append":{"payload":"` +
		strings.Repeat("AAAA", (machine.MaxValueBytes+3)/3) + `"}}]}`, "operations[0].append.payload"},
}

func TestMalformedWritesChangeNothing(t *testing.T) {
	t.Parallel()
	h := start(t)
	before := h.state(t)
	for name, c := range badWrites {
		status, _, text := h.post(t, seqledgerv1connect.LedgerServiceWriteProcedure, "application/json", c.body)
		h.checkRefusal(t, name, status, text, c.field)
	}
	// The same bodies, in a stream, are results in their place; see TestABatchAnswersInItsPlaces.
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

func TestMalformedBinaryWritesChangeNothing(t *testing.T) {
	t.Parallel()
	h := start(t)
	before := h.state(t)
	ok, err := proto.Marshal(writeOf("c", 1, appendOp("x")))
	if err != nil {
		t.Fatal(err)
	}
	varint := func(number protowire.Number) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
	}
	inner := func(number protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), b)
	}
	for name, c := range map[string]struct {
		body  []byte
		field string
	}{
		"unknown at the top":   {append(ok, varint(99)...), "99"},
		"unknown in operation": {append(ok, inner(6, inner(1, varint(77)))...), "operations[1].set_entity.77"},
		"unknown in condition": {append(ok, inner(6, inner(2, inner(2, varint(9))))...),
			"operations[1].delete_entity.condition.9"},
		"wrong wire type": {append(ok, inner(4, nil)...), "sequence"},
		"not UTF-8":       {append(ok, inner(2, []byte{0xff})...), "client_id"},
		"key not UTF-8": {append(ok, inner(6, inner(1, inner(1, []byte{0xff})))...),
			"operations[1].set_entity.key"},
		"cut off":                 {ok[:len(ok)-1], "operations[0]"},
		"cut off within a number": {append(ok, 0x20, 0x80), "sequence"},
		"noise":                   {[]byte{0xff, 0xff}, ""},
	} {
		status, _, text := h.post(t, seqledgerv1connect.LedgerServiceWriteProcedure, "application/proto",
			string(c.body))
		h.checkRefusal(t, name, status, text, c.field)
	}
	if after := h.state(t); after != before {
		t.Errorf("malformed requests changed the ledger from %v to %v", before, after)
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
		{ledgerService + "OpenSession", `{` + scoped + `,"clientId":"c","attemptId":"AAAA"}`, "attempt_id"},
		{ledgerService + "OpenSession", `{"clientId":"c","attemptId":"` + attempt + `"}`, "scope"},
		{ledgerService + "OpenSession", `{` + scoped + `,"attemptId":"` + attempt + `"}`, "client_id"},
		{ledgerService + "OpenSession", `{"scope":{"organization":"a","x":1}}`, "scope.x"},
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
		{adminService + "UpdateConfig", `{"evictionLimit":"100001"}`, "eviction_limit"},
		{adminService + "UpdateConfig", `{"receiptWindow":"1025"}`, "receipt_window"},
		{adminService + "UpdateConfig", `{"maxStreams":"0"}`, "max_streams"},
		{adminService + "UpdateConfig", `{"clientTtl":"0.5s"}`, "client_ttl"},
		{adminService + "UpdateConfig", `{"clientTtl":"-5s"}`, "client_ttl"},
		{adminService + "UpdateConfig", `{"clientTtl":"300000000000s"}`, "client_ttl"},
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
	if after := h.state(t); after != before {
		t.Error("an oversize request changed the ledger")
	}
}

// TestLargestWrite: what the limits allow must fit into a request.
func TestLargestWrite(t *testing.T) {
	t.Parallel()
	h := start(t)
	value := strings.Repeat("x", machine.MaxValueBytes)
	request := writeOf("c", 1, appendOp(value), appendOp(value), appendOp(value), appendOp(value))
	for name, options := range wire {
		client := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, options...)
		if _, err := client.Write(t.Context(), connect.NewRequest(request)); err != nil {
			t.Error(name, err)
		}
	}
}

func TestHostMustBeLoopback(t *testing.T) {
	t.Parallel()
	h := start(t)
	before := h.state(t)
	for _, path := range []string{seqledgerv1connect.LedgerServiceWriteProcedure, "/metrics", "/healthz", "/"} {
		for host, want := range map[string]bool{"evil.example": false, "evil.example:7400": false,
			"localhost:1": true} {
			request, err := http.NewRequest(http.MethodPost, h.url+path,
				strings.NewReader(`{`+good+`,"operations":[{"append":{}}]}`))
			if err != nil {
				t.Fatal(err)
			}
			if want {
				request.Body, request.ContentLength = http.NoBody, 0
			}
			request.Header.Set("Content-Type", "application/json")
			request.Host = host
			if status, _, _ := h.do(t, request); (status != http.StatusForbidden) != want {
				t.Errorf("%s with the Host %q: got %d", path, host, status)
			}
		}
	}
	if after := h.state(t); after != before {
		t.Error("a request with a foreign Host changed the ledger")
	}
}
