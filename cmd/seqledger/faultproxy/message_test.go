package faultproxy

import (
	"bytes"
	"compress/gzip"
	"net/http/httptest"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestMessages: a write is read in every form in which a client may send it.
func TestMessages(t *testing.T) {
	t.Parallel()
	want := &seqledgerv1.WriteRequest{ClientId: "c", Sequence: 7}
	for form, send := range forms() {
		if m := send(t, want); m.Err != nil || len(m.Writes) != 1 || !proto.Equal(m.Writes[0], want) || !m.IsWrite() {
			t.Errorf("%s: %+v", form, m)
		}
	}
	r := httptest.NewRequest("POST", "/seqledger.v1.LedgerService/Write", nil)
	if m := newMessage(r, true, []byte("no gzip")); m.Err == nil {
		t.Error("what is not gzip was read")
	}
	r.Header.Set("Content-Type", "application/json")
	if m := newMessage(r, false, []byte("{")); m.Err == nil {
		t.Error("what is not JSON was read")
	}
	r = httptest.NewRequest("POST", "/seqledger.v1.LedgerService/GetEntity", nil)
	if m := newMessage(r, false, []byte("anything")); m.Err != nil || m.Writes != nil || m.IsWrite() {
		t.Errorf("a call without writes: %+v", m)
	}
}

// forms returns the ways in which a client may send a write.
func forms() map[string]func(t *testing.T, w *seqledgerv1.WriteRequest) *Message {
	marshal := func(t *testing.T, json bool, m proto.Message) []byte {
		t.Helper()
		b, err := proto.Marshal(m)
		if json {
			b, err = protojson.Marshal(m)
		}
		must.Do(t, err)
		return b
	}
	packed := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(b)
		_ = w.Close()
		return out.Bytes()
	}
	call := func(procedure, contentType, encoding string, b []byte) *Message {
		r := httptest.NewRequest("POST", "/seqledger.v1.LedgerService/"+procedure, nil)
		r.Header.Set("Content-Type", contentType)
		return newMessage(r, encoding == "gzip", b)
	}
	envelope := func(contentType string, flags byte, b []byte) *Message {
		r := httptest.NewRequest("POST", "/seqledger.v1.LedgerService/WriteStream", nil)
		r.Header.Set("Content-Type", contentType)
		return newMessage(r, flags&1 != 0, b)
	}
	type write = *seqledgerv1.WriteRequest
	return map[string]func(t *testing.T, w *seqledgerv1.WriteRequest) *Message{
		"a call": func(t *testing.T, w write) *Message {
			return call("Write", "application/proto", "", marshal(t, false, w))
		},
		"JSON": func(t *testing.T, w write) *Message {
			return call("Write", "application/json", "identity", marshal(t, true, w))
		},
		"a batch, compressed": func(t *testing.T, w write) *Message {
			batch := &seqledgerv1.WriteBatchRequest{Writes: []write{w}}
			return call("WriteBatch", "application/proto", "gzip", packed(marshal(t, false, batch)))
		},
		"a stream": func(t *testing.T, w write) *Message {
			frame := &seqledgerv1.WriteStreamRequest{Writes: []write{w}}
			return envelope("application/connect+proto", 0, marshal(t, false, frame))
		},
		"gRPC, compressed": func(t *testing.T, w write) *Message {
			frame := &seqledgerv1.WriteStreamRequest{Writes: []write{w}}
			return envelope("application/grpc", 1, packed(marshal(t, false, frame)))
		},
		"a stream in JSON": func(t *testing.T, w write) *Message {
			frame := &seqledgerv1.WriteStreamRequest{Writes: []write{w}}
			return envelope("application/connect+json", 0, marshal(t, true, frame))
		},
	}
}
