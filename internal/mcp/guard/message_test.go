package guard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestMessagesHaveOneMeaning checks that a message that can be read in two ways is refused, and that all others are
// read correctly.
func TestMessagesHaveOneMeaning(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		method string
		isCall bool
		says   string
	}{
		`{"jsonrpc":"2.0","id":1,"method":"m"}`:      {"m", true, ""},
		`{"id":"a","method":"m","params":{}}`:        {"m", true, ""},
		`{"id":null,"method":"m"}`:                   {"m", true, ""},
		`{"method":"m"}`:                             {"m", false, ""},
		`{"method":"\u006d"}`:                        {"m", false, ""},
		`{"id":1,"result":{}}`:                       {"", false, ""},
		`{"id":1,"error":{"code":1}}`:                {"", false, ""},
		`{"other":1,"more":[1]}`:                     {"", false, ""},
		" {\"id\" : 1 ,\n\"method\" : \"m\" } ":      {"m", true, ""},
		`{}`:                                         {"", false, ""},
		`{"ID":1,"method":"m"}`:                      {says: `"ID"`},
		`{"Method":"m"}`:                             {says: `"Method"`},
		`{"method":"m","pArams":{}}`:                 {says: `"pArams"`},
		`{"method":"m","method":"n"}`:                {says: "duplicate"},
		`{"method":"m","params":{"a":1,"a":2}}`:      {says: "duplicate"},
		`{"method":"m","params":{"a":1,"\u0061":2}}`: {says: "duplicate"},
		`{"id":true,"method":"m"}`:                   {says: "id must be"},
		`{"id":{},"method":"m"}`:                     {says: "id must be"},
		`{"id":1,"method":5}`:                        {says: "method must be"},
		`{"id":1,"method":null}`:                     {says: "method must be"},
		`{"id":1}{"id":2}`:                           {says: "follows the JSON value"},
		`{"id":1},`:                                  {says: " "},
		`"text"`:                                     {says: "must be a JSON object"},
		`5`:                                          {says: "must be a JSON object"},
		`null`:                                       {says: "must be a JSON object"},
		``:                                           {says: "unexpected EOF"},
		`{"id":1`:                                    {says: "unexpected EOF"},
		`{"id":`:                                     {says: "unexpected EOF"},
		`{"id":01}`:                                  {says: " "},
		"{\"method\":\"\xff\"}":                      {says: "UTF-8"},
		`{"method":"m","params":"` + "\x01" + `"}`: {says: " "},
		`[]`:                                 {"", false, ""},
		`[{"id":1,"method":"m"}]`:            {"", false, ""},
		`[5]`:                                {says: "objects alone"},
		`[[]]`:                               {says: "objects alone"},
		`[{"id":1,"Method":"m"}]`:            {says: `"Method"`},
		`[{"id":1}`:                          {says: "unexpected EOF"},
		`[{"id":1}] {"method":"tools/call"}`: {says: " "},
		`[{"id":1,"params":{"x":1,"x":1}}]`:  {says: "duplicate"},
		`{"jsonrpc":"1.0","id":1,"method":"m","x":"y"}`: {"m", true, ""},
	} {
		m, err := parseMessage([]byte(text))
		fails := want.says != ""
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), want.says)):
			t.Errorf("%s: want an error with %q, got %v", text, want.says, err)
		case !fails && (err != nil || m.method != want.method || m.isCall() != want.isCall):
			t.Errorf("%s: method %q, a call: %v, %v", text, m.method, m.isCall(), err)
		}
		if errors.Is(err, io.EOF) && err == io.EOF { //nolint:errorlint // The end of a stream is told by it.
			t.Errorf("%s: its error is taken for the end of the stream", text)
		}
	}
}

// TestPartsOfMessages checks that the parts are the received bytes, not their meaning.
func TestPartsOfMessages(t *testing.T) {
	t.Parallel()
	m := must.Get(parseMessage([]byte(`{"id": 1e0 ,"params": {"a" : 1.0} ,"result":[ ],"error": null}`)))(t)
	for got, want := range map[string]string{
		string(m.id): "1e0", string(m.params): `{"a" : 1.0}`, string(m.result): "[ ]", string(m.fault): "null",
	} {
		check.Equal(t, got, want)
	}
	batch, err := parseMessage([]byte(`[ {"id":1} , {"method":"m"} ]`))
	if err != nil || len(batch.batch) != 2 || string(batch.batch[1].raw) != `{"method":"m"}` {
		t.Errorf("%+v, %v", batch, err)
	}
}

