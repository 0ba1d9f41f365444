package machine

import (
	"math/rand/v2"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// The window against a plain slice, through storage and with limits that
// change.
func TestWindowAgainstSlice(t *testing.T) {
	t.Parallel()
	const seed = 3
	random := rand.New(rand.NewPCG(seed, 0))
	var w window
	var want []windowSlot // newest first
	index := uint64(0)
	for step := range 5_000 {
		index += 1 + random.Uint64N(1<<random.Uint64N(40))
		slot := windowSlot{index, random.Uint32()}
		limit := uint64(64)
		if step%50 == 49 {
			limit = 1 + random.Uint64N(70)
		}
		w.push(slot, limit)
		want = append([]windowSlot{slot}, want...)
		want = want[:min(uint64(len(want)), limit)]

		encoded := w.append(nil)
		var again window
		d := decoder{rest: encoded}
		again.decode(&d, w.size)
		if err := d.done("window"); err != nil || again.check() != nil {
			t.Fatalf("seed %d step %d: %v %v", seed, step, err, again.check())
		}
		if again.size != uint64(len(want)) {
			t.Fatalf("seed %d step %d: %d slots, want %d", seed, step, again.size, len(want))
		}
		for i := range want {
			if got := again.slot(uint64(i)); got != want[i] || again.fingerprint(uint64(i)) != want[i].fingerprint {
				t.Fatalf("seed %d step %d: slot %d is %+v, want %+v", seed, step, i, got, want[i])
			}
		}
		if step%7 == 0 {
			w = again
		}
	}
}

// What is stored wrongly is noticed by check, and harmless before that.
func TestWindowOfNonsense(t *testing.T) {
	t.Parallel()
	for _, deltas := range [][]byte{{0x80}, {0x80, 0x00}, {1, 2, 3}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		0xff, 0xff, 0xff}} {
		w := window{size: 2, fingerprints: make([]byte, 2*fingerprintBytes), deltas: deltas}
		if w.check() == nil {
			t.Errorf("deltas %x pass for two numbers", deltas)
		}
		_, _ = w.slot(0), w.slot(1)
		for range 5 {
			w.push(windowSlot{1 << 40, 1}, 2)
		}
		check.Equal(t, w.slot(0).index, 1<<40, "after deltas %x the newest slot is %+v", deltas)
	}
	var w window
	for _, record := range [][]byte{nil, {1}, make([]byte, 2*fingerprintBytes), make([]byte, 2*fingerprintBytes+1)} {
		d := decoder{rest: record}
		if w.decode(&d, 2); !d.bad {
			t.Errorf("%x decodes as two slots", record)
		}
	}
	d := decoder{rest: make([]byte, maxWindow*5+100)}
	if w.decode(&d, maxWindow+1); !d.bad {
		t.Error("a window beyond the limit decodes")
	}
}
