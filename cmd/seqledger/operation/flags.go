package operation

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// operationFlag is one occurrence of a flag that adds or changes an operation.
type operationFlag struct{ name, value string }

// Flags collects the operation flags in the order of the command line,
// which is the order of the operations. It implements [kong.Mapper], because
// kong otherwise keeps the order within one flag alone.
type Flags struct{ list []operationFlag }

// Decode implements [kong.Mapper].
func (o *Flags) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var value string
	if err := ctx.Scan.PopValueInto("value", &value); err != nil {
		return err
	}
	o.list = append(o.list, operationFlag{name: ctx.Value.Name, value: value})
	target.Set(reflect.Append(target, reflect.ValueOf(value)))
	return nil
}

// Names returns the names of the flags that were given, without dashes.
func (o *Flags) Names() []string {
	names := make([]string, 0, len(o.list))
	for _, flag := range o.list {
		names = append(names, flag.name)
	}
	return names
}

// Build returns the operations. Its errors name the flag.
func (o *Flags) Build() ([]*seqledgerv1.Operation, error) {
	b := builder{byKey: make(map[string][]*seqledgerv1.Operation)}
	for _, flag := range o.list {
		if err := b.add(flag); err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag.name, flag.value, err)
		}
	}
	// After the operations, because a condition may precede its operation.
	for _, flag := range o.list {
		if err := b.attach(flag); err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag.name, flag.value, err)
		}
	}
	return b.operations, nil
}

type builder struct {
	operations []*seqledgerv1.Operation
	byKey      map[string][]*seqledgerv1.Operation // the sets and deletes of a key
}

// add appends the operation of one flag; flags that change one are left for
// attach.
func (b *builder) add(flag operationFlag) error {
	verb, file := strings.CutSuffix(flag.name, "-file")
	kind := kindNamed(verb)
	if kind == nil || kind.flag == nil {
		return nil
	}
	op := message.Operation{Kind: kind.kind}
	if err := kind.flag(&op, flag.value, file); err != nil {
		return err
	}
	if !utf8.ValidString(op.Key + op.Relation + op.Subject) { // a command line may have any bytes
		return errors.New("is not UTF-8")
	}
	operation := op.Message()
	// Check here, so that the message names the flag.
	if err := Check(operation); err != nil {
		return err
	}
	b.operations = append(b.operations, operation)
	if op.Kind == message.SetEntity || op.Kind == message.DeleteEntity {
		b.byKey[op.Key] = append(b.byKey[op.Key], operation)
	}
	return nil
}

// attach gives a condition or an expiry to the operation of its key.
func (b *builder) attach(flag operationFlag) (err error) {
	key, argument := flag.value, ""
	switch flag.name {
	case "if-version", "if-value", "expires-at":
		key, argument, err = cutKey(flag.value)
	case "if-not-exists", "if-exists":
	default:
		return nil
	}
	if err != nil {
		return err
	}
	// Because a condition on the wrong one of two operations would silently check the wrong thing,
	// exactly one operation must match.
	owners := b.byKey[key]
	switch {
	case len(owners) == 0:
		return fmt.Errorf("no --set, --set-file or --delete of the key %q", key)
	case len(owners) > 1:
		return fmt.Errorf("the key %q is set or deleted %d times, which is ambiguous: use --operations",
			key, len(owners))
	}
	if flag.name == "expires-at" {
		return setExpiry(owners[0], argument)
	}
	condition, err := parseCondition(flag.name, argument)
	if err != nil {
		return err
	}
	return setCondition(owners[0], condition)
}

func parseCondition(name, argument string) (*seqledgerv1.Condition, error) {
	switch name {
	case "if-not-exists":
		return readCondition("not_exists", []byte("true"))
	case "if-exists":
		return readCondition("must_exist", []byte("true"))
	case "if-value":
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: []byte(argument)}}, nil
	}
	return readCondition("version", []byte(argument))
}

func setCondition(operation *seqledgerv1.Operation, condition *seqledgerv1.Condition) error {
	if operation.GetSetEntity().GetCondition() != nil || operation.GetDeleteEntity().GetCondition() != nil {
		return errors.New("the operation has a condition already; it can have only one")
	}
	if set := operation.GetSetEntity(); set != nil {
		set.Condition = condition
	} else {
		operation.GetDeleteEntity().Condition = condition
	}
	return nil
}

func setExpiry(operation *seqledgerv1.Operation, argument string) error {
	at, err := ParseTime(argument)
	if err != nil {
		return err
	}
	set := operation.GetSetEntity()
	switch {
	case set == nil:
		return errors.New("a delete cannot expire")
	case set.ExpiresAt != nil:
		return errors.New("the operation expires already")
	}
	set.ExpiresAt = at
	return Check(operation)
}

// cutKey splits key=rest at the first equals sign.
func cutKey(s string) (key, rest string, err error) {
	key, rest, found := strings.Cut(s, "=")
	if !found {
		return "", "", errors.New("expected KEY=…; a key that holds an equals sign needs --operations")
	}
	return key, rest, nil
}

// cutRelationship splits resource#relation@subject at the first # and the first
// @ after it, because subjects such as user:ann@example.com hold an @ of their
// own.
func cutRelationship(s string) (resource, relation, subject string, err error) {
	resource, rest, hash := strings.Cut(s, "#")
	relation, subject, at := strings.Cut(rest, "@")
	if !hash || !at {
		return "", "", "", errors.New(
			"expected RESOURCE#RELATION@SUBJECT; parts that hold these signs need --operations")
	}
	return resource, relation, subject, nil
}

// readValue reads a value from a file, at most the maximum size of a value: naming a disk image
// by mistake must not fill the memory.
func readValue(path string) (_ []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content, err := io.ReadAll(io.LimitReader(f, machine.MaxValueBytes+1))
	if err != nil {
		return nil, err
	}
	if len(content) > machine.MaxValueBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, machine.MaxValueBytes)
	}
	return content, nil
}
