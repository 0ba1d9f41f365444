package prototest_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestEveryFieldIsDrawn: a test is worth nothing for a field that never comes.
func TestEveryFieldIsDrawn(t *testing.T) {
	t.Parallel()
	seen := map[protoreflect.FullName]bool{}
	var note func(m protoreflect.Message)
	note = func(m protoreflect.Message) {
		m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			seen[field.FullName()] = true
			switch {
			case field.IsList() && field.Message() != nil:
				for i := range value.List().Len() {
					note(value.List().Get(i).Message())
				}
			case field.Message() != nil:
				note(value.Message())
			}
			return true
		})
	}
	messages := []proto.Message{&seqledgerv1.WriteStreamRequest{}, &seqledgerv1.WriteStreamResponse{}}
	draw := func(seed int) {
		for _, m := range messages {
			note(rapid.Custom(func(t *rapid.T) proto.Message {
				drawn := m.ProtoReflect().New().Interface()
				prototest.Message(t, drawn)
				return drawn
			}).Example(seed).ProtoReflect())
		}
	}
	for seed := range 1_000 {
		draw(seed)
	}
	var want func(d protoreflect.MessageDescriptor)
	want = func(d protoreflect.MessageDescriptor) {
		for i := range d.Fields().Len() {
			field := d.Fields().Get(i)
			if !seen[field.FullName()] {
				t.Error("never drawn:", field.FullName())
			}
			if field.Message() != nil {
				want(field.Message())
			}
		}
	}
	for _, m := range messages {
		want(m.ProtoReflect().Descriptor())
	}
}

// TestTextsVisitsEach text that is set, once, and replaces it.
func TestTextsVisitsEach(t *testing.T) {
	t.Parallel()
	m := &seqledgerv1.WriteRequest{
		Scope: &seqledgerv1.Scope{Organization: "a"}, ClientId: "a",
		Operations: []*seqledgerv1.Operation{
			{}, {Operation: &seqledgerv1.Operation_CreateRelationship{
				CreateRelationship: &seqledgerv1.CreateRelationship{Relation: "a", Subject: "a"},
			}},
		},
	}
	var names []string
	prototest.Texts(m, func(field protoreflect.FieldDescriptor, replace func(string)) {
		names = append(names, string(field.Name()))
		replace("b")
	})
	check.EqualSlices(t, names, []string{"organization", "client_id", "relation", "subject"}, "visited %v")
	r := m.GetOperations()[1].GetCreateRelationship()
	if m.GetScope().GetOrganization()+m.GetClientId()+r.GetRelation()+r.GetSubject() != "bbbb" {
		t.Error("not replaced:", m)
	}
}
