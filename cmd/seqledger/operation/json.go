package operation

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Help describes the JSON of operations to users.
const Help = `An operation in JSON is an object with one field:

    {"set": {"key": "balance/42", "value": "100"}}
    {"set": {"key": "k", "value": {"base64": "AAEC"}, "condition": {"not_exists": true},
             "expires_at": "2030-01-31T12:00:00Z"}}
    {"delete": {"key": "k", "condition": {"version": 17}}}
    {"append": "any text"}   or   {"append": {"base64": "AAEC"}}
    {"relate": {"resource": "doc:1", "relation": "viewer", "subject": "user:ann"}}
    {"unrelate": {"resource": "doc:1", "relation": "viewer", "subject": "user:ann"}}

A value is a JSON string, whose UTF-8 bytes are stored, or {"base64": "…"}. A condition is one of
{"not_exists": true}, {"must_exist": true}, {"version": N} and {"value_equals": VALUE}.`

// Parse reads one operation, or an array of operations that make up one write. It
// accepts nothing ambiguous: no unknown or repeated names, and no text that JSON cannot
// represent exactly.
func Parse(text []byte) ([]*seqledgerv1.Operation, error) {
	if err := checkJSON(text); err != nil {
		return nil, err
	}
	items := []json.RawMessage{text}
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		if err := json.Unmarshal(text, &items); err != nil {
			return nil, err
		}
		if len(items) == 0 || len(items) > machine.MaxOperations {
			return nil, fmt.Errorf("a write has 1 to %d operations, not %d", machine.MaxOperations, len(items))
		}
	}
	operations := make([]*seqledgerv1.Operation, 0, len(items))
	for i, item := range items {
		operation, err := parseOperation(item)
		if err != nil {
			if len(items) > 1 {
				err = fmt.Errorf("operation %d: %w", i, err)
			}
			return nil, err
		}
		operations = append(operations, operation)
	}
	return operations, Check(operations...)
}

// parseOperation reads one object.
func parseOperation(text []byte) (*seqledgerv1.Operation, error) {
	o, err := parseObject(text)
	if err != nil {
		return nil, fmt.Errorf("an operation %w", err)
	}
	if len(o) != 1 {
		return nil, fmt.Errorf("an operation has one field, not %d", len(o))
	}
	for name, body := range o {
		kind := kindNamed(name)
		if kind == nil || kind.parse == nil {
			return nil, fmt.Errorf("unknown operation %q%s", name, apiHint(name))
		}
		op := message.Operation{Kind: kind.kind}
		if err := kind.parse(&op, body); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return op.Message(), nil
	}
	return nil, nil // not reached: there is exactly one field
}

// apiHint says how an operation is given here that the API calls by this name; empty for another name.
func apiHint(name string) string {
	m := new(seqledgerv1.Operation).ProtoReflect()
	fields := m.Descriptor().Fields()
	field := cmp.Or(fields.ByJSONName(name), fields.ByTextName(name))
	if field == nil {
		return ""
	}
	m.Mutable(field)
	kind, _ := kindOf(m.Interface().(*seqledgerv1.Operation)) //nolint:forcetypeassert // It was made from one.
	if kind == nil || kind.parse == nil {
		return ""
	}
	return fmt.Sprintf(`, as the API has it; here it is {%q: …}, and a value is text or {"base64": "…"}`, kind.verb)
}

// object is a JSON object whose fields are removed one by one.
type object map[string]json.RawMessage

func parseObject(text []byte) (object, error) {
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, errors.New("must be a JSON object")
	}
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, err
	}
	return o, nil
}

// first returns the first error, or nil. A message has one line.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// nothingElse refuses remaining fields: a mistyped condition must not be dropped silently.
func (o object) nothingElse() error {
	for name := range o {
		return fmt.Errorf("unknown field %q", name)
	}
	return nil
}

func (o object) take(name string) (json.RawMessage, bool) {
	body, ok := o[name]
	delete(o, name)
	return body, ok
}

func (o object) text(name string, into *string) error {
	body, ok := o.take(name)
	if !ok {
		return fmt.Errorf("%s is missing", name)
	}
	s, err := parseString(body)
	*into = s
	return within(name, err)
}

func (o object) value(name string, into *[]byte) (err error) {
	body, ok := o.take(name)
	if !ok {
		return fmt.Errorf("%s is missing", name)
	}
	*into, err = parseValue(body)
	return within(name, err)
}

func (o object) time(name string, into **timestamppb.Timestamp) error {
	body, ok := o.take(name)
	if !ok {
		return nil
	}
	s, err := parseString(body)
	if err != nil {
		return within(name, err)
	}
	*into, err = ParseTime(s)
	return within(name, err)
}

// ParseTime parses a time in the form of flags, JSON operations and auth files.
func ParseTime(text string) (*timestamppb.Timestamp, error) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a time with a zone, such as 2030-01-31T12:00:00Z", text)
	}
	return timestamppb.New(at), nil
}

func (o object) condition(into **seqledgerv1.Condition) error {
	body, ok := o.take("condition")
	if !ok {
		return nil
	}
	fields, err := parseObject(body)
	if err != nil {
		return within("condition", err)
	}
	if len(fields) != 1 {
		return fmt.Errorf("condition: has one field, not %d", len(fields))
	}
	for name, value := range fields {
		*into, err = readCondition(name, value)
	}
	return within("condition", err)
}

// readCondition reads the one field of a condition.
func readCondition(name string, value json.RawMessage) (*seqledgerv1.Condition, error) {
	switch name {
	case "not_exists", "must_exist":
		if string(value) != "true" {
			return nil, fmt.Errorf("%s: must be true", name)
		}
		if name == "not_exists" {
			return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}, nil
		}
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}, nil
	case "version":
		version, err := strconv.ParseUint(strings.Trim(string(value), `"`), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("version: must be a number from 0 to %d", uint64(math.MaxUint64))
		}
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: version}}, nil
	case "value_equals":
		value, err := parseValue(value)
		condition := &seqledgerv1.Condition_ValueEquals{ValueEquals: value}
		return &seqledgerv1.Condition{Condition: condition}, within(name, err)
	case "valueEquals":
		return nil, errors.New(`unknown field "valueEquals"; here it is value_equals, text or {"base64": "…"}`)
	}
	return nil, fmt.Errorf("unknown field %q", name)
}

// within adds the field's name to an error; nil stays nil.
func within(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// parseValue reads a string or {"base64": "…"}.
func parseValue(body json.RawMessage) ([]byte, error) {
	if len(body) > 0 && body[0] != '{' {
		s, err := parseString(body)
		return []byte(s), err
	}
	o, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	encoded, ok := o.take("base64")
	if !ok || len(o) > 0 {
		return nil, errors.New(`must be a string or {"base64": "…"}`)
	}
	s, err := parseString(encoded)
	if err != nil {
		return nil, within("base64", err)
	}
	value, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("base64: must be standard base64 with padding")
	}
	return value, nil
}

func parseString(body json.RawMessage) (string, error) {
	if len(body) == 0 || body[0] != '"' {
		return "", errors.New("must be a string")
	}
	var s string
	err := json.Unmarshal(body, &s)
	return s, err
}
