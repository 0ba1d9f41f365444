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

// FuzzReadFrame: frames are cut where their lengths say, none is longer than is
// allowed, and nothing between them is lost.
func FuzzReadFrame(f *testing.F) {
	body, err := proto.Marshal(write("a", 1))
	if err != nil {
		f.Fatal(err)
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	f.Add(append(frame, frame...))
	f.Add(frame[:7])
	f.Add([]byte{2, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, content []byte) {
		r := bytes.NewReader(content)
		var got []byte
		for {
			frame, err := readFrame(r)
			if err != nil {
				rest := content[len(got):]
				if len(rest) >= frameHeader && binary.BigEndian.Uint32(rest[1:]) > maxFrame &&
					errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("memory was taken for a frame that says %x", rest[:frameHeader])
				}
				break
			}
			if uint64(binary.BigEndian.Uint32(frame[1:])) != uint64(len(frame)-frameHeader) {
				t.Errorf("a frame of %d bytes says %x", len(frame), frame[:frameHeader])
			}
			got = append(got, frame...)
			m := new(seqledgerv1.WriteStreamResponse)
			if err := decodeFrame(frame, m); frame[0] != 0 && (err != nil || proto.Size(m) > 0) {
				t.Errorf("a frame with flags holds %v, %v", m, err)
			}
		}
		if !bytes.HasPrefix(content, got) {
			t.Errorf("%x came out as %x", content, got)
		}
	})
}
