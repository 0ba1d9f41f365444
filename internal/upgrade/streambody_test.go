package upgrade

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// TestStreamBodyEndsWithItsStream: everything up to the last message comes through unchanged, in whatever pieces it
// arrives. Then the body ends, although its connection stays open.
func TestStreamBodyEndsWithItsStream(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all []byte
		message := func(flags byte) {
			data := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "message")
			all = append(all, flags)
			all = binary.BigEndian.AppendUint32(all, uint32(len(data)))
			all = append(all, data...)
		}
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			message(rapid.SampledFrom([]byte{0, 1}).Draw(t, "flags"))
		}
		message(rapid.SampledFrom([]byte{2, 3}).Draw(t, "last"))
		open := io.MultiReader(bytes.NewReader(all), iotest.ErrReader(iotest.ErrTimeout))
		if rapid.Bool().Draw(t, "byte by byte") {
			open = iotest.OneByteReader(open)
		}
		got, err := io.ReadAll(&StreamBody{ReadCloser: io.NopCloser(open)})
		if err != nil || !bytes.Equal(got, all) {
			t.Fatalf("%x came through as %x, %v", all, got, err)
		}
		// One that breaks off says so.
		cut := rapid.IntRange(0, len(all)-1).Draw(t, "cut")
		broken := io.MultiReader(bytes.NewReader(all[:cut]), iotest.ErrReader(iotest.ErrTimeout))
		if _, err := io.ReadAll(&StreamBody{ReadCloser: io.NopCloser(broken)}); err == nil {
			t.Fatalf("%d of %d bytes were taken for the whole", cut, len(all))
		}
	})
}