// TestSetMembers checks that every other byte stays the same, because a signature or a log may depend on them.
func TestSetMembers(t *testing.T) {
	t.Parallel()
	edits := []edit{{"id", jsontext.Value(`"own"`)}, {"_meta", jsontext.Value(`{}`)}}
	for object, want := range map[string]string{
		`{}`:                              `{"id":"own","_meta":{}}`,
		` { } `:                           ` { "id":"own","_meta":{}} `,
		`{"a":1}`:                         `{"a":1,"id":"own","_meta":{}}`,
		`{"id":1}`:                        `{"id":"own","_meta":{}}`,
		`{"_meta" : [1] ,"id" : 2 }`:      `{"_meta" : {} ,"id" : "own" }`,
		`{"a":{"id":1},"id":2}`:           `{"a":{"id":1},"id":"own","_meta":{}}`,
		`{"i\u0064":5,"x":"}"}`:           `{"i\u0064":"own","x":"}","_meta":{}}`,
		`{"id":"}","_meta":null, "b":[]}`: `{"id":"own","_meta":{}, "b":[]}`,
	} {
		got := must.Get(setMembers(jsontext.Value(object), edits...))(t)
		check.Equal(t, string(got), want, "%s became %s", object)
	}
	for _, object := range []string{``, `[]`, `5`, `{"a":1`, `{"a":1,"a":2}`, `{} {}`, `{"a":}`, `{"a" 1}`} {
		if got, err := setMembers(jsontext.Value(object), edits...); err == nil {
			t.Errorf("%s became %s", object, got)
		}
	}
}

// TestElements checks that elements and members visit a value once, in order, and stop at the first error.
func TestElements(t *testing.T) {
	t.Parallel()
	var seen []string
	collect := func(value jsontext.Value) error { seen = append(seen, string(value)); return nil }
	if err := elements([]byte(` [1 , "a",{ },[ ]] `), collect); err != nil ||
		!reflect.DeepEqual(seen, []string{"1", `"a"`, "{ }", "[ ]"}) {
		t.Errorf("%q, %v", seen, err)
	}
	stop, calls := errors.New("stop"), 0
	err := elements([]byte(`[1,2]`), func(jsontext.Value) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%v after %d", err, calls)
	}
	calls = 0
	err = members([]byte(`{"a":1,"b":2}`), func(string, jsontext.Value) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%v after %d", err, calls)
	}
	for _, text := range []string{``, `{}`, `[1`, `[1,`, `[1]]`, `[1 2]`, `["a"`} {
		if err := elements([]byte(text), collect); err == nil {
			t.Errorf("%s is an array", text)
		}
	}
}

// TestErrorsForClients checks that errors are valid JSON-RPC, whatever their text contains.
func TestErrorsForClients(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"plain", `"quoted" \ `, "two\nlines", "\x00\x1f", "not \xff UTF-8", "</script>", ""} {
		for _, id := range []jsontext.Value{nil, jsontext.Value(`1`), jsontext.Value(`"a\"b"`)} {
			var got struct {
				Jsonrpc string
				ID      any
				Error   struct {
					Code    int
					Message string
				}
			}
			line := rpcError(id, codeInternal, text)
			if err := json.Unmarshal(line, &got); err != nil || bytes.ContainsAny(line, "\n\r") {
				t.Fatalf("%s: %v", line, err)
			}
			if got.Jsonrpc != "2.0" || got.Error.Code != codeInternal || (got.ID == nil) != (id == nil) ||
				got.Error.Message != strings.ToValidUTF8(text, "\ufffd") {
				t.Errorf("%q became %s", text, line)
			}
		}
	}
}

// TestShellWords checks that a shell reads quoted words back unchanged, because the command that an operator is told to
// run contains them.
func TestShellWords(t *testing.T) {
	t.Parallel()
	words := []string{"plain", "a/b:c@d,e+f", "", " ", "it's", "''", "$HOME", "`id`", "a\nb", `\`, `"`, "*", "~", "é",
		"-n", "a;b", "#", "!!", "'; rm -rf /; '"}
	script := "printf '%s|'"
	for _, word := range words {
		script += " " + shell(word)
	}
	out, err := exec.Command("sh", "-c", script).Output()
	if want := strings.Join(words, "|") + "|"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
	check.Equal(t, shell("acme/main"), "acme/main", "a plain word is quoted, which makes the command hard to read: %v")
}

