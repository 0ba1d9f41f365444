package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/ledger/machine"
)

// maxExplained is how many bytes of JSON are searched for a mistake's field, which costs several times as much as
// decoding. Of the mistakes in longer ones the decoder's position is told.
const maxExplained = 64 << 10

// decodeJSON reads a message in JSON. The error is a *machine.FieldError.
func decodeJSON(data []byte, m proto.Message) error {
	explain := maxExplained
	return decodeJSONPart(data, m, &explain)
}

// decodeJSONPart is decodeJSON for a part of a message, of which explain bytes may still be searched for mistakes.
func decodeJSONPart(data []byte, m proto.Message, explain *int) error {
	if problem, _ := jsonLimits(data); problem != nil {
		return problem
	}
	err := protojson.UnmarshalOptions{}.Unmarshal(data, m)
	if err == nil {
		return nil
	}
	if *explain -= len(data); *explain < 0 {
		return jsonPlaceProblem(m.ProtoReflect().Descriptor(), "", err)
	}
	if field := explainJSON(m.ProtoReflect().Type(), data, ""); field != nil {
		return field
	}
	// A problem of the whole object, such as a field given twice.
	return jsonWholeProblem(m.ProtoReflect().Descriptor(), "", err)
}

const (
	// maxElements of any list or object in a request in JSON: no message has more fields, and no list of a request a
	// higher limit.
	maxElements = max(MaxFrameWrites, machine.MaxOperations)
	// maxObjects of a request in JSON: an operation has three, a write two beside, the frame is one.
	maxObjects = 3*MaxFrameOperations + 2*MaxFrameWrites + 1
	// maxDepth of lists and objects in one another, so that a reader cannot run out of stack; a frame has seven.
	maxDepth = 16
)

// jsonLevel is a list or an object around the current position of a scan.
type jsonLevel struct {
	list   bool
	commas int
	key    []byte // of the current member
}

// jsonLimits returns an error for the first list or object that is too long or too deep, with its depth from 1, or nil.
// It runs before decoding, because `{}` takes two bytes in the text and hundreds in memory. It does not validate the
// JSON: a syntax error that misleads it also stops the decoder at the same place.
func jsonLimits(data []byte) (problem *machine.FieldError, depth int) {
	var levels [maxDepth]jsonLevel
	var text []byte // the last string, as it is written
	objects := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			first := i + 1
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			text = data[first:min(i, len(data))]
		case ':':
			if depth > 0 {
				levels[depth-1].key = text
			}
		case '{', '[':
			if data[i] == '{' {
				objects++
			}
			if objects > maxObjects { // all together are too many
				return &machine.FieldError{
					Problem: fmt.Sprintf("has more than %d objects: send several messages", maxObjects),
				}, 1
			}
			if depth == maxDepth {
				return &machine.FieldError{Field: jsonPath(levels[:]), Problem: "is nested too deeply"}, depth
			}
			levels[depth] = jsonLevel{list: data[i] == '['}
			depth++
		case '}', ']':
			depth = max(0, depth-1)
		case ',':
			if depth == 0 {
				continue
			}
			if levels[depth-1].commas++; levels[depth-1].commas >= maxElements {
				return &machine.FieldError{
					Field: jsonPath(levels[:depth]), Problem: fmt.Sprintf("has more than %d elements", maxElements),
				}, depth
			}
		}
	}
	return nil, 0
}

// jsonPath names the last level.
func jsonPath(levels []jsonLevel) string {
	path := ""
	for _, l := range levels[:len(levels)-1] {
		if l.list {
			path += fmt.Sprintf("[%d]", l.commas)
			continue
		}
		// An answer must be UTF-8, whatever the request was.
		path = join(path, Clip(strings.ToValidUTF8(string(l.key), "?")))
	}
	return Clip(path)
}

// splitJSON returns the writes of a frame. It reads tokens, because encoding/json would accept a key in any letter
// case, and the last of two.
func splitJSON(data []byte) (writes [][]byte, problem *machine.FieldError) {
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
		if len(elements) > MaxFrameWrites {
			return nil, &machine.FieldError{
				Field: "writes", Problem: fmt.Sprintf("must be at most %d, are %d", MaxFrameWrites, len(elements)),
			}
		}
		for _, element := range elements {
			writes = append(writes, element)
		}
	}
	if _, err := tokens.Token(); err != nil {
		return nil, &machine.FieldError{Problem: "is not a JSON object"}
	}
	if _, err := tokens.Token(); !errors.Is(err, io.EOF) {
		return nil, &machine.FieldError{Problem: "continues after the JSON object"}
	}
	return writes, nil
}

