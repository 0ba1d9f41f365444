package operation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Check refuses what the ledger would refuse in any state, so that an import stops
// before its first line and not in the middle.
func Check(operation *seqledgerv1.Operation) error {
	kind, op := kindOf(operation)
	if kind == nil {
		return errors.New("has no operation")
	}
	return kind.check(op)
}

func checkKey(name, key string) error {
	if len(key) == 0 || len(key) > machine.MaxKeyBytes || !utf8.ValidString(key) {
		return fmt.Errorf("%s must have 1 to %d bytes of UTF-8", name, machine.MaxKeyBytes)
	}
	return nil
}

func checkValue(name string, value []byte) error {
	if len(value) > machine.MaxValueBytes {
		return fmt.Errorf("%s has %d bytes, at most %d are allowed", name, len(value), machine.MaxValueBytes)
	}
	return nil
}

func checkExpiry(at *timestamppb.Timestamp) error {
	if at == nil {
		return nil
	}
	last := time.Unix(0, math.MaxInt64) // the ledger's maximum
	if t := at.AsTime(); !at.IsValid() || !t.After(time.Unix(0, 0)) || t.After(last) {
		return fmt.Errorf("expires_at must be after 1970 and not after %s", last.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

// Expired returns the first set whose entity expires before now, or nil. The ledger accepts it
// and uses its own clock, so it only deserves a warning.
func Expired(operations []*seqledgerv1.Operation, now time.Time) *seqledgerv1.SetEntity {
	for _, operation := range operations {
		if set := operation.GetSetEntity(); set.GetExpiresAt() != nil && set.GetExpiresAt().AsTime().Before(now) {
			return set
		}
	}
	return nil
}

func checkCondition(condition *seqledgerv1.Condition) error {
	if condition == nil {
		return nil
	}
	switch c := condition.GetCondition().(type) {
	case *seqledgerv1.Condition_NotExists:
		if c.NotExists {
			return nil
		}
	case *seqledgerv1.Condition_MustExist:
		if c.MustExist {
			return nil
		}
	case *seqledgerv1.Condition_Version:
		return nil
	case *seqledgerv1.Condition_ValueEquals:
		return checkValue("condition: value_equals", c.ValueEquals)
	}
	return errors.New("condition must be one of not_exists: true, must_exist: true, version and value_equals")
}

// checkTotal bounds a write as a whole.
func checkTotal(operations []*seqledgerv1.Operation) error {
	total := 0
	for _, operation := range operations {
		// This is a little more than the ledger counts, which does not include the encoding.
		total += proto.Size(operation)
	}
	if total > machine.MaxWriteBytes {
		return fmt.Errorf("the operations have %d bytes together, at most %d are allowed", total, machine.MaxWriteBytes)
	}
	return nil
}

// checkJSON refuses what encoding/json would accept with losses: bytes that are not UTF-8, and
// an object with the same name twice.
func checkJSON(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New(`is not UTF-8; give other bytes as {"base64": "…"}`)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := checkNames(decoder, 0); err != nil {
		return ExplainJSON(text, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("has something after its JSON value")
	}
	return nil
}

// ExplainJSON improves the decoder's error about a text that is not JSON. Other errors stay
// unchanged.
func ExplainJSON(text []byte, err error) error {
	syntax, is := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(json.RawMessage)))
	switch {
	case !is:
		return err
	case strings.HasSuffix(syntax.Error(), "after top-level value"):
		return errors.New("has something after its JSON value")
	case syntax.Error() == "unexpected end of JSON input":
		return errors.New("is empty or cut off")
	}
	// Offset is after the wrong byte, which may be the first of a multi-byte character.
	r, _ := utf8.DecodeRune(text[syntax.Offset-1:])
	return fmt.Errorf("is not JSON: unexpected %q at byte %d", r, syntax.Offset)
}

// maxDepth exceeds the depth of any valid operation.
const maxDepth = 16

func checkNames(decoder *json.Decoder, depth int) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	open, isDelim := token.(json.Delim)
	if !isDelim {
		return nil
	}
	if depth == maxDepth {
		return fmt.Errorf("is nested more than %d deep", maxDepth)
	}
	var names []string
	for decoder.More() {
		if open == '{' {
			token, err := decoder.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string) // a name: the decoder returns nothing else in an object
			if slices.Contains(names, name) {
				return fmt.Errorf("gives %q twice", name)
			}
			if names = append(names, name); len(names) > maxDepth {
				return fmt.Errorf("has an object with more than %d fields", maxDepth)
			}
		}
		if err := checkNames(decoder, depth+1); err != nil {
			return err
		}
	}
	_, err = decoder.Token()
	return err
}
