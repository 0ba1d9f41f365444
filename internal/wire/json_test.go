package wire

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/machine"
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
		{write, `{"operations":[{"append":{"payload":"!!"}}]}`,
			`operations[0].append.payload: must be a text in base64`},
		{write, `{"operations":[{"append":{"payload":5}}]}`, `operations[0].append.payload: must be a text in base64`},
		{write, set(`"expiresAt":"tomorrow"`), `operations[0].set_entity.expires_at: must be a time`},
		{write, set(`"expiresAt":5`),
			`must be a time from the year 1 to 9999 with its zone, such as "2027-01-31T12:00:00Z", is 5`},
		{write, `{"operations":[{"append":{},"setEntity":{}}]}`, `operations[0]: has setEntity in addition to another one`},
		{write, `{"clientId":"a","clientId":"b"}`, `client_id: is given twice`},
		{write, `{"clientId":"a","client_id":"b"}`, `client_id: is given twice`},
		{write, `{"scope":{"organization":"a","organization":"b"}}`, `scope.organization: is given twice`},
		{write, `{"includeProof":"yes"}`, `include_proof: must be true or false, is "yes"`},
		{block, `{"content":"BLOCK"}`,
			`content: must be one of BLOCK_CONTENT_UNSPECIFIED, BLOCK_CONTENT_HEADER, BLOCK_CONTENT_PARTS, is "BLOCK"`},
		{block, "{\"content\":\"\xff\"}", `content: must be one of`},
		{block, `{"start":{"transaction":4294967296}}`,
			`start.transaction: must be a whole number from 0 to 4294967295`},
		{config, `{"clientTtl":"1 day"}`,
			`client_ttl: must be a number of seconds with an s, such as "86400s", is "1 day"`},
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

// TestErrorsDoNotRepeatHugeInput: a refusal of five mebibytes is not five mebibytes.
func TestErrorsDoNotRepeatHugeInput(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 1<<20)
	for name, body := range map[string]string{
		"field": `{"` + huge + `":1}`,
		"value": `{"sequence":"` + huge + `"}`,
		"key":   `{"idempotencyKey":"` + huge + `","scope":{"organization":"a"}}`,
	} {
		m := new(seqledgerv1.WriteRequest)
		err := decodeJSON([]byte(body), m)
		if err == nil {
			_, err = new(Encoder).Encode(m, "system:test")
		}
		if err == nil || len(err.Error()) > 1_000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// TestLongJSONIsNotExplained: the field of a mistake is searched for in so many bytes of a message, whole or of a frame
// together, and what is longer is refused with the position or the name that the decoder tells.
func TestLongJSONIsNotExplained(t *testing.T) {
	t.Parallel()
	pad := strings.Repeat("x", maxExplained)
	for text, want := range map[string]string{
		`{"operations":[{"setEntity":{"key":1}}],"clientId":"a"}`:                          "operations[0].set_entity.key: must be a text",
		`{"clientId":"` + pad + `","operations":[{"setEntity":{"key":1}}]}`:                "is not the JSON of seqledger.v1.WriteRequest from line 1:",
		`{"clientId":"` + pad + `","operation":[]}`:                                        "on: operation is an unknown field",
		`{"clientId":"` + pad + `","operations":[{},{"bad":1}]}`:                           "on: bad is an unknown field",
		`{"clientId":"` + pad + `","operations":[{"append":{"payload":"","payload":""}}]}`: "on: payload is given twice",
	} {
		err := decodeJSON([]byte(text), new(seqledgerv1.WriteRequest))
		check.ErrorContains(t, err, want, "%d bytes", len(text))
		problem, ok := errors.AsType[*machine.FieldError](err)
		if ok && len(text) > maxExplained && problem.Field != "" {
			t.Errorf("the field %s is not where the mistake is", problem.Field)
		}
	}
	bad := `{"clientId":"` + pad[:maxExplained/4] + `","operations":[{"setEntity":{"key":1}}]}`
	f := new(Frame)
	f.decodeJSON([]byte(`{"writes":[` + strings.Repeat(bad+",", 7) + bad + `]}`))
	explained := 0
	for n := range 8 {
		if f.Bad[n] == nil {
			t.Fatalf("write %d was taken", n)
		}
		if strings.Contains(f.Bad[n].Error(), "set_entity.key") {
			explained++
		}
	}
	check.Equal(t, explained, 3, "%d writes are explained")
}

func TestJSONLimits(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("0,", maxElements-1)
	for body, want := range map[string]string{ // "-": within bounds
		``: "-", `"`: "-", `"\`: "-", `]]}`: "-", `,,,`: "-", `{"a":[` + many + `0]}`: "-",
		`{"a":[` + many + `0,0]}`:                                      "a",
		`{"a":[0,{"b\"]":[` + many + `0,0]}]}`:                         `a[1].b\"]`,
		`{"` + "\xff" + `":[` + many + `0,0]}`:                         "?",
		`{"a":"` + many + `0,0"}`:                                      "-",
		`{"a":"\"","b":[` + many + `0,0]`:                              "b",
		`{"x":` + strings.Repeat("[", maxDepth-1):                      "-",
		`{"x":` + strings.Repeat("[", 1_000_000) + `0]}`:               "x" + strings.Repeat("[0]", maxDepth-2),
		strings.Repeat(`{"`+strings.Repeat("k", 200)+`":`, maxDepth+1): strings.Repeat("k", 200) + "…",
	} {
		problem, _ := jsonLimits([]byte(body))
		got := "-"
		if problem != nil {
			got = problem.Field
		}
		if got != want {
			t.Errorf("%.60s: got %v, want the field %q", body, problem, want)
		}
	}
}

// FuzzJSONLimits: the scan never panics, what it says is UTF-8, and what it lets through is within its bounds.
func FuzzJSONLimits(f *testing.F) {
	f.Add([]byte(`{"writes":[{"a":"\"{"},{}]}`))
	f.Add(bytes.Repeat([]byte("["), 20))
	f.Add([]byte(`{"\`))
	f.Add([]byte(`]}:,"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		problem, depth := jsonLimits(data)
		if (problem == nil) != (depth == 0) {
			t.Errorf("%q: %v at depth %d", data, problem, depth)
		}
		if problem != nil && !utf8.ValidString(problem.Error()) {
			t.Errorf("%q: the answer is not UTF-8: %q", data, problem.Error())
		}
	})
}
