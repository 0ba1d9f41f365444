package admission

import (
	"sync/atomic"
	"time"
)

// A full disk stops the ledger for good, and a writer can fill it. Therefore writes
// are refused while less than the reserve is free: what is under way, the next
// checkpoint and the next segment of the log still fit, and reads go on. While less
// than twice the reserve is free, a credential that has stored more than its quarter
// of everything is refused, so that the others can go on for a while.

const (
	// maxReserve and reservePart are the default reserve: one gibibyte, or a
	// twentieth of a file system that is smaller.
	maxReserve  = 1 << 30
	reservePart = 20
	// diskEvery is how often the file system is asked. A fast disk takes some 50 MB
	// in that time.
	diskEvery = 100 * time.Millisecond
)

// How much is free.
const (
	diskRoomy int32 = iota
	diskTight       // less than twice the reserve
	diskFull        // less than the reserve
)

// disk knows how full the file system of the ledger is.
type disk struct {
	measure func() (free, size uint64, err error) // nil: nobody asks
	reserve int64                                 // negative: the default
	began   time.Time
	next    atomic.Int64 // when to ask again, in nanoseconds since began
	now     atomic.Int32
}

func (d *disk) init(measure func() (free, size uint64, err error), reserve int64) {
	d.measure, d.reserve, d.began = measure, reserve, time.Now()
}

// level returns how much is free. One caller in a while asks the file system, which
// takes some microseconds.
func (d *disk) level() int32 {
	if d.measure == nil || d.reserve == 0 {
		return diskRoomy
	}
	now, next := int64(time.Since(d.began)), d.next.Load()
	if now < next || !d.next.CompareAndSwap(next, now+int64(diskEvery)) {
		return d.now.Load()
	}
	free, size, err := d.measure()
	if err != nil || size == 0 {
		return d.now.Load() // a file system that does not tell must not stop the ledger
	}
	level := diskRoomy
	switch reserve := d.reserveOf(size); {
	case free < reserve:
		level = diskFull
	case free < 2*reserve:
		level = diskTight
	}
	d.now.Store(level)
	return level
}

// reserveOf returns how much of a file system of a size must stay free.
func (d *disk) reserveOf(size uint64) uint64 {
	if d.reserve >= 0 {
		return uint64(d.reserve)
	}
	return min(maxReserve, size/reservePart)
}