// TestIDsThatAreTheSame checks that a client may spell the id of a call differently when it cancels the call.
func TestIDsThatAreTheSame(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{`"a"`, `"a"`, true}, {`"a"`, `"\u0061"`, true}, {`"a"`, `"b"`, false}, {`1`, `1`, true}, {`1`, `2`, false},
		{`1`, `"1"`, false}, {`null`, `null`, true}, {`"null"`, `null`, false},
	} {
		check.Equal(t, sameID(jsontext.Value(test.a), jsontext.Value(test.b)), test.same, "%s and %s are the same: %v",
			test.a, test.b)
	}
}

// TestWhatAnAnswerLeavesBehind checks, for each value of Errors, which answers are kept, which calls a retry runs
// again, and which need an operator.
func TestWhatAnAnswerLeavesBehind(t *testing.T) {
	t.Parallel()
	const (
		kept     = "kept"
		rejected = "rejected"
		again    = "again"
		unknown  = "unknown"
	)
	long := `{"content":"` + strings.Repeat("x", idempotency.MaxResponse) + `"}`
	always := func(how string) map[Errors]string {
		return map[Errors]string{StoreErrors: how, ReleaseErrors: how, UnknownErrors: how}
	}
	failed := map[Errors]string{StoreErrors: rejected, ReleaseErrors: again, UnknownErrors: unknown}
	for answer, want := range map[string]map[Errors]string{
		`{"result":{"content":[]}}`:                      always(kept),
		`{"result":{"isError":false}}`:                   always(kept),
		`{"result":{"isError":"true"}}`:                  always(kept),
		`{"result":{"resultType":"complete"}}`:           always(kept),
		`{"result":` + long + `}`:                        always(kept),
		`{"error":{"code":-32042}}`:                      always(again),
		`{"result":{"resultType":"input_required"}}`:     always(again),
		`{"result":{"isError":true}}`:                    failed,
		`{"error":{"code":-32000,"message":"m"}}`:        failed,
		`{"error":{"code":1,"message":` + long + `}}`:    failed,
		`{"error":{"code":"-32042","message":"a text"}}`: failed,
	} {
		m := must.Get(parseMessage([]byte(answer)))(t)
		for errs, how := range want {
			stored, err := (&call{tool: &Tool{Errors: errs}}).judge(m)
			got := unknown
			reject, isReject := errors.AsType[*idempotency.RejectedError](err)
			switch {
			case err == nil:
				got = kept
			case isReject:
				got, stored = rejected, reject.Response
			case errors.Is(err, idempotency.ErrNotExecuted):
				got = again
			}
			if got != how || len(stored) > idempotency.MaxResponse {
				t.Errorf("%.60s with errors: %s is %s, want %s; %d bytes are kept", answer, errs, got, how, len(stored))
			}
			name, value := envelope(stored)
			if (got == kept || got == rejected) && (name == "" || !json.Valid(value)) && faultCode(m.fault) != 0 {
				t.Errorf("%.60s: what is kept is no answer: %.80s", answer, stored)
			}
		}
	}
}

// TestReplays checks that a replay has the id of the retry, is marked as a replay, and is otherwise what was stored.
// What an operator has stored, which may be anything, becomes a text.
func TestReplays(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]string{
		`{"result":{"a":1}}`:                 `"result":{"a":1,"_meta":{"replayed":true}}`,
		`{"result":{"_meta":{"k":2},"a":1}}`: `"result":{"_meta":{"k":2,"replayed":true},"a":1}`,
		`{"result":{"_meta":null}}`:          `"result":{"_meta":{"replayed":true}}`,
		`{"error":{"code":5}}`:               `"error":{"code":5,"data":{"replayed":true}}`,
		`{"error":{"code":5,"data":"x"}}`:    `"error":{"code":5,"data":"x"}`,
		`{"error":{"code":5,"data":{}}}`:     `"error":{"code":5,"data":{"replayed":true}}`,
		`paid by hand`:                       `"text":"paid by hand"`,
		``:                                   `"text":""`,
		`{"result":5}`:                       `"text":"{\"result\":5}"`,
		`{"error":{"message":"no code"}}`:    `"text":"{\"error\"`,
		`{"result":{},"error":{"code":1}}`:   `"text":"{\"result\":{},`,
		`{"other":{}}`:                       `"text":"{\"other\":{}}"`,
		"\xff":                               `"text":"\ufffd"`,
	} {
		c := &call{message: &message{id: jsontext.Value(`"again"`)}}
		for _, rejected := range []bool{false, true} {
			line := c.replay([]byte(stored), rejected)
			if !strings.Contains(string(line), want) || !strings.Contains(string(line), `"id":"again"`) ||
				!jsontext.Value(line).IsValid() {
				t.Errorf("%s is replayed as %s, want %s", stored, line, want)
			}
			if strings.Contains(want, `"text"`) != strings.Contains(string(line), `"isError"`) ||
				strings.Contains(want, `"text"`) && strings.Contains(string(line), `"isError":true`) != rejected {
				t.Errorf("%s, rejected %v: %s", stored, rejected, line)
			}
		}
	}
}

