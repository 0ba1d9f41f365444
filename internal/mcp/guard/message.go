package guard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The limits of messages in bytes.
const (
	// MaxMessage bounds a message that the guard reads as a whole.
	MaxMessage = 16 << 20
	// MaxCall bounds the call of a guarded tool.
	MaxCall = 1 << 20
)

// The codes of JSON-RPC errors that the guard answers with.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	// codeElicitation is the code of a server that did nothing and wants the call again, after the user has visited a
	// page.
	codeElicitation = -32042
)

// readLine reads a line without its line end. For a line longer than most bytes it returns the beginning and tooLong:
// the rest, with the line end, is still to be read. A last line without a line end is returned with io.EOF.
func readLine(r *bufio.Reader, most int) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil && len(line)-1 <= most:
			return line[:len(line)-1], false, nil
		case err == nil: // only its last part makes it too long
			return line, true, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, false, err
		case len(line) > most:
			return line, true, nil
		}
	}
}

// rest copies what readLine has left of a line, including the line end.
func rest(w io.Writer, r *bufio.Reader, beginning []byte) error {
	for ended := bytes.HasSuffix(beginning, []byte{'\n'}); !ended; {
		part, err := r.ReadSlice('\n')
		if _, err := w.Write(part); err != nil {
			return err
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		ended = err == nil
	}
	return nil
}

// message is a JSON-RPC message, or a batch of messages. Its fields are slices of raw.
type message struct {
	raw    []byte
	batch  []*message     // set for a batch, which has no other field
	id     jsontext.Value // nil if there is none
	method string
	params jsontext.Value
	result jsontext.Value
	fault  jsontext.Value // the member error
}

// isCall reports whether the message expects an answer.
func (m *message) isCall() bool { return m.method != "" && m.id != nil }

// errAmbiguous is the error of a message that two readers may read differently.
var errAmbiguous = errors.New("two members have names that differ only in case")

var errBehind = errors.New("something follows the JSON value")

// parseMessage parses a message. It returns an error for anything that does not have exactly one meaning: invalid JSON,
// duplicate names at any depth, and names that differ from those of JSON-RPC only in case, because some servers ignore
// case.
func parseMessage(raw []byte) (*message, error) {
	m := &message{raw: raw}
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	if d.PeekKind() == '[' {
		return m, m.parseBatch(d)
	}
	err := members(raw, func(name string, value jsontext.Value) error {
		switch name {
		case "id":
			if kind := value.Kind(); kind != '"' && kind != '0' && kind != 'n' {
				return errors.New("the member id must be a string or a number")
			}
			m.id = value
		case "method":
			if value.Kind() != '"' {
				return errors.New("the member method must be a string")
			}
			m.method = stringOf(value)
		case "params":
			m.params = value
		case "result":
			m.result = value
		case "error":
			m.fault = value
		default:
			return unlike(name, "jsonrpc", "id", "method", "params", "result", "error")
		}
		return nil
	})
	return m, err
}

// parseBatch reads the messages of a batch.
func (m *message) parseBatch(d *jsontext.Decoder) error {
	whole, err := d.ReadValue()
	if err != nil {
		return err
	}
	whole = whole.Clone() // the decoder reuses its memory
	err = elements(whole, func(value jsontext.Value) error {
		if value.Kind() != '{' {
			return errors.New("a batch must have objects alone")
		}
		one, err := parseMessage(value)
		m.batch = append(m.batch, one)
		return err
	})
	if err != nil {
		return err
	}
	// Anything after the batch would pass unread, and a server that reads values instead of lines would execute it.
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errBehind
	}
	return nil
}

// unlike returns errAmbiguous if a name differs from one of others only in case.
func unlike(name string, others ...string) error {
	for _, other := range others {
		if name != other && strings.EqualFold(name, other) {
			return fmt.Errorf("%w: %q", errAmbiguous, name)
		}
	}
	return nil
}

// members calls do for each member of a JSON object. Nothing may follow the object.
func members(object []byte, do func(name string, value jsontext.Value) error) error {
	d := jsontext.NewDecoder(bytes.NewReader(object))
	token, err := d.ReadToken()
	if err != nil {
		return asJSON(err)
	}
	if token.Kind() != '{' {
		return errors.New("must be a JSON object")
	}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return asJSON(err)
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return asJSON(err)
		}
		end := int(d.InputOffset())
		if err := do(name, jsontext.Value(object[end-len(value):end])); err != nil {
			return err
		}
	}
	return atEnd(d)
}

// elements calls do for each element of a JSON array.
func elements(array []byte, do func(value jsontext.Value) error) error {
	d := jsontext.NewDecoder(bytes.NewReader(array))
	token, err := d.ReadToken()
	if err != nil {
		return asJSON(err)
	}
	if token.Kind() != '[' {
		return errors.New("must be a JSON array")
	}
	for {
		switch d.PeekKind() {
		case ']', 0:
			return atEnd(d)
		}
		value, err := d.ReadValue()
		if err != nil {
			return asJSON(err)
		}
		end := int(d.InputOffset())
		if err := do(jsontext.Value(array[end-len(value) : end])); err != nil {
			return err
		}
	}
}

// atEnd reads the end of an object or an array, and of the text.
func atEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); err != nil {
		return asJSON(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errBehind
	}
	return nil
}

// asJSON returns the error of a decoder. The end of the text inside a value is not io.EOF.
func asJSON(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// stringOf returns the text of a JSON string. The value must be a valid JSON string.
func stringOf(value jsontext.Value) string {
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return ""
	}
	return string(text)
}

// quote returns a text as a JSON string.
func quote(text string) jsontext.Value {
	value, err := jsontext.AppendQuote(nil, text)
	if err != nil { // invalid UTF-8, which json replaces
		value, _ = json.Marshal(text)
	}
	return value
}

// edit is a change to a JSON object: the new value of a member.
type edit struct {
	name  string
	value jsontext.Value
}

// setMembers returns a JSON object with new values for some members; all other bytes stay the same. Members that the
// object lacks are added at its end.
func setMembers(object jsontext.Value, edits ...edit) (jsontext.Value, error) {
	var out []byte
	last, seen, members := 0, map[string]bool{}, 0
	d := jsontext.NewDecoder(bytes.NewReader(object))
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, errors.New("must be a JSON object")
	}
	for ; d.PeekKind() == '"'; members++ {
		token, err := d.ReadToken()
		if err != nil {
			return nil, asJSON(err)
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, asJSON(err)
		}
		for _, e := range edits {
			if e.name == name {
				end := int(d.InputOffset())
				out = append(append(out, object[last:end-len(value)]...), e.value...)
				last, seen[name] = end, true
			}
		}
	}
	if err := atEnd(d); err != nil {
		return nil, err
	}
	closing := bytes.LastIndexByte(object, '}')
	out = append(out, object[last:closing]...)
	for _, e := range edits {
		if seen[e.name] {
			continue
		}
		if members++; members > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, quote(e.name)...), ':'), e.value...)
	}
	return append(out, object[closing:]...), nil
}

// rpcResult returns the answer to a call. Its arguments are JSON.
func rpcResult(id, result jsontext.Value) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

// rpcFault returns the answer to a call that failed. fault is a JSON object.
func rpcFault(id, fault jsontext.Value) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, id, fault)
}

// rpcError is rpcFault for an error of the guard itself.
func rpcError(id jsontext.Value, code int, text string) []byte {
	if id == nil {
		id = jsontext.Value("null")
	}
	return rpcFault(id, fmt.Appendf(nil, `{"code":%d,"message":%s}`, code, quote(text)))
}
