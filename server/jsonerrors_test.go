package server

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// innerWords are what libraries say to programmers in Go.
var innerWords = regexp.MustCompile(
	`strconv|Go value|proto:|unexpected token|google\.protobuf|invalid value for|2006|EOF|oneof|syntax error|illegal ` +
		`base64|\x{fffd}|\x{a0}`)

// What is wrong with a request in JSON is said in words of the API, and names the field.
func TestJSONErrorsAreInWordsOfTheAPI(t *testing.T) {
	t.Parallel()
	write := func() proto.Message { return new(seqledgerv1.WriteRequest) }
	block := func() proto.Message { return new(seqledgerv1.GetBlockRequest) }
	config := func() proto.Message { return new(seqledgerv1.UpdateConfigRequest) }
	set := func(rest string) string { return `{"operations":[{"setEntity":{"key":"k",` + rest + `}}]}` }
	for _, test := range []struct {
		message func() proto.Message
		text    string
		want    string
	}{
		{write, `{"sequence":"abc"}`, `sequence: must be a whole number from 0 to 18446744073709551615, is "abc"`},
		{write, `{"sequence":-1}`, `is -1`}, {write, `{"sequence":1.5}`, `is 1.5`},
		{write, `{"sequence":1e400}`, `sequence: must be`},
		{write, `{"sequence":"18446744073709551616"}`, `sequence: must be`}, {write, `{"sequence":true}`, `is true`},
		{write, `{"sequence":{}}`, `sequence: must be a whole number from 0 to 18446744073709551615`},
		{write, `{"sequence":"` + strings.Repeat("9", 1000) + `"}`, `sequence: must be`},
		{write, `{"clientId":5}`, `client_id: must be a text in UTF-8`},
		{write, "{\"clientId\":\"\xff\"}", `client_id: must be a text in UTF-8`},
		{write, `{"clientId":"\ud800"}`, `client_id: must be a text in UTF-8`},
		{write, "{\"\xff\":1}", `has an unknown field whose name is not UTF-8`},
		{write, "{\"scope\":{\"\xff\":1}}", `scope: has an unknown field whose name is not UTF-8`},
		{write, `{"scopes":1}`, `scopes: is an unknown field`},
		{write, `{"clientId":"a`, `is not a JSON object`},
		{write, "\xff", `is not a JSON object`}, {write, ``, `is not a JSON object`},
		{write, `{"operations":[{"append":{"payload":"!!"}}]}`, `operations[0].append.payload: must be a text in base64`},
		{write, `{"operations":[{"append":{"payload":5}}]}`, `operations[0].append.payload: must be a text in base64`},
		{write, set(`"expiresAt":"tomorrow"`), `operations[0].set_entity.expires_at: must be a time`},
		{write, set(`"expiresAt":5`),
			`must be a time from the year 1 to 9999 with its zone, such as "2027-01-31T12:00:00Z", is 5`},
		{write, `{"operations":[{"append":{},"setEntity":{}}]}`, `operations[0]: has setEntity beside another one`},
		{write, `{"clientId":"a","clientId":"b"}`, `client_id: is given twice`},
		{write, `{"clientId":"a","client_id":"b"}`, `client_id: is given twice`},
		{write, `{"scope":{"organization":"a","organization":"b"}}`, `scope.organization: is given twice`},
		{write, `{"includeProof":"yes"}`, `include_proof: must be true or false, is "yes"`},
		{block, `{"content":"BLOCK"}`,
			`content: must be one of BLOCK_CONTENT_UNSPECIFIED, BLOCK_CONTENT_HEADER, BLOCK_CONTENT_PARTS, is "BLOCK"`},
		{block, "{\"content\":\"\xff\"}", `content: must be one of`},
		{block, `{"start":{"transaction":4294967296}}`, `start.transaction: must be a whole number from 0 to 4294967295`},
		{config, `{"clientTtl":"1 day"}`, `client_ttl: must be a number of seconds with an s, such as "86400s", is "1 day"`},
		{config, `{"clientTtl":86400}`, `client_ttl: must be a number of seconds`},
	} {
		err := decodeJSON([]byte(test.text), test.message())
		if err == nil {
			t.Errorf("%s was taken", test.text)
			continue
		}
		if said := err.Error(); !strings.Contains(said, test.want) || innerWords.MatchString(said) ||
			!utf8.ValidString(said) {
			t.Errorf("%q: got %q, want %q", test.text, said, test.want)
		}
	}
}

// What Connect itself would refuse in words of Go is refused before.
func TestProtocolErrorsAreInWordsOfTheAPI(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	const get = "http://localhost/seqledger.v1.LedgerService/GetEntity"
	for _, test := range []struct{ method, url, timeout, want string }{
		{http.MethodPost, get, "abc", "Connect-Timeout-Ms must be a whole number"},
		{http.MethodPost, get, "99999999999", "at most 10 digits"},
		{http.MethodPost, get, "-1", "Connect-Timeout-Ms"},
		{http.MethodGet, get + "?encoding=json&base64=1&message=!!&connect=v1", "", "message must be base64url"},
	} {
		r := httptest.NewRequest(test.method, test.url, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		if test.timeout != "" {
			r.Header.Set("Connect-Timeout-Ms", test.timeout)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), test.want) ||
			innerWords.MatchString(w.Body.String()) {
			t.Errorf("%v: %d %s", test, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodPost, get, strings.NewReader(`{"scope":{"organization":"a"},"key":"k"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Connect-Timeout-Ms", "60000")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `entity \"k\" of a: not found`) {
		t.Error("a good one:", w.Code, w.Body)
	}
}
