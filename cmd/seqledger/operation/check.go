package operation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Check refuses what the ledger would refuse in any state, so that an import stops before its first line and not in the
// middle. The error names a field as users write it, because they have not seen the request.
func Check(operations ...*seqledgerv1.Operation) error {
	// Whatever is refused of this request is one of the operations.
	_, err := new(wire.Encoder).Encode(&seqledgerv1.WriteRequest{
		Scope: &seqledgerv1.Scope{Organization: "any"}, ClientId: "any", Sequence: 1, Operations: operations,
	}, "any")
	invalid, is := errors.AsType[*machine.FieldError](err)
	if !is {
		return err
	}
	path := strings.SplitN(invalid.Field, ".", 3) // such as operations[1], set_entity and condition.version
	if len(path) < 3 {
		return fmt.Errorf("%s %s", invalid.Field, invalid.Problem)
	}
	if path[2] == "payload" { // the form for users has no such field
		path[2] = "append"
	}
	place := ""
	if len(operations) > 1 {
		place = strings.NewReplacer("operations[", "operation ", "]", ": ").Replace(path[0])
	}
	return fmt.Errorf("%s%s %s", place, path[2], invalid.Problem)
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
