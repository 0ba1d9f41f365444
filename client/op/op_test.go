package op_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// drawCondition draws a condition, and the message that it must become.
func drawCondition(t *rapid.T) (op.Condition, *seqledgerv1.Condition) {
	switch rapid.IntRange(0, 3).Draw(t, "condition") {
	case 0:
		return op.IfAbsent(), &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}
	case 1:
		return op.IfPresent(), &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}
	case 2:
		v := rapid.Uint64().Draw(t, "version")
		return op.IfVersion(v), &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: v}}
	default:
		v := rapid.SliceOf(rapid.Byte()).Draw(t, "equals")
		return op.IfValue(v), &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: v}}
	}
}

// draw draws an operation, and the message that it must become.
func draw(t *rapid.T) (got, want *seqledgerv1.Operation) {
	key, value := rapid.StringN(1, 10, -1).Draw(t, "key"), rapid.SliceOf(rapid.Byte()).Draw(t, "value")
	relation, subject := rapid.String().Draw(t, "relation"), rapid.String().Draw(t, "subject")
	var conditions []op.Condition
	var options []op.SetOption
	var condition *seqledgerv1.Condition
	if rapid.Bool().Draw(t, "with a condition") {
		c, m := drawCondition(t)
		conditions, options, condition = append(conditions, c), append(options, c), m
	}
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		return op.Append(value), &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: value}}}
	case 1:
		set := &seqledgerv1.SetEntity{Key: key, Value: value, Condition: condition}
		if rapid.Bool().Draw(t, "expires") {
			at := time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "at"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
			set.ExpiresAt = timestamppb.New(at)
			// The order of options has no meaning.
			options = append([]op.SetOption{op.ExpiresAt(at)}, options...)
		}
		return op.Set(key, value, options...), &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{
			SetEntity: set}}
	case 2:
		return op.Delete(key, conditions...), &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
			DeleteEntity: &seqledgerv1.DeleteEntity{Key: key, Condition: condition}}}
	case 3:
		return op.Relate(key, relation, subject), &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_CreateRelationship{CreateRelationship: &seqledgerv1.CreateRelationship{
				Resource: key, Relation: relation, Subject: subject}}}
	default:
		return op.Unrelate(key, relation, subject), &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_DeleteRelationship{DeleteRelationship: &seqledgerv1.DeleteRelationship{
				Resource: key, Relation: relation, Subject: subject}}}
	}
}

// TestOperations: each constructor makes the API's message, with every condition. Operations in a journal decode to
// the same messages.
func TestOperations(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all []*seqledgerv1.Operation
		for range rapid.IntRange(0, 5).Draw(t, "operations") {
			got, want := draw(t)
			if !proto.Equal(got, want) {
				t.Fatalf("made %v, want %v", got, want)
			}
			all = append(all, got)
		}
		request := must.Get(message.EncodeOperations(all))(t)
		back, err := op.Decode(request)
		if err != nil || len(back) != len(all) {
			t.Fatalf("%d operations are read as %d, %v", len(all), len(back), err)
		}
		for i := range back {
			if !proto.Equal(back[i], all[i]) {
				t.Fatalf("%v is read as %v", all[i], back[i])
			}
		}
		if len(request) > 1 {
			// A truncated entry of a journal must not decode to fewer operations.
			cut := request[:rapid.IntRange(1, len(request)-1).Draw(t, "cut")]
			if back, err := op.Decode(cut); err == nil && !isPrefix(back, all) {
				t.Fatalf("%x of %x is read as %v", cut, request, back)
			}
		}
	})
}

// isPrefix reports whether the operations are the first of others.
func isPrefix(some, all []*seqledgerv1.Operation) bool {
	for i := range some {
		if i >= len(all) || !proto.Equal(some[i], all[i]) {
			return false
		}
	}
	return true
}

// TestTheCallersMemory: an operation shares the caller's bytes. The caller may reuse them after Submit because Submit
// encodes the operation before it returns.
func TestTheCallersMemory(t *testing.T) {
	t.Parallel()
	value := []byte("abc")
	made := []*seqledgerv1.Operation{op.Append(value), op.Set("k", value), op.Set("k", nil, op.IfValue(value))}
	encoded := must.Get(message.EncodeOperations(made))(t)
	copy(value, "xyz")
	back, err := op.Decode(encoded)
	if err != nil || string(back[0].GetAppend().GetPayload()) != "abc" ||
		string(back[1].GetSetEntity().GetValue()) != "abc" ||
		string(back[2].GetSetEntity().GetCondition().GetValueEquals()) != "abc" {
		t.Errorf("what was encoded has changed: %v, %v", back, err)
	}
}

// TestConditionsThatWouldBeDropped are mistakes of the program.
func TestConditionsThatWouldBeDropped(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(){
		"two conditions":         func() { op.Set("k", nil, op.IfAbsent(), op.IfVersion(1)) },
		"two conditions, delete": func() { op.Delete("k", op.IfPresent(), op.IfVersion(1)) },
		"an empty condition":     func() { op.Set("k", nil, op.Condition{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: one of them would be dropped in silence", name)
				}
			}()
			build()
		}()
	}
}

// A transfer between two accounts: it commits only if both balances still have the values that were read.
func Example() {
	operations := []*seqledgerv1.Operation{
		op.Set("transfer/17", []byte("5 from a to b"), op.IfAbsent()),
		op.Set("balance/a", []byte("95"), op.IfVersion(41)),
		op.Set("balance/b", []byte("5"), op.IfVersion(38)),
		op.Relate("transfer/17", "paid-by", "a"),
	}
	for _, o := range operations {
		fmt.Printf("%q %q\n", o.GetSetEntity().GetKey(), o.GetCreateRelationship().GetSubject())
	}
	// Output:
	// "transfer/17" ""
	// "balance/a" ""
	// "balance/b" ""
	// "" "a"
}