// explainJSON returns the first field that is unknown or has a wrong value; nil when each field alone is valid.
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
	case !isOurs(field): // a scalar, or a time, which is a text
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

// Clip shortens a text, so that an answer does not repeat a huge input.
func Clip(s string) string {
	const limit = 200
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// The decoding libraries describe errors in terms of Go: types, functions and time layouts. This part of the file
// describes them in terms of the API.

// unknownJSONField returns the error for an unknown field. A name that is not UTF-8 cannot be part of an answer.
func unknownJSONField(path, name string) *machine.FieldError {
	if !utf8.ValidString(name) || strings.ContainsRune(name, utf8.RuneError) {
		return &machine.FieldError{Field: path, Problem: "has an unknown field whose name is not UTF-8"}
	}
	return &machine.FieldError{Field: join(path, Clip(name)), Problem: "is an unknown field"}
}

// jsonValueProblem says what the value of a field must be.
func jsonValueProblem(field protoreflect.FieldDescriptor, value []byte) string {
	switch field.Kind() {
	case protoreflect.Uint64Kind:
		return "must be a whole number from 0 to 18446744073709551615" + shown(value)
	case protoreflect.Uint32Kind:
		return "must be a whole number from 0 to 4294967295" + shown(value)
	case protoreflect.BoolKind:
		return "must be true or false" + shown(value)
	case protoreflect.StringKind:
		return "must be a text in UTF-8"
	case protoreflect.BytesKind:
		return "must be a text in base64"
	case protoreflect.EnumKind:
		var names []string
		for i := range field.Enum().Values().Len() {
			names = append(names, string(field.Enum().Values().Get(i).Name()))
		}
		return "must be one of " + strings.Join(names, ", ") + shown(value)
	case protoreflect.MessageKind:
		switch field.Message().FullName() {
		case "google.protobuf.Timestamp":
			return `must be a time from the year 1 to 9999 with its zone, such as "2027-01-31T12:00:00Z"` + shown(value)
		case "google.protobuf.Duration":
			return `must be a number of seconds with an s, such as "86400s"` + shown(value)
		}
	}
	return "has a value of another type"
}

// maxShown is the maximum length of a value that is repeated in an answer.
const maxShown = 64

// shown returns a value for a message, if it can be part of an answer.
func shown(value []byte) string {
	if len(value) == 0 || len(value) > maxShown || !utf8.Valid(value) || value[0] == '{' || value[0] == '[' {
		return ""
	}
	return ", is " + string(value)
}

var (
	unknownField   = regexp.MustCompile(`unknown field "([^"]*)"`)
	jsonPosition   = regexp.MustCompile(`\(line (\d+:\d+)\)`)
	duplicateField = regexp.MustCompile(`duplicate field "([^"]*)"`)
	oneofIsSet     = regexp.MustCompile(`error parsing "([^"]*)", oneof [^ ]* is already set`)
)

// jsonWholeProblem describes the mistake in an object whose fields are each valid.
func jsonWholeProblem(d protoreflect.MessageDescriptor, path string, err error) *machine.FieldError {
	if found := duplicateField.FindStringSubmatch(err.Error()); found != nil {
		name := Clip(found[1])
		if field := d.Fields().ByJSONName(name); field != nil {
			name = string(field.Name())
		}
		return &machine.FieldError{Field: join(path, name), Problem: "is given twice"}
	}
	if found := oneofIsSet.FindStringSubmatch(err.Error()); found != nil {
		return &machine.FieldError{Field: path,
			Problem: fmt.Sprintf("has %s in addition to another one, and only one of them is allowed", Clip(found[1]))}
	}
	return jsonPlaceProblem(d, path, err)
}

// jsonPlaceProblem says from where on an object is wrong, and names a field whose path is not known.
func jsonPlaceProblem(d protoreflect.MessageDescriptor, path string, err error) *machine.FieldError {
	problem := "is not the JSON of " + string(d.FullName())
	if found := jsonPosition.FindStringSubmatch(err.Error()); found != nil {
		problem += " from line " + found[1] + " on"
	}
	if name := unknownField.FindStringSubmatch(err.Error()); name != nil {
		problem += ": " + Clip(name[1]) + " is an unknown field"
	} else if name := duplicateField.FindStringSubmatch(err.Error()); name != nil {
		problem += ": " + Clip(name[1]) + " is given twice"
	}
	return &machine.FieldError{Field: path, Problem: problem}
}
