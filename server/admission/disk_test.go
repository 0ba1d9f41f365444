package admission

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Writes are refused while less than the reserve is free, and go on when there is more.
func TestDiskReserve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		free, size := uint64(100), uint64(1_000)
		asked := 0
		var fails error
		c := newController(t, Options{DiskReserve: 50, Disk: func() (uint64, uint64, error) {
			asked++
			return free, size, fails
		}})
		p := c.Party(nil, Limits{})
		write := func() error {
			done, err := c.Write(t.Context(), p, Work{Writes: 1, Bytes: 10})
			if err == nil {
				done()
			}
			_, streamed := c.AwaitWrite(t.Context(), nil, p, Work{Writes: 3, Bytes: 10})
			if (streamed == nil) != (err == nil) {
				t.Errorf("a write: %v, writes of a stream: %v", err, streamed)
			}
			return err
		}
		if err := write(); err != nil || asked != 1 {
			t.Errorf("%v, the disk was asked %d times", err, asked)
		}
		free = 49
		must.Do(t, write(), "the disk must not be asked for every write")
		<-time.After(diskEvery)
		mustRefuse(t, write(), DiskReserve, OfServer)
		fails = errors.New("no answer")
		<-time.After(diskEvery)
		mustRefuse(t, write(), DiskReserve, OfServer)
		fails, free = nil, 50
		<-time.After(diskEvery)
		must.Do(t, write(), "there is room again")
	})
}

func TestReserveOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reserve    int64
		size, want uint64
	}{
		{-1, 1 << 40, 1 << 30}, {-1, 1 << 30, 1 << 30 / 20}, {0, 1 << 40, 0}, {7, 1 << 40, 7},
	} {
		d := disk{reserve: test.reserve}
		check.Equal(t, d.reserveOf(test.size), test.want, "%d of %d: got %d", test.reserve, test.size)
	}
	var off disk
	off.init(func() (uint64, uint64, error) { return 0, 1 << 30, nil }, 0)
	check.Equal(t, off.level(), diskAmple, "without a reserve nothing is refused: %v")
}
