package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Unknown fields are refused, because an unknown condition must not be dropped silently. Fields
// that are given twice are refused, because the caller may mean the one that would be dropped.
// A second, slow pass over the bytes finds what is wrong, so only invalid messages pay for it.

// decodeBinary reads a protobuf message. The error is a *machine.FieldError.
func decodeBinary(data []byte, m proto.Message) error {
	if w, ok := m.(*seqledgerv1.WriteRequest); ok && writeShape.fits(data) && w.UnmarshalVT(data) == nil {
		return nil // the hot path: nothing by reflection
	}
	// Explain before decoding, because that stops at the limit of a list.
	if field := explainBinary(m.ProtoReflect().Descriptor(), data, ""); field != nil {
		return field
	}
	if proto.Unmarshal(data, m) != nil {
		return &machine.FieldError{
			Problem: fmt.Sprint("is not the binary encoding of ", m.ProtoReflect().Descriptor().FullName())}
	}
	return nil
}

// decodeJSON reads a message in JSON. The error is a *machine.FieldError.
func decodeJSON(data []byte, m proto.Message) error {
	if problem, _ := boundJSON(data); problem != nil {
		return problem
	}
	err := protojson.UnmarshalOptions{}.Unmarshal(data, m)
	if err == nil {
		return nil
	}
	if field := explainJSON(m.ProtoReflect().Type(), data, ""); field != nil {
		return field
	}
	// A problem of the whole object, such as a field given twice.
	return jsonWholeProblem(m.ProtoReflect().Descriptor(), "", err)
}

// explainBinary returns the first field that is unknown, of the wrong type,
// given twice, too long a list or not UTF-8, or where the encoding breaks; nil
// when there is none.
func explainBinary(d protoreflect.MessageDescriptor, data []byte, path string) *machine.FieldError {
	seen := map[protowire.Number]int{} // how often
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return &machine.FieldError{Field: path, Problem: "is malformed protobuf"}
		}
		field := d.Fields().ByNumber(number)
		if field == nil {
			return &machine.FieldError{Field: join(path, fmt.Sprint(number)), Problem: "is an unknown field"}
		}
		at := join(path, string(field.Name()))
		if problem := explainRepeat(field, seen); problem != "" {
			return &machine.FieldError{Field: at, Problem: problem}
		}
		if field.IsList() {
			at = fmt.Sprintf("%s[%d]", at, seen[number])
		}
		seen[number]++
		size := protowire.ConsumeFieldValue(number, wire, data[n:])
		if size < 0 {
			return &machine.FieldError{Field: at, Problem: "is malformed protobuf"}
		}
		if wire != wireType(field.Kind()) {
			return &machine.FieldError{Field: at, Problem: "has the wrong wire type"}
		}
		if problem := explainValue(field, data[n:n+size], at); problem != nil {
			return problem
		}
		data = data[n+size:]
	}
	return nil
}

// explainRepeat returns why a field must not follow those that were seen, or "".
func explainRepeat(field protoreflect.FieldDescriptor, seen map[protowire.Number]int) string {
	switch n := seen[field.Number()]; {
	case field.IsList() && n == machine.MaxOperations: // no request has another list
		return fmt.Sprintf("has more than %d elements", n)
	case field.IsList():
		return ""
	case n > 0:
		return "is given twice"
	}
	if choice := field.ContainingOneof(); choice != nil {
		for i := range choice.Fields().Len() {
			if other := choice.Fields().Get(i); seen[other.Number()] > 0 {
				return fmt.Sprintf("is given although %s is, and only one of them may be", other.Name())
			}
		}
	}
	return ""
}

func explainValue(field protoreflect.FieldDescriptor, data []byte, at string) *machine.FieldError {
	switch field.Kind() {
	case protoreflect.StringKind:
		if text, _ := protowire.ConsumeBytes(data); !utf8.Valid(text) {
			return &machine.FieldError{Field: at, Problem: "is not UTF-8"}
		}
	case protoreflect.MessageKind:
		inner, _ := protowire.ConsumeBytes(data)
		return explainBinary(field.Message(), inner, at)
	}
	return nil
}

// wireType returns the wire type of a kind. No request has a repeated number, which could be
// packed.
func wireType(kind protoreflect.Kind) protowire.Type {
	switch kind {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	default:
		return protowire.VarintType
	}
}

