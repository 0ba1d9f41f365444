package server

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The decoding libraries describe errors in terms of Go: types, functions and time layouts.
// This file describes them in terms of the API.

// unknownJSONField returns the error for an unknown field. A name that is not UTF-8 cannot be
// part of an answer.
func unknownJSONField(path, name string) *machine.FieldError {
	if !utf8.ValidString(name) || strings.ContainsRune(name, utf8.RuneError) {
		return &machine.FieldError{Field: path, Problem: "has an unknown field whose name is not UTF-8"}
	}
	return &machine.FieldError{Field: join(path, clip(name)), Problem: "is an unknown field"}
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
	duplicateField = regexp.MustCompile(`duplicate field "([^"]*)"`)
	oneofIsSet     = regexp.MustCompile(`error parsing "([^"]*)", oneof [^ ]* is already set`)
)

// jsonWholeProblem says what is wrong with an object whose fields are each valid.
func jsonWholeProblem(d protoreflect.MessageDescriptor, path string, err error) *machine.FieldError {
	if found := duplicateField.FindStringSubmatch(err.Error()); found != nil {
		name := clip(found[1])
		if field := d.Fields().ByJSONName(name); field != nil {
			name = string(field.Name())
		}
		return &machine.FieldError{Field: join(path, name), Problem: "is given twice"}
	}
	if found := oneofIsSet.FindStringSubmatch(err.Error()); found != nil {
		return &machine.FieldError{Field: path,
			Problem: fmt.Sprintf("has %s beside another one, and only one of them may be", clip(found[1]))}
	}
	return &machine.FieldError{Field: path, Problem: "is not the JSON of " + string(d.FullName())}
}

// checkProtocol refuses what Connect would refuse with a message about Go.
func checkProtocol(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := protocolProblem(r); err != nil {
			writer := connect.NewErrorWriter()
			if writer.IsSupported(r) {
				_ = writer.Write(w, r, withDetails(connect.CodeInvalidArgument, &seqledgerv1.WriteError{
					Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
					Message: err.Error(),
				}))
				return
			}
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// protocolProblem checks the header and the parameter for which Connect's own errors name Go
// functions.
func protocolProblem(r *http.Request) error {
	const maxDigits = 10
	if timeout := r.Header.Get("Connect-Timeout-Ms"); timeout != "" {
		if len(timeout) > maxDigits || strings.Trim(timeout, "0123456789") != "" {
			return errors.New("the header Connect-Timeout-Ms must be a whole number of milliseconds with at most 10 digits")
		}
	}
	if r.Method == http.MethodGet && r.URL.RawQuery != "" {
		query := r.URL.Query()
		message := strings.TrimRight(query.Get("message"), "=")
		if _, err := base64.RawURLEncoding.DecodeString(message); err != nil && query.Get("base64") == "1" {
			return fmt.Errorf("the parameter message must be base64url, because base64 is 1")
		}
	}
	return nil
}