// TestMarksAreAddedOnce checks that marks are added once and leave a valid object: a replay of a replay is the same.
func TestMarksAreAddedOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		object := map[string]any{}
		for _, name := range []string{"content", "_meta", "isError"} {
			switch rapid.IntRange(0, 3).Draw(t, name) {
			case 1:
				object[name] = map[string]any{"n": rapid.IntRange(0, 9).Draw(t, "n")}
			case 2:
				object[name] = nil
			}
		}
		text := must.Get(json.Marshal(object))(t)
		once, err := mark(text, "_meta", metaReplayed)
		must.Do(t, err, "%s", text)
		must.Equal(t, string(must.Get(mark(once, "_meta", metaReplayed))(t)), string(once), "%s became %s and then %s",
			text, once)
		var got map[string]any
		must.Do(t, json.Unmarshal(once, &got))
		meta, _ := got["_meta"].(map[string]any)
		if meta["replayed"] != true {
			t.Fatalf("%s", once)
		}
		delete(meta, "replayed")
		if len(meta) == 0 {
			delete(got, "_meta")
			delete(object, "_meta")
		}
		want, _ := json.Marshal(object)
		if have, _ := json.Marshal(got); string(have) != string(want) {
			t.Fatalf("%s became %s", want, have)
		}
	})
}

// TestRefusals checks that a refusal says whether nothing was done or something may have been, and what to do next,
// because an agent acts on it.
func TestRefusals(t *testing.T) {
	t.Parallel()
	record := &idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "acme", Vault: "main"}, Namespace: "pay/charge", Key: "it's 1",
	}
	for _, key := range []string{"", "k1"} {
		c := &call{name: "charge", key: key, tool: &Tool{IfUnknown: "Look at list_charges."}}
		for _, test := range []struct {
			err  error
			says []string
		}{
			{errors.New("no route"), []string{"no route", "Nothing was done", "Repeat the same call"}},
			{&idempotency.Error{Code: idempotency.CodeOutcomeUnknown}, []string{"may have happened", "list_charges",
				`--namespace pay/charge 'it'\''s 1'`, "--organization acme --vault main"}},
			{&idempotency.Error{Code: idempotency.CodeInFlight, RetryAfter: 1500 * time.Millisecond},
				[]string{"same " + c.sameness(), "at most 2", "Nothing new was done"}},
			{&idempotency.Error{Code: idempotency.CodeKeyReused}, []string{"another call", "Nothing was done"}},
			{&idempotency.Error{Code: idempotency.CodeNotRetained}, []string{"no longer kept", "not run again"}},
			{&idempotency.Error{Code: idempotency.CodeQuota, RetryAfter: time.Second},
				[]string{"Nothing was done", "in 1 seconds"}},
			{&idempotency.Error{Code: idempotency.CodeStoreUnavailable, RetryAfter: 2 * time.Second},
				[]string{"does not answer", "Nothing was done", "in 2 seconds"}},
		} {
			var got struct {
				IsError bool
				Content []struct{ Type, Text string }
				Meta    map[string]string `json:"_meta"`
			}
			line := c.refusal(record, test.err)
			if err := json.Unmarshal(line, &got); err != nil || !got.IsError || len(got.Content) != 1 {
				t.Fatalf("%s: %v", line, err)
			}
			for _, says := range test.says {
				check.Contains(t, got.Content[0].Text, says, "%v", test.err)
			}
			if got.Meta[metaCode] == "" || got.Meta[metaAction] == "" {
				t.Errorf("%v: %s tells no program what to do", test.err, line)
			}
		}
	}
}

