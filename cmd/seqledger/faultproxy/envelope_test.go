package faultproxy_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	"github.com/seqledger/seqledger/internal/testkit/check"
)

// envelope is a message with its header.
func envelope(flags byte, message string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message))), message...)
}

func TestReadEnvelope(t *testing.T) {
	t.Parallel()
	one := envelope(0, "message")
	for _, test := range []struct {
		name  string
		input []byte
		whole int // messages before the end
		end   error
	}{
		{"nothing", nil, 0, io.EOF},
		{"two", append(bytes.Clone(one), one...), 2, io.EOF},
		{"cut in the header", one[:3], 0, io.ErrUnexpectedEOF},
		{"cut behind the header", one[:faultproxy.HeaderBytes], 0, io.ErrUnexpectedEOF},
		{"cut in the message", one[:len(one)-1], 0, io.ErrUnexpectedEOF},
		{"cut in the second", append(bytes.Clone(one), one[:6]...), 1, io.ErrUnexpectedEOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			input := bytes.NewReader(test.input)
			for range test.whole {
				if got, err := faultproxy.ReadEnvelope(input); err != nil || !bytes.Equal(got, one) {
					t.Fatalf("want %x, got %x (%v)", one, got, err)
				}
			}
			check.Is(t, check.Err(faultproxy.ReadEnvelope(input)), test.end, "want the error")
		})
	}
}

// TestReadEnvelopeBound: the longest message passes, and of one that is a byte longer only the header is read.
func TestReadEnvelopeBound(t *testing.T) {
	t.Parallel()
	longest := envelope(1, strings.Repeat("x", faultproxy.MaxMessageBytes))
	if got, err := faultproxy.ReadEnvelope(bytes.NewReader(longest)); err != nil || !bytes.Equal(got, longest) {
		t.Errorf("want %d bytes, got %d (%v)", len(longest), len(got), err)
	}
	input := bytes.NewReader(envelope(1, strings.Repeat("x", faultproxy.MaxMessageBytes+1)))
	_, err := faultproxy.ReadEnvelope(input)
	if want := "a message of 8388609 bytes, at most 8388608 are expected"; err == nil || err.Error() != want {
		t.Errorf("want the error %q, got %v", want, err)
	}
	check.Equal(t, input.Len(), faultproxy.MaxMessageBytes+1, "want nothing read behind the header, %d bytes are left")
}
