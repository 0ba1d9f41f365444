package message

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatalf(string, ...any)
}

// checkEncoding holds the codec against package proto: the same bytes behind what stands in the buffer, or an error
// from both.
func checkEncoding(t tester, m proto.Message, before []byte) {
	t.Helper()
	want, wantErr := proto.MarshalOptions{}.MarshalAppend(slices.Clone(before), m)
	got, err := Codec{}.MarshalAppend(before, m)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%v: the codec says %v, package proto %v", m, err, wantErr)
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("%v is %x, want %x", m, got, want)
	}
}

// checkDecoding holds the codec against package proto, into messages that hold something already. What proto takes, the
// codec takes alike; what it takes besides (numbers that are too long) has no text that is not UTF-8.
func checkDecoding(t tester, data []byte, newMessage func() proto.Message) {
	t.Helper()
	want, got := newMessage(), newMessage()
	wantErr := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, want)
	err := Codec{}.Unmarshal(data, got)
	if err != nil && wantErr == nil {
		t.Fatalf("package proto reads %v, the codec says %v: %x", want, err, data)
	}
	if err != nil {
		return
	}
	if _, err := proto.Marshal(got); err != nil {
		t.Fatalf("the codec reads what it could not have been sent: %v: %x", err, data)
	}
	if wantErr != nil {
		return
	}
	discardUnknown(got.ProtoReflect())
	if !proto.Equal(got, want) {
		t.Fatalf("package proto reads %v, the codec %v: %x", want, got, data)
	}
}

// discardUnknown removes unknown fields: those in a time are kept by package proto alone.
func discardUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				discardUnknown(value.List().Get(i).Message())
			}
		case field.Message() != nil:
			discardUnknown(value.Message())
		}
		return true
	})
}

// requests and answers are what goes through generated code, and one message that does not.
var (
	requests = []func() proto.Message{
		func() proto.Message { return new(seqledgerv1.WriteRequest) },
		func() proto.Message { return new(seqledgerv1.OpenSessionRequest) },
	}
	answers = []func() proto.Message{
		func() proto.Message {
			return &seqledgerv1.WriteStreamResponse{Results: make([]*seqledgerv1.WriteResult, 2)}
		},
		func() proto.Message { return &seqledgerv1.WriteResponse{Receipt: &seqledgerv1.Receipt{Sequence: 1}} },
		func() proto.Message { return &seqledgerv1.OpenSessionResponse{PreviousSession: 1} },
	}
)

// spoil makes one text of m, if there is any, something that is not UTF-8. It returns false when there is none.
func spoil(t *rapid.T, m proto.Message) bool {
	var places []func(string)
	prototest.Texts(m, func(_ protoreflect.FieldDescriptor, replace func(string)) { places = append(places, replace) })
	if len(places) == 0 {
		return false
	}
	rapid.SampledFrom(places).Draw(t, "place")("a\xff")
	return true
}

// TestCodecEncodesLikeProto whatever is in a write, text that is not UTF-8 included.
func TestCodecEncodesLikeProto(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		for _, newRequest := range requests {
			m := newRequest()
			prototest.Message(t, m)
			before := make([]byte, rapid.IntRange(0, 9).Draw(t, "before"), 9+rapid.IntRange(0, 200).Draw(t, "room"))
			checkEncoding(t, m, before)
			if spoil(t, m) {
				checkEncoding(t, m, nil)
			}
		}
	})
}

// TestCodecEncodesHollowWritesLikeProto: an application can build operations that say nothing, and the generated
// encoder would leave some out, or panic. An append without a payload would so become a write that is refused.
func TestCodecEncodesHollowWritesLikeProto(t *testing.T) {
	t.Parallel()
	set := func(c *seqledgerv1.Condition) *seqledgerv1.Operation {
		return &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{Key: "k", Condition: c}}}
	}
	remove := func(c *seqledgerv1.Condition) *seqledgerv1.Operation {
		return &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_DeleteEntity{DeleteEntity: &seqledgerv1.DeleteEntity{Condition: c}}}
	}
	operations := []*seqledgerv1.Operation{
		nil, {},
		{Operation: &seqledgerv1.Operation_SetEntity{}}, {Operation: (*seqledgerv1.Operation_SetEntity)(nil)},
		{Operation: &seqledgerv1.Operation_DeleteEntity{}}, {Operation: (*seqledgerv1.Operation_DeleteEntity)(nil)},
		{Operation: &seqledgerv1.Operation_CreateRelationship{}},
		{Operation: (*seqledgerv1.Operation_CreateRelationship)(nil)},
		{Operation: &seqledgerv1.Operation_DeleteRelationship{}},
		{Operation: (*seqledgerv1.Operation_DeleteRelationship)(nil)},
		{Operation: &seqledgerv1.Operation_Append{}}, {Operation: (*seqledgerv1.Operation_Append)(nil)},
		{Operation: &seqledgerv1.Operation_ExpireEntity{}}, {Operation: (*seqledgerv1.Operation_ExpireEntity)(nil)},
	}
	for _, c := range []*seqledgerv1.Condition{
		{}, {Condition: &seqledgerv1.Condition_ValueEquals{}}, {Condition: &seqledgerv1.Condition_NotExists{}},
		{Condition: (*seqledgerv1.Condition_NotExists)(nil)}, {Condition: (*seqledgerv1.Condition_MustExist)(nil)},
		{Condition: (*seqledgerv1.Condition_Version)(nil)}, {Condition: (*seqledgerv1.Condition_ValueEquals)(nil)},
	} {
		operations = append(operations, set(c), remove(c))
	}
	for _, operation := range operations {
		w := &seqledgerv1.WriteRequest{ClientId: "c", Operations: []*seqledgerv1.Operation{operation, set(nil)}}
		checkEncoding(t, w, nil)
	}
}

// TestCodecDecodesLikeProto answers that are whole, spoiled in a text, and damaged anywhere.
func TestCodecDecodesLikeProto(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		for _, newAnswer := range answers {
			m := newAnswer()
			prototest.Message(t, m)
			data := must.Get(proto.Marshal(m))(t)
			checkDecoding(t, data, newAnswer)
			if len(data) > 0 {
				data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "damage")
				checkDecoding(t, data, newAnswer)
			}
		}
	})
}

// TestCodecRefusesTextThatIsNotUTF8 wherever it stands in an answer, as package proto does.
func TestCodecRefusesTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := new(seqledgerv1.WriteStreamResponse)
		prototest.Message(t, m)
		if !spoil(t, m) {
			return
		}
		data, err := m.MarshalVT() // package proto would not
		must.Do(t, err)
		if err := (Codec{}).Unmarshal(data, new(seqledgerv1.WriteStreamResponse)); err == nil {
			t.Fatalf("taken: %v", m)
		}
		for _, result := range m.GetResults() {
			if result.GetReceipt() == nil {
				continue
			}
			response := &seqledgerv1.WriteResponse{Receipt: result.GetReceipt()}
			data = must.Get(response.MarshalVT())(t)
			want := proto.Unmarshal(data, new(seqledgerv1.WriteResponse))
			if err := (Codec{}).Unmarshal(data, new(seqledgerv1.WriteResponse)); (err == nil) != (want == nil) {
				t.Fatalf("the codec says %v, package proto %v", err, want)
			}
		}
	})
}

// FuzzCodec feeds arbitrary bytes to both decoders of answers.
func FuzzCodec(f *testing.F) {
	receipt := &seqledgerv1.Receipt{TxId: "t", Sequence: 1, Results: []*seqledgerv1.OperationResult{{}, {Version: 2}}}
	refusal := &seqledgerv1.WriteError{Code: 3, Message: "m"}
	for _, m := range []proto.Message{
		&seqledgerv1.WriteResponse{Receipt: receipt},
		&seqledgerv1.WriteStreamResponse{Results: []*seqledgerv1.WriteResult{
			{Result: &seqledgerv1.WriteResult_Receipt{Receipt: receipt}}, {},
			{Result: &seqledgerv1.WriteResult_Error{Error: refusal}},
		}},
	} {
		data := must.Get(proto.Marshal(m))(f)
		f.Add(data)
		f.Add(append(data, data...))
	}
	f.Add([]byte("\x0a\x03\x0a\x01\xff"))
	f.Add([]byte("\x0a\x04\x0a\x00\x12\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, newAnswer := range answers {
			checkDecoding(t, data, newAnswer)
		}
	})
}
