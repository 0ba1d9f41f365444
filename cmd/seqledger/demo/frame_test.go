package demo

import (
	"encoding/binary"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// envelope makes a frame.
func envelope(t *testing.T, flags byte, m proto.Message) []byte {
	t.Helper()
	body, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, faultproxy.HeaderBytes, faultproxy.HeaderBytes+len(body))
	frame[0] = flags
	binary.BigEndian.PutUint32(frame[1:], uint32(len(body)))
	return append(frame, body...)
}

func TestDecodeFrame(t *testing.T) {
	t.Parallel()
	got := new(seqledgerv1.WriteRequest)
	if err := decodeFrame(envelope(t, 0, write("a", 7)), got); err != nil || got.GetSequence() != 7 {
		t.Errorf("want sequence 7, got %v (%v)", got, err)
	}
	// The last frame of a stream holds JSON.
	end := []byte{2, 0, 0, 0, 2, '{', '}'}
	got = new(seqledgerv1.WriteRequest)
	if err := decodeFrame(end, got); err != nil || proto.Size(got) != 0 {
		t.Errorf("want no message in the last frame, got %v (%v)", got, err)
	}
	if err := decodeFrame([]byte{0, 0, 0, 0, 1, 0xff}, got); err == nil {
		t.Error("want an error from a frame that does not decode")
	}
}
