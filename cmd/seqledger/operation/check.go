package operation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
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

// checkJSON refuses what is not JSON, and what could be read in two ways or with losses: bytes that are not UTF-8, and
// an object with the same name twice.
func checkJSON(text []byte) error {
	decoder := jsontext.NewDecoder(bytes.NewReader(text))
	_, err := decoder.ReadValue()
	if err == nil {
		if _, err = decoder.ReadToken(); errors.Is(err, io.EOF) {
			return nil
		}
		return errors.New("has something after its JSON value")
	}
	wrong, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("is empty or cut off")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("gives %q twice", wrong.JSONPointer.LastToken())
	case !utf8.Valid(text):
		return errors.New(`is not UTF-8; give other bytes as {"base64": "…"}`)
	case strings.Contains(err.Error(), "surrogate"):
		return errors.New("has half of a surrogate pair")
	case !ok:
		return err
	}
	r, _ := utf8.DecodeRune(text[wrong.ByteOffset:])
	return fmt.Errorf("is not JSON: unexpected %q at byte %d", r, wrong.ByteOffset+1)
}
