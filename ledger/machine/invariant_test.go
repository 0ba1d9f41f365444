package machine

import (
	"fmt"
	"testing"
)

// Invariant 5: the same sequence or key with another payload never executes and
// never succeeds, wherever in the window the first one stands, and with or
// without the key.
func TestInvariant5_AnotherPayloadNeverSucceeds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	const last = 7 // the window of 4 has 4 to 7
	for sequence := uint64(1); sequence <= last; sequence++ {
		f.commit(appendWrite("c", sequence, byte(sequence), fmt.Sprint("payload ", sequence)))
	}
	blocks := len(f.mem.tables[TableBlocks].keys)
	for sequence := uint64(1); sequence <= last+3; sequence++ {
		for key := byte(0); key <= last; key++ { // 0 is none
			w := appendWrite("c", sequence, key, "another payload")
			inWindow := key > last-4
			if sequence == last+1 && !inWindow {
				continue // a new write: neither its sequence nor its key is known any more
			}
			out := f.one(AppendWrite(nil, w))
			if out.Code == Committed || out.Code == Replayed {
				t.Errorf("sequence %d key %d with another payload: %s", sequence, key, out.Code)
			}
			if sequence > last && inWindow && out.Code != IdempotencyKeyReused {
				t.Errorf("sequence %d key %d: %s, want IDEMPOTENCY_KEY_REUSED", sequence, key, out.Code)
			}
		}
	}
	if n := len(f.mem.tables[TableBlocks].keys); n != blocks {
		t.Errorf("%d blocks more", n-blocks)
	}
}