// TestCallsThatAreTheSame checks that without a key the configured arguments identify a call, whatever the order of
// their members, and that with a key the key does.
func TestCallsThatAreTheSame(t *testing.T) {
	t.Parallel()
	identify := func(tool *Tool, key, arguments string) (string, time.Duration, error) {
		g := New(Options{Config: &Config{Server: "pay", Tools: map[string]*Tool{"charge": tool}}})
		c := &call{name: "charge", tool: tool, key: key, arguments: jsontext.Value(arguments)}
		k, _, window, err := g.identify(t.Context(), c)
		return k, window, err
	}
	all := &Tool{Window: time.Minute, KeyWindow: time.Hour}
	one := &Tool{Window: time.Minute, KeyWindow: time.Hour, Arguments: []string{"/order/id"}}
	for _, test := range []struct {
		tool *Tool
		a, b string
		same bool
	}{
		{all, `{"a":1,"b":2}`, `{"b":2,"a":1}`, true},
		{all, `{"a":1.0}`, `{"a":1}`, true},
		{all, `{"a":1}`, `{"a":2}`, false},
		{all, `{"a":1}`, `{"a":"1"}`, false},
		{all, `{}`, `{"a":null}`, false},
		{one, `{"order":{"id":1},"note":"x"}`, `{"note":"y","order":{"id":1}}`, true},
		{one, `{"order":{"id":1}}`, `{"order":{"id":2}}`, false},
	} {
		a, window, errA := identify(test.tool, "", test.a)
		b, _, errB := identify(test.tool, "", test.b)
		if errA != nil || errB != nil || (a == b) != test.same || !strings.HasPrefix(a, derivedPrefix) ||
			window != time.Minute {
			t.Errorf("%s and %s: %s and %s, %v, %v", test.a, test.b, a, b, errA, errB)
		}
	}
	if key, window, err := identify(one, "k1", `{"other":1}`); key != "k1" || window != time.Hour || err != nil {
		t.Errorf("with a key: %s, %v, %v", key, window, err)
	}
	for _, nothing := range []string{
		`{}`, `{"other":1}`, `{"order":null}`, `{"order":{}}`, `{"order":"A"}`, `{"order":{"id":null}}`, `{"order":{"id":""}}`,
		`{"order":{"id":" \u00a0\u200b"}}`, `{"order":{"id":"\u3164\u2800\ufe0f"}}`,
		`{"order":{"id":[]}}`, `{"order":{"id":{}}}`, `{"order":{"id":[null,{"a":""}]}}`,
		`{"order":[{"id":1}]}`,
	} {
		_, _, err := identify(one, "", nothing)
		check.ErrorContains(t, err, "/order/id is missing", "%s does not tell calls apart", nothing)
	}
	for _, value := range []string{`0`, `false`, `"0"`, `[null,1]`, `{"a":true}`} {
		if _, _, err := identify(one, "", `{"order":{"id":`+value+`}}`); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestLinesAtTheirBound checks that a line of exactly the limit is read, that one with another byte passes unread, and
// that the last line needs no line end.
func TestLinesAtTheirBound(t *testing.T) {
	t.Parallel()
	for _, buffer := range []int{16, 64, 4096} {
		text := strings.Repeat("a", 100) + "\n" + strings.Repeat("b", 101) + "\nlast"
		r := bufio.NewReaderSize(strings.NewReader(text), buffer)
		if line, tooLong, err := readLine(r, 100); len(line) != 100 || tooLong || err != nil {
			t.Errorf("at the bound: %d bytes, too long %v, %v", len(line), tooLong, err)
		}
		line, tooLong, err := readLine(r, 100)
		if !tooLong || err != nil {
			t.Fatalf("beyond it: %d bytes, too long %v, %v", len(line), tooLong, err)
		}
		var more bytes.Buffer
		if err := rest(&more, r, line); err != nil || string(line)+more.String() != strings.Repeat("b", 101)+"\n" {
			t.Errorf("%q and %q, %v", line, more.String(), err)
		}
		if line, tooLong, err := readLine(r, 100); string(line) != "last" || tooLong || !errors.Is(err, io.EOF) {
			t.Errorf("the last one: %q, %v, %v", line, tooLong, err)
		}
	}
	full := errors.New("full")
	r := bufio.NewReaderSize(strings.NewReader(strings.Repeat("b", 100)), 16)
	check.Is(t, rest(brokenWriter{full}, r, []byte("b")), full, "a writer that fails")
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }
