package message

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Codec encodes and decodes protobuf for Connect. A Writer's frames are already encoded. Other writes, and the answers
// to all writes, use generated code because they are frequent. Every other message, and every unusual write, uses
// package proto. The result is the same either way, errors included.
type Codec struct{}

// Name implements connect.Codec.
func (Codec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (c Codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend saves Connect a copy of the message.
func (Codec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	switch m := m.(type) {
	case *Frame:
		return m.marshalAppend(dst), nil
	case *seqledgerv1.WriteRequest:
		if !unusual(m) {
			return appendGenerated(dst, m)
		}
	}
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("message: %T is not a protobuf message", m)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, p)
}

// Unmarshal implements connect.Codec.
func (Codec) Unmarshal(data []byte, m any) error {
	switch m := m.(type) {
	case *seqledgerv1.WriteStreamResponse:
		m.Reset()
		if m.UnmarshalVT(data) == nil && !slices.ContainsFunc(m.GetResults(), garbledResult) {
			return nil
		}
	case *seqledgerv1.WriteResponse:
		m.Reset()
		if m.UnmarshalVT(data) == nil && !garbledReceipt(m.GetReceipt()) {
			return nil
		}
	}
	p, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("message: %T is not a protobuf message", m)
	}
	if err := proto.Unmarshal(data, p); err != nil {
		return fmt.Errorf("unmarshal into %T: %w", m, err)
	}
	return nil
}

// appendGenerated encodes with generated code.
func appendGenerated(dst []byte, m *seqledgerv1.WriteRequest) ([]byte, error) {
	size := m.SizeVT()
	dst = slices.Grow(dst, size)[:len(dst)+size]
	_, err := m.MarshalToSizedBufferVT(dst[len(dst)-size:])
	return dst, err
}

// unusual reports whether the generated encoder would encode w differently from package proto. The generated encoder
// does not check text for UTF-8, and omits fields that are set to nil.
func unusual(w *seqledgerv1.WriteRequest) bool {
	scope := w.GetScope()
	return garbled(scope.GetOrganization()) || garbled(scope.GetVault()) || garbled(w.GetClientId()) ||
		garbled(w.GetIdempotencyKey()) || garbled(w.GetNamespace()) || garbled(w.GetPrincipal()) ||
		slices.ContainsFunc(w.GetOperations(), unusualOperation)
}

func unusualOperation(operation *seqledgerv1.Operation) bool {
	op, ok := ReadOperation(operation)
	return !ok || !op.IsUTF8()
}

// garbledResult reports whether a result has text that is not UTF-8. The generated decoder accepts such text, and an
// application should never see it.
func garbledResult(result *seqledgerv1.WriteResult) bool {
	e := result.GetError()
	return garbledReceipt(result.GetReceipt()) ||
		garbled(e.GetMessage()) || garbled(e.GetKey()) || garbled(e.GetField()) || garbled(e.GetLeaderAddress()) ||
		garbled(e.GetTxId())
}

func garbledReceipt(r *seqledgerv1.Receipt) bool {
	scope := r.GetBlockHeader().GetScope()
	return garbled(r.GetTxId()) || garbled(r.GetActor()) || garbled(r.GetRequestHash()) ||
		garbled(scope.GetOrganization()) || garbled(scope.GetVault())
}

func garbled(text string) bool { return !utf8.ValidString(text) }
