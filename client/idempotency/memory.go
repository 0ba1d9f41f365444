package idempotency

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
)

// The limits of a store in memory. They apply to new keys; a result is always stored.
const (
	memoryEntries = 100_000
	memoryBytes   = 256 << 20
	memoryCleanup = 10 * time.Second
)

// Memory returns a store in memory, for tests and for a single process that may lose its keys when it ends. It holds at
// most 100,000 records, and refuses new ones beyond 256 MiB. It returns a [*QuotaError] rather than drop a record whose
// result a retry needs.
func Memory() Store { return NewMemory(MemoryOptions{}) }

// MemoryOptions configures [NewMemory].
type MemoryOptions struct {
	// MaxEntries is the maximum number of records; 0 means 100,000.
	MaxEntries int
	// CleanupInterval is the minimum time between two removals of expired records; 0 means 10 s. An expired record
	// counts against MaxEntries for no longer than that.
	CleanupInterval time.Duration
}

// NewMemory is [Memory] with options.
func NewMemory(o MemoryOptions) Store {
	m := newMemory(cmp.Or(o.MaxEntries, memoryEntries), memoryBytes)
	m.cleanup = cmp.Or(o.CleanupInterval, memoryCleanup)
	return NewStore(m)
}

// memory is a Backend. Its clock is this process's clock.
type memory struct {
	maxEntries, maxBytes int
	cleanup              time.Duration // minimum time between two removals of expired values

	mu      sync.Mutex
	values  map[string]*memoryValue
	bytes   int // total size of the values
	version uint64
	token   uint64
	cleaned time.Time // when expired values were last removed
	// removals counts the values that were removed. It is the version of absent keys: a swap that was decided for an
	// absent key before a removal may have met the removed value, and is decided again. Other stores keep expired
	// values for minutes instead, so that such a swap is late.
	removals uint64
}

type memoryValue struct {
	bytes     []byte
	version   uint64
	keepUntil time.Time
	changed   chan struct{} // closed when the value is replaced or removed
}

func newMemory(entries, bytes int) *memory {
	return &memory{
		maxEntries: entries, maxBytes: bytes, cleanup: memoryCleanup, values: map[string]*memoryValue{},
	}
}

// Load implements Backend.
func (m *memory) Load(ctx context.Context, key Key) ([]byte, string, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	version := m.versionOf(key.Name)
	if v := m.values[key.Name]; v != nil {
		return slices.Clone(v.bytes), version, time.Now(), ctx.Err()
	}
	return nil, version, time.Now(), ctx.Err()
}

// versionOf returns the version of a key. The caller holds mu.
func (m *memory) versionOf(key string) string {
	if v := m.values[key]; v != nil {
		return strconv.FormatUint(v.version, 10)
	}
	return "absent " + strconv.FormatUint(m.removals, 10)
}

// expiry returns when a value may be removed, or be replaced by what is remembered of it: as soon as its record has
// expired. The validity of reservations does not matter, because no network delivers copies of calls to this process.
func expiry(value []byte, otherwise time.Time) time.Time {
	record, err := keyed.Decode(value)
	if err != nil {
		return otherwise
	}
	record.ValidUntil, record.Past = 0, nil
	if record.State != keyed.Pending {
		return time.Unix(0, record.Due(keyed.Moment{}))
	}
	return keepUntil(record)
}

// remembered returns what stays of a value whose record has expired; nil for nothing.
func remembered(value []byte, now time.Time) []byte {
	record, err := keyed.Decode(value)
	if err != nil || record.State == keyed.Pending {
		return nil
	}
	if record = record.At(keyed.Moment{Now: now.UnixNano()}); record == nil {
		return nil
	}
	return record.Append(nil)
}

var errMemoryFull = errors.New("the store in memory is full")

// CompareAndSwap implements Backend.
func (m *memory) CompareAndSwap(
	ctx context.Context, key Key, version string, value []byte, keepUntil, deadline time.Time,
) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cleanUp()
	v := m.values[key.Name]
	if m.versionOf(key.Name) != version || time.Now().After(deadline) {
		return false, nil
	}
	if v == nil && (len(m.values) >= m.maxEntries || m.bytes+len(value) > m.maxBytes) {
		return false, &QuotaError{RetryAfter: m.cleanup, Cause: errMemoryFull}
	}
	if v != nil {
		m.bytes -= len(v.bytes)
		close(v.changed)
	}
	m.version++
	m.values[key.Name] = &memoryValue{slices.Clone(value), m.version, expiry(value, keepUntil), make(chan struct{})}
	m.bytes += len(value)
	return true, nil
}

// cleanUp removes expired values from time to time, so that a swap is cheap on average and makes at most one pass over
// all values. The caller holds mu.
func (m *memory) cleanUp() {
	now := time.Now()
	if now.Sub(m.cleaned) < m.cleanup {
		return
	}
	m.cleaned = now
	for key, v := range m.values {
		if v.keepUntil.IsZero() || !v.keepUntil.Before(now) {
			continue
		}
		m.bytes -= len(v.bytes)
		if rest := remembered(v.bytes, now); rest != nil {
			m.version++ // so that a swap that was decided on what has expired is decided again
			v.bytes, v.version, v.keepUntil = rest, m.version, expiry(rest, time.Time{})
			m.bytes += len(rest)
			continue
		}
		delete(m.values, key)
		close(v.changed)
		m.removals++
	}
}

// Changed implements Notifier.
func (m *memory) Changed(ctx context.Context, key Key, version string) error {
	m.mu.Lock()
	v, current := m.values[key.Name], m.versionOf(key.Name)
	m.mu.Unlock()
	if v == nil || current != version {
		return nil
	}
	select {
	case <-v.changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// NextToken implements TokenSource.
func (m *memory) NextToken(context.Context) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.token++
	return m.token, nil
}
