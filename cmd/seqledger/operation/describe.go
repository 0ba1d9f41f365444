package operation

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"unicode"
	"unicode/utf8"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

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
