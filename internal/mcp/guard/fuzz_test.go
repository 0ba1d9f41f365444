package guard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// FuzzLines reads lines in two ways. All bytes are in one of the lines, no line exceeds its limit, and the remainder of
// a long line is what readLine has left.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccc"), 2)
	f.Add([]byte(strings.Repeat("x", 100)+"\n"), 16)
	f.Add([]byte("\n\r\n"), 0)
	f.Fuzz(func(t *testing.T, input []byte, most int) {
		most &= 0xff
		r := bufio.NewReaderSize(bytes.NewReader(input), 16)
		var all []byte
		for {
			line, tooLong, err := readLine(r, most)
			all = append(all, line...)
			switch {
			case tooLong:
				if len(line) <= most || len(line) > most+18 {
					t.Fatalf("%d bytes of a line, at most %d", len(line), most)
				}
				var more bytes.Buffer
				err = rest(&more, r, line)
				all = append(all, more.Bytes()...)
			case len(line) > most && err == nil:
				t.Fatalf("a line of %d bytes, at most %d", len(line), most)
			case err == nil:
				all = append(all, '\n')
			}
			if err != nil {
				must.Is(t, err, io.EOF)
				break
			}
		}
		if !bytes.Equal(all, input) {
			t.Fatalf("read %q of %q", all, input)
		}
	})
}

// FuzzMessages compares the message reader with the SDK's, and the setter of members with encoding/json: what the guard
// does not take for a call of a tool, the SDK does not take for one either.
func FuzzMessages(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{"order":"A"},"_meta":{"a":1}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","id":"x","result":{"tools":[{"name":"charge"}]}}`,
		`{"jsonrpc":"2.0","id":"x","error":{"code":-32042,"message":"m"}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"METHOD":"tools/call"}`, `{"id":1,"id":2}`, `{}`, `[`,
	} {
		f.Add([]byte(seed))
	}
	config := must.Get(parseConfig("f", []byte(testConfig), Times{}))(f)
	g := New(Options{Config: config})
	f.Fuzz(func(t *testing.T, input []byte) {
		m, err := parseMessage(input)
		theirs, theirErr := jsonrpc.DecodeMessage(input)
		if err != nil {
			return // not passed on
		}
		if theirErr == nil && m.batch == nil {
			request, isRequest := theirs.(*jsonrpc.Request)
			if isRequest && request.Method != m.method {
				t.Fatalf("method %q, the SDK reads %q", m.method, request.Method)
			}
		}
		if m.method == "tools/call" {
			c, err := g.readCall(m)
			if err == nil && c.tool == nil && isCharge(input) {
				t.Fatal("a guarded call would pass")
			}
		}
		if jsontext.Value(input).Kind() == '{' {
			checkSet(t, input)
		}
	})
}

// isCharge reports whether encoding/json, which ignores case, reads the input as a call of charge.
func isCharge(input []byte) bool {
	var call struct {
		Params struct{ Name string }
	}
	return json.Unmarshal(input, &call) == nil && call.Params.Name == "charge"
}

// checkSet sets the id of a message and compares.
func checkSet(t *testing.T, input []byte) {
	out, err := setMembers(input, edit{"id", jsontext.Value(`"own"`)})
	if err != nil {
		t.Fatalf("%v after %q was read", err, input)
	}
	var before, after map[string]json.RawMessage
	if json.Unmarshal(input, &before) != nil || json.Unmarshal(out, &after) != nil {
		t.Fatalf("%q became %q", input, out)
	}
	if before == nil {
		before = map[string]json.RawMessage{}
	}
	before["id"] = json.RawMessage(`"own"`)
	if !reflect.DeepEqual(before, after) {
		t.Fatalf("%q became %q", input, out)
	}
}

// FuzzEvents reads a stream of server-sent events: each event is at most as long as the input, and a second stream
// built from the events yields the same events.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: message\nid: 1\ndata: {\"a\":\ndata: 1}\n\n: comment\n\ndata: x"))
	f.Add([]byte("data:\n\ndata\r\n\r\ndata: a\r\n\r\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		read := func(b []byte) (events []string) {
			err := readEvents(bytes.NewReader(b), func(data []byte) error {
				events = append(events, string(data))
				return nil
			})
			must.Is(t, err, io.EOF)
			return events
		}
		first := read(input)
		var again strings.Builder
		for _, event := range first {
			again.WriteString("data: " + strings.ReplaceAll(event, "\n", "\ndata: ") + "\n\n")
		}
		if second := read([]byte(again.String())); !reflect.DeepEqual(first, second) {
			t.Fatalf("%q, then %q", first, second)
		}
	})
}
