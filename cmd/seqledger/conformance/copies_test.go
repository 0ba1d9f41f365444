package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/op"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	keyA = "0190b2d6-0000-7000-8000-00000000000a"
	keyB = "0190B2D6-0000-7000-8000-00000000000B"
)

// copyOf returns a copy of a write that appends a text.
func copyOf(sequence uint64, key, text string) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{
		Sequence: sequence, IdempotencyKey: key, Operations: []*seqledgerv1.Operation{op.Append([]byte(text))},
	}
}

// TestCopies covers what can be wrong with the copies that a client sends.
func TestCopies(t *testing.T) {
	t.Parallel()
	type writes = []*seqledgerv1.WriteRequest
	for name, test := range map[string]struct {
		sent  writes
		wrong string
	}{
		"the same again":         {writes{copyOf(1, keyA, "a"), copyOf(1, keyA, "a")}, ""},
		"one behind the other":   {writes{copyOf(1, keyA, "a"), copyOf(2, keyB, "b")}, ""},
		"filled up":              {writes{copyOf(1, keyA, "a"), copyOf(1, keyA, "a  ")}, ""},
		"renumbered":             {writes{copyOf(2, keyA, "a"), copyOf(1, keyA, "a")}, ""},
		"a number that was free": {writes{copyOf(1, keyA, "a"), copyOf(1, keyB, "b")}, ""},
		"no key":                 {writes{copyOf(1, "", "a")}, `a is sent under number 1 with the key ""`},
		"no UUID":                {writes{copyOf(1, keyA+"0", "a")}, "which is no UUID"},
		"another key":            {writes{copyOf(1, keyA, "a"), copyOf(1, keyB, "a")}, "was sent with " + keyA},
		"another write":          {writes{copyOf(1, keyA, "a"), copyOf(2, keyA, "b")}, "with which a was sent"},
	} {
		for form, note := range forms() {
			c := newCopies()
			for _, w := range test.sent {
				note(t, c, w)
			}
			err := c.wrong()
			if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%s, as %s: want %q, got %v", name, form, test.wrong, err)
			}
			if c.unread != nil {
				t.Errorf("%s, as %s: %v", name, form, c.unread)
			}
		}
	}
}

// forms returns the ways in which a client may send a write.
func forms() map[string]func(t *testing.T, c *copies, w *seqledgerv1.WriteRequest) {
	marshal := func(t *testing.T, json bool, m proto.Message) []byte {
		t.Helper()
		b, err := proto.Marshal(m)
		if json {
			b, err = protojson.Marshal(m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	packed := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(b)
		_ = w.Close()
		return out.Bytes()
	}
	call := func(c *copies, procedure, contentType, encoding string, b []byte) {
		r := httptest.NewRequest("POST", "/seqledger.v1.LedgerService/"+procedure, nil)
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Content-Encoding", encoding)
		c.noteCall(r, b)
	}
	envelope := func(c *copies, contentType string, flags byte, b []byte) {
		r := httptest.NewRequest("POST", "/seqledger.v1.LedgerService/WriteStream", nil)
		r.Header.Set("Content-Type", contentType)
		c.noteEnvelope(r, append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b))), b...))
	}
	type write = *seqledgerv1.WriteRequest
	return map[string]func(t *testing.T, c *copies, w *seqledgerv1.WriteRequest){
		"a call": func(t *testing.T, c *copies, w write) {
			call(c, "Write", "application/proto", "", marshal(t, false, w))
		},
		"JSON": func(t *testing.T, c *copies, w write) {
			call(c, "Write", "application/json", "identity", marshal(t, true, w))
		},
		"a batch, compressed": func(t *testing.T, c *copies, w write) {
			batch := &seqledgerv1.WriteBatchRequest{Writes: []write{w}}
			call(c, "WriteBatch", "application/proto", "gzip", packed(marshal(t, false, batch)))
		},
		"a stream": func(t *testing.T, c *copies, w write) {
			frame := &seqledgerv1.WriteStreamRequest{Writes: []write{w}}
			envelope(c, "application/connect+proto", 0, marshal(t, false, frame))
		},
		"gRPC, compressed": func(t *testing.T, c *copies, w write) {
			frame := &seqledgerv1.WriteStreamRequest{Writes: []write{w}}
			envelope(c, "application/grpc", 1, packed(marshal(t, false, frame)))
		},
		"a stream in JSON": func(t *testing.T, c *copies, w write) {
			frame := &seqledgerv1.WriteStreamRequest{Writes: []write{w}}
			envelope(c, "application/connect+json", 0, marshal(t, true, frame))
		},
	}
}

// TestCopiesThatCannotBeRead checks that a client whose messages cannot be inspected does not pass for one that sends
// keys.
func TestCopiesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCopies()
	if err := c.wrong(); err != nil {
		t.Errorf("nothing was sent: %v", err)
	}
	c.note("Write", "application/proto", true, []byte("no gzip"))
	c.note("WriteStream", "application/json", false, []byte("{"))
	if err := c.wrong(); err == nil || !strings.Contains(err.Error(), "a message of Write cannot be read") {
		t.Error(err)
	}
	r := httptest.NewRequest("POST", "/seqledger.v1.LedgerService/GetEntity", nil)
	c = newCopies()
	c.noteCall(r, []byte("anything"))
	if err := c.wrong(); err != nil {
		t.Errorf("a call without writes: %v", err)
	}
}
