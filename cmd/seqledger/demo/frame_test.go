package demo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// envelope makes a frame.
func envelope(t *testing.T, flags byte, m proto.Message) []byte {
	t.Helper()
	body, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, frameHeader, frameHeader+len(body))
	frame[0] = flags
	binary.BigEndian.PutUint32(frame[1:], uint32(len(body)))
	return append(frame, body...)
}

func TestReadFrame(t *testing.T) {
	t.Parallel()
	frame := envelope(t, 0, write("a", 1))
	tooLong := []byte{0, 0xff, 0xff, 0xff, 0xff}
	for _, test := range []struct {
		name  string
		input []byte
		whole int // frames before the end
		end   error
	}{
		{"nothing", nil, 0, io.EOF},
		{"two", append(bytes.Clone(frame), frame...), 2, io.EOF},
		{"cut in the header", frame[:3], 0, io.ErrUnexpectedEOF},
		{"cut behind the header", frame[:frameHeader], 0, io.ErrUnexpectedEOF},
		{"cut in the message", frame[:len(frame)-1], 0, io.ErrUnexpectedEOF},
		{"too long", tooLong, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			input := bytes.NewReader(test.input)
			for range test.whole {
				if got, err := readFrame(input); err != nil || !bytes.Equal(got, frame) {
					t.Fatalf("want %x, got %x (%v)", frame, got, err)
				}
			}
			_, err := readFrame(input)
			if err == nil || test.end != nil && !errors.Is(err, test.end) {
				t.Errorf("want the error %v, got %v", test.end, err)
			}
		})
	}
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
