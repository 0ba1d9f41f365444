package demo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// FuzzBook: a book that is taken says what its lines say, to the byte.
func FuzzBook(f *testing.F) {
	f.Add([]byte("intended c/1 100\nintended c/2 5\npaid c/1\npaid c/2"))
	f.Add([]byte("intended c/1 +1\n"))
	f.Add([]byte("intended   c/1   1\npaid   c/1\n"))
	path := filepath.Join(f.TempDir(), "book")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		b, size, err := readBook(path)
		if err != nil {
			return
		}
		whole := string(content[:size])
		if strings.Contains(string(content[size:]), "\n") {
			t.Errorf("of %q only %q was read", content, whole)
		}
		// Every line is one of the two that the payments make, and no payment is
		// without its line.
		for line := range strings.Lines(whole) {
			verb, rest, _ := strings.Cut(line, " ")
			tag, _, _ := strings.Cut(strings.TrimSuffix(rest, "\n"), " ")
			p := b.byTag[tag]
			if p == nil || line != p.intended() && (line != p.noted() || !p.paid) {
				t.Errorf("%q is read as %s of %+v", line, verb, p)
			}
		}
		for _, p := range b.payments {
			if !strings.Contains("\n"+whole, "\n"+p.intended()) || p.paid != strings.Contains(whole, "\n"+p.noted()) {
				t.Errorf("%q has no %+v", whole, p)
			}
		}
	})
}

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
				if len(rest) >= frameHeader && binary.BigEndian.Uint32(rest[1:]) > maxFrame && errors.Is(err, io.ErrUnexpectedEOF) {
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
