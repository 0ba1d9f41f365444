package legacy

import (
	"bytes"
	"testing"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
)

// TestIsWhole takes every kind of value that Raft's encoder writes, in every size of
// it, and nothing that is cut off or an extension.
func TestIsWhole(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 70_000)
	many := make([]int, 70_000)
	wide := map[int]bool{}
	for i := range many {
		wide[i] = true
	}
	for _, value := range []any{
		nil, true, 0, 127, -1, -33, 200, -200, 40_000, -40_000, 1 << 20, -1 << 20, 1 << 40, -1 << 40, uint64(1<<63 + 1),
		1.5, float32(2.5),
		"", string(long[:31]), string(long[:32]), string(long[:300]), string(long), long[:3], long[:300], long,
		[]int{}, many[:15], many[:16], many, map[string]any{"a": []any{1, map[string]int{"b": 2}}}, wide,
		raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "b"}, {Suffrage: raft.Nonvoter, ID: "c"}}},
	} {
		for _, specification := range []bool{false, true} { // with and without kinds for binary and long text
			var b []byte
			if err := codec.NewEncoderBytes(&b,
				&codec.MsgpackHandle{WriteExt: specification}).Encode(value); err != nil {
				t.Fatal(err)
			}
			if !isWhole(b) || !isWhole(append(bytes.Clone(b), 0xc1)) {
				t.Errorf("%.60x of %T is not taken", b, value)
			}
			for _, n := range []int{0, 1, 2, 3, len(b) / 2, len(b) - 1} {
				if n < len(b) && isWhole(b[:n]) {
					t.Errorf("the first %d of %d bytes of %T are taken", n, len(b), value)
				}
			}
		}
	}
	for _, b := range []string{"\xc1", "\xc7\x00\x01", "\xc9\xff\xff\xff\xff\x01", "\xd4\x01\x00", "\xd8\x01",
		"\xdd\xff\xff\xff\xff\x00", "\xdf\xff\xff\xff\xff\x00\x00"} {
		if isWhole([]byte(b)) {
			t.Errorf("%x is taken", b)
		}
	}
}
