package operation

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// operationKind is all that the command knows of one kind of operation.
type operationKind struct {
	kind message.Kind
	// verb names the kind in output, in JSON, and as a flag; a flag that reads the value from a file
	// ends in "-file".
	verb string
	// flag parses the value of the flag; nil: there is none.
	flag func(op *message.Operation, value string, file bool) error
	// parse parses the JSON form; nil: there is none.
	parse func(op *message.Operation, body json.RawMessage) error
	// object describes what the operation is about.
	object func(op *message.Operation) string
}

// operationKinds are the kinds of operations. A kind that is new in the API needs a line here, a
// flag in writeCommand, and a line in Help.
var operationKinds = []operationKind{
	{message.SetEntity, "set", flagSet, parseSet, describeSet},
	{message.DeleteEntity, "delete", flagDelete, parseDelete, describeDelete},
	{message.CreateRelationship, "relate", flagRelation, parseRelation, describeRelation},
	{message.DeleteRelationship, "unrelate", flagRelation, parseRelation, describeRelation},
	{message.Append, "append", flagAppend, parseAppend, describeAppend},
	{message.ExpireEntity, "expire", nil, nil, describeExpire},
}

// kindOf returns the kind of an operation and its contents, and nil for an operation of no kind, or
// of one that is newer than this program.
func kindOf(m *seqledgerv1.Operation) (*operationKind, *message.Operation) {
	op, ok := message.ReadOperation(m)
	for i := range operationKinds {
		if ok && operationKinds[i].kind == op.Kind {
			return &operationKinds[i], &op
		}
	}
	return nil, &op
}

// kindNamed returns the kind with a verb, or nil.
func kindNamed(verb string) *operationKind {
	for i := range operationKinds {
		if operationKinds[i].verb == verb {
			return &operationKinds[i]
		}
	}
	return nil
}

func flagSet(op *message.Operation, value string, file bool) (err error) {
	var rest string
	if op.Key, rest, err = cutKey(value); err == nil {
		op.Value, err = flagContent(rest, file)
	}
	return err
}

func parseSet(op *message.Operation, body json.RawMessage) error {
	o, err := parseObject(body)
	if err != nil {
		return err
	}
	err = first(o.text("key", &op.Key), o.value("value", &op.Value), o.condition(&op.Condition),
		o.time("expires_at", &op.ExpiresAt))
	return first(err, o.nothingElse())
}

func describeSet(op *message.Operation) string {
	object := quoted(op.Key) + "=" + Display(op.Value)
	if op.ExpiresAt != nil {
		object += "  expires " + op.ExpiresAt.AsTime().UTC().Format(time.RFC3339Nano)
	}
	return object + describeCondition(op.Condition)
}

func flagDelete(op *message.Operation, value string, _ bool) error {
	op.Key = value
	return nil
}

func parseDelete(op *message.Operation, body json.RawMessage) error {
	o, err := parseObject(body)
	if err != nil {
		return err
	}
	return first(o.text("key", &op.Key), o.condition(&op.Condition), o.nothingElse())
}

func describeDelete(op *message.Operation) string {
	return quoted(op.Key) + describeCondition(op.Condition)
}

func flagRelation(op *message.Operation, value string, _ bool) (err error) {
	op.Key, op.Relation, op.Subject, err = cutRelationship(value)
	return err
}

func parseRelation(op *message.Operation, body json.RawMessage) error {
	o, err := parseObject(body)
	if err != nil {
		return err
	}
	return first(o.text("resource", &op.Key), o.text("relation", &op.Relation), o.text("subject", &op.Subject),
		o.nothingElse())
}

func describeRelation(op *message.Operation) string {
	return relationshipText(op.Key, op.Relation, op.Subject)
}

func flagAppend(op *message.Operation, value string, file bool) (err error) {
	op.Value, err = flagContent(value, file)
	return err
}

func parseAppend(op *message.Operation, body json.RawMessage) (err error) {
	op.Value, err = parseValue(body)
	return err
}

func describeAppend(op *message.Operation) string { return Display(op.Value) }

func describeExpire(op *message.Operation) string { return quoted(op.Key) }

// flagContent returns the content of a file, or the text itself.
func flagContent(text string, file bool) ([]byte, error) {
	if file {
		return readValue(text)
	}
	return []byte(text), nil
}

// Display shows printable text as it is, and other bytes as base64 that can be used as input: a
// terminal must not interpret a value.
func Display(value []byte) string {
	if utf8.Valid(value) && bytes.IndexFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return string(value)
	}
	return "base64:" + base64.StdEncoding.EncodeToString(value)
}

// quoted shows untrusted text on one line and in one column.
func quoted(s string) string { return Display([]byte(s)) }

// Describe returns an operation as people read it: its verb, and what it is about. The verb of an
// operation that is newer than this program is unknown.
func Describe(m *seqledgerv1.Operation) (verb, object string) {
	kind, op := kindOf(m)
	if kind == nil {
		return "unknown", ""
	}
	return kind.verb, kind.object(op)
}

func describeCondition(c *seqledgerv1.Condition) string {
	switch c := c.GetCondition().(type) {
	case *seqledgerv1.Condition_NotExists:
		return "  if absent"
	case *seqledgerv1.Condition_MustExist:
		return "  if present"
	case *seqledgerv1.Condition_Version:
		return "  if version " + strconv.FormatUint(c.Version, 10)
	case *seqledgerv1.Condition_ValueEquals:
		return "  if value " + Display(c.ValueEquals)
	}
	return ""
}

func relationshipText(resource, relation, subject string) string {
	return quoted(resource) + "#" + quoted(relation) + "@" + quoted(subject)
}