// explainJSON returns the first field that is unknown or has a wrong value; nil
// when each field by itself is right.
func explainJSON(t protoreflect.MessageType, data []byte, path string) *machine.FieldError {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return &machine.FieldError{Field: path, Problem: "is not a JSON object"}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		d := t.Descriptor().Fields()
		field := d.ByJSONName(name)
		if field == nil {
			field = d.ByTextName(name) // the proto name is accepted too
		}
		if field == nil {
			return unknownJSONField(path, name)
		}
		single, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		if err == nil {
			err = protojson.UnmarshalOptions{}.Unmarshal(single, t.New().Interface())
		}
		if err == nil {
			continue
		}
		at := join(path, string(field.Name()))
		if problem := explainJSONValue(t, field, fields[name], at); problem != nil {
			return problem
		}
		if isOurs(field) && !field.IsList() {
			return jsonWholeProblem(field.Message(), at, err)
		}
		return &machine.FieldError{Field: at, Problem: jsonValueProblem(field, fields[name])}
	}
	return nil
}

// isOurs reports whether a field holds messages of the API, not scalars or well-known types.
func isOurs(field protoreflect.FieldDescriptor) bool {
	return field.Kind() == protoreflect.MessageKind && field.Message().FullName().Parent() == "seqledger.v1"
}

// explainJSONValue looks for the mistake inside a value.
func explainJSONValue(
	t protoreflect.MessageType, field protoreflect.FieldDescriptor, data []byte, at string,
) *machine.FieldError {
	switch {
	case !isOurs(field): // a scalar, or a time, which has a text form of its own
		return nil
	case !field.IsList():
		return explainJSON(t.New().NewField(field).Message().Type(), data, at)
	}
	var elements []json.RawMessage
	if json.Unmarshal(data, &elements) != nil {
		return &machine.FieldError{Field: at, Problem: "is not a JSON array"}
	}
	inner := t.New().NewField(field).List().NewElement().Message().Type()
	for i, element := range elements {
		// Most elements are valid, and explaining costs much more than decoding.
		err := protojson.Unmarshal(element, inner.New().Interface())
		if err == nil {
			continue
		}
		place := fmt.Sprintf("%s[%d]", at, i)
		if problem := explainJSON(inner, element, place); problem != nil {
			return problem
		}
		// Each field is valid, but not together: two of a oneof.
		return jsonWholeProblem(inner.Descriptor(), place, err)
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// clip shortens a text, so that an answer does not repeat a huge input.
func clip(s string) string {
	const limit = 200
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// splitBinary returns the encoded writes of a frame, so that one invalid write does not affect
// the others.
func splitBinary(data []byte) (writes [][]byte, err error) {
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil, &machine.FieldError{Problem: "is malformed protobuf"}
		}
		if number != writesField || wire != protowire.BytesType {
			return nil, &machine.FieldError{Field: fmt.Sprint(number), Problem: "is an unknown field"}
		}
		if len(writes) == maxFrameWrites {
			return nil, &machine.FieldError{Field: "writes", Problem: fmt.Sprintf("has more than %d elements", maxFrameWrites)}
		}
		write, size := protowire.ConsumeBytes(data[n:])
		if size < 0 {
			return nil, &machine.FieldError{Field: fmt.Sprintf("writes[%d]", len(writes)), Problem: "is malformed protobuf"}
		}
		writes = append(writes, write)
		data = data[n+size:]
	}
	return writes, nil
}

// writesField is the number of WriteStreamRequest.writes.
const writesField protowire.Number = 1

// splitJSON is splitBinary for JSON. It reads tokens, because encoding/json would accept a key
// in any letter case, and the last of two.
func splitJSON(data []byte) (writes [][]byte, err error) {
	tokens := json.NewDecoder(bytes.NewReader(data))
	if t, err := tokens.Token(); err != nil || t != json.Delim('{') {
		return nil, &machine.FieldError{Problem: "is not a JSON object"}
	}
	for found := false; tokens.More(); found = true {
		key, err := tokens.Token()
		switch {
		case err != nil:
			return nil, &machine.FieldError{Problem: "is not a JSON object"}
		case key != "writes":
			return nil, unknownJSONField("", fmt.Sprint(key))
		case found:
			return nil, &machine.FieldError{Field: "writes", Problem: "is given twice"}
		}
		var elements []json.RawMessage
		if err := tokens.Decode(&elements); err != nil {
			return nil, &machine.FieldError{Field: "writes", Problem: "is not a JSON array"}
		}
		for _, element := range elements {
			writes = append(writes, element)
		}
	}
	if _, err := tokens.Token(); err != nil {
		return nil, &machine.FieldError{Problem: "is not a JSON object"}
	}
	if _, err := tokens.Token(); !errors.Is(err, io.EOF) {
		return nil, &machine.FieldError{Problem: "goes on after the JSON object"}
	}
	return writes, nil
}
