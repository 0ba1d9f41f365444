package server_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// logBook keeps what a server logs.
type logBook struct{ syncBuffer }

// lines returns the logged objects with a message.
func (b *logBook) lines(t testing.TB, message string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(b.String()) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if object["msg"] == message {
			found = append(found, object)
		}
	}
	return found
}

func logged(level slog.Level) (*logBook, *slog.Logger) {
	book := new(logBook)
	return book, slog.New(slog.NewJSONHandler(book, &slog.HandlerOptions{Level: level}))
}

// TestRequestID: a client's id is kept if it is fit for a log, and every answer has one, over every protocol, refused
// or not.
func TestRequestID(t *testing.T) {
	t.Parallel()
	h := start(t)
	generated := regexp.MustCompile(`^[0-9a-f]{16}$`)
	long := strings.Repeat("x", 64)
	for given, kept := range map[string]bool{
		"a-1_B.2/~!": true, long: true, long + "x": false, "": false, "a b": false, "a\tb": false, "ä": false,
	} {
		for name, options := range wire {
			client := connect.NewClient[seqledgerv1.WriteRequest, seqledgerv1.WriteResponse](
				h.h2, h.url+"/seqledger.v1.LedgerService/Write", options...)
			for _, sequence := range []uint64{1, 0} { // the second is refused
				request := connect.NewRequest(writeOf("c", sequence, appendOp("x")))
				if given != "" {
					request.Header().Set("X-Request-Id", given)
				}
				answer, err := client.CallUnary(t.Context(), request)
				got := ""
				if failed := new(connect.Error); err == nil {
					got = answer.Header().Get("X-Request-Id")
				} else if connect.CodeOf(err) == connect.CodeInvalidArgument {
					failed, _ = err.(*connect.Error) //nolint:errorlint // CodeOf has looked.
					got = failed.Meta().Get("X-Request-Id")
				}
				if kept && got != given || !kept && !generated.MatchString(got) {
					t.Errorf("%s, sequence %d: gave %q, got %q (%v)", name, sequence, given, got, err)
				}
			}
		}
	}
}

// TestRequestIDOnAStream: the headers come before anything else.
func TestRequestIDOnAStream(t *testing.T) {
	t.Parallel()
	book, logger := logged(slog.LevelDebug)
	h := startWith(t, server.Options{Logger: logger})
	stream := h.client.WriteStream(within(t))
	stream.RequestHeader().Set("X-Request-Id", "stream-7")
	must.Do(t, stream.Send(frameOf(
		writeOf("c", 1, appendOp("x")), writeOf("c", 1, appendOp("x")), writeOf("c", 9,
			appendOp("x")), writeOf("c", 0))))
	receive(t, stream, 4)
	check.Equal(t, stream.ResponseHeader().Get("X-Request-Id"), "stream-7")
	end(t, stream)
	must.Do(t, h.stop()) // so that the handler has returned
	opened, closed := book.lines(t, "write stream opened"), book.lines(t, "write stream closed")
	if len(opened) != 1 || len(closed) != 1 || opened[0]["request_id"] != "stream-7" ||
		closed[0]["request_id"] != "stream-7" {
		t.Fatal(opened, closed)
	}
	// The counts come as JSON numbers.
	if c := closed[0]; c["committed"] != 1.0 || c["replayed"] != 1.0 || c["refused"] != 2.0 {
		t.Errorf("%v", c)
	}
}

// marker is in every field that a client fills in; it must not reach a log.
const marker = "zq7marker"

// TestLogsHoldNothingOfClients logs everything that there is to log, over requests of every kind, good and bad.
func TestLogsHoldNothingOfClients(t *testing.T) {
	t.Parallel()
	book, logger := logged(slog.LevelDebug - 4)
	h := startWith(t, server.Options{Logger: logger})
	key := "7a713700-6d61-726b-6572-000000000001"
	place := `"scope":{"organization":"` + marker + `","vault":"` + marker + `"},"clientId":"` + marker + `"`
	payload := "enE3bWFya2Vy" // the marker in base64
	operations := `"operations":[{"setEntity":{"key":"` + marker + `","value":"` + payload + `"}},` +
		`{"append":{"payload":"` + payload + `"}},` +
		`{"createRelationship":{"resource":"` + marker + `","relation":"` + marker + `","subject":"` + marker + `"}}]`
	write := `{` + place + `,"idempotencyKey":"` + key + `","sequence":"%",` + operations + `}`
	for _, c := range []struct{ procedure, body string }{
		{"LedgerService/Write", strings.Replace(write, "%", "1", 1)},
		{"LedgerService/Write", strings.Replace(write, "%", "1", 1)}, // a replay
		{"LedgerService/Write", strings.Replace(write, "%", "9", 1)}, // a reused key
		{"LedgerService/Write", strings.Replace(write, "%", "0", 1)}, // invalid
		{"LedgerService/Write", `{"` + marker + `":1}`},              // unknown field
		{"LedgerService/Write", `{"clientId":` + marker},             // no JSON
		{"LedgerService/OpenSession", `{` + place + `,"attemptId":"enE3bWFya2VyAAAAAAAAAA=="}`},
		{"LedgerService/GetClientState", `{` + place + `,"includeReceipts":true}`},
		{"LedgerService/GetEntity", `{"scope":{"organization":"` + marker + `"},"key":"` + marker + `"}`},
		{"LedgerService/ListEntities", `{"scope":{"organization":"` + marker + `"},"pageToken":"` + marker + `"}`},
		{"LedgerService/GetTransaction", `{"txId":"` + marker + `"}`},
		{"LedgerService/" + marker, `{}`},
		{"AdminService/ListClients", `{"scope":{"organization":"` + marker + `"}}`},
	} {
		r := must.Get(http.NewRequest(http.MethodPost, h.url+"/seqledger.v1."+c.procedure,
			strings.NewReader(c.body)))(t)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+marker)
		r.Header.Set("Cookie", "session="+marker)
		h.do(t, r)
	}
	stream := h.client.WriteStream(within(t))
	stream.RequestHeader().Set("Authorization", "Bearer "+marker)
	m := writeOf(marker, 1, setOp(marker, marker), relateOp(marker, marker, marker))
	m.Scope.Organization, m.IdempotencyKey = marker, key
	must.Do(t, stream.Send(frameOf(m, writeOf(marker, 7, appendOp(marker)),
		writeOf(marker, 0, appendOp(marker)))))
	receive(t, stream, 3)
	end(t, stream)
	must.Do(t, h.stop())
	text := book.String()
	if !strings.Contains(text, "LedgerService/Write") || !strings.Contains(text, "write stream closed") {
		t.Fatal("the log must not be empty: ", text)
	}
	for _, secret := range []string{marker, payload, key, "7a71376d61726b6572", "Bearer", "session="} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in the log:\n%s", secret, text)
		}
	}
}
