package admission

import (
	"sync/atomic"
	"time"
)

// A full disk stops the ledger, and a writer can fill it. So writes are refused while less than the reserve is free:
// writes under way, the next checkpoint and the next segment of the log still fit, and reads continue. While less than
// twice the reserve is free, a credential that has stored more than its quarter of the total is refused, so that the
// others can continue for a while.

const (
	// maxReserve and reservePart are the default reserve: one gibibyte, or a twentieth of a file system that is
	// smaller.
	maxReserve  = 1 << 30
	reservePart = 20
	// diskEvery is how often the free space is checked. A fast disk writes some 50 MB in that time.
	diskEvery = 100 * time.Millisecond
)

// How much is free.
const (
	diskAmple int32 = iota
	diskTight       // less than twice the reserve
	diskFull        // less than the reserve
)

// disk tracks the free space of the ledger's file system.
type disk struct {
	measure func() (free, size uint64, err error) // nil: the free space is not checked
	reserve int64                                 // negative: the default
	began   time.Time
	next    atomic.Int64 // time of the next check, in ns since began, so that a jump of the wall clock has no effect
	now     atomic.Int32
}

func (d *disk) init(measure func() (free, size uint64, err error), reserve int64) {
	d.measure, d.reserve, d.began = measure, reserve, time.Now()
}

// level returns the level of free space. One caller per interval asks the file system, which takes some microseconds.
func (d *disk) level() int32 {
	if d.measure == nil || d.reserve == 0 {
		return diskAmple
	}
	now, next := int64(time.Since(d.began)), d.next.Load()
	if now < next || !d.next.CompareAndSwap(next, now+int64(diskEvery)) {
		return d.now.Load()
	}
	free, size, err := d.measure()
	if err != nil || size == 0 {
		return d.now.Load() // an unknown free space must not stop the ledger
	}
	level := diskAmple
	switch reserve := d.reserveOf(size); {
	case free < reserve:
		level = diskFull
	case free < 2*reserve:
		level = diskTight
	}
	d.now.Store(level)
	return level
}

// reserveOf returns how much must stay free of a file system of the given size.
func (d *disk) reserveOf(size uint64) uint64 {
	if d.reserve >= 0 {
		return uint64(d.reserve)
	}
	return min(maxReserve, size/reservePart)
}
