package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/seqledger/seqledger/internal/keyed"
)

const headVersion = 1

// head is the part of the state that every command changes.
type head struct {
	index   uint64
	time    int64 // of the last entry, Unix nanoseconds; only an epoch sets it back
	digest  Hash
	streams uint64 // in all organizations
	config  Config
	seed    uint64 // of the fingerprints of idempotency keys

	sincePass    uint64 // commands since the last eviction pass
	backlog      bool   // that pass left entries that were due
	added        indexGrowth
	longestPause int64 // nanoseconds: the longest step of ledger time so far

	// leaseFloor is the earliest end of every lease that was decided before
	// floorSet, because owners could not renew them while the ledger was out of reach.
	leaseFloor, floorSet int64
	pendingKeys          uint64 // keyed records that are reserved

	retention retention

	// The tree over the blocks of a ledger id: how many leaves it has, and the first of them, which says what the
	// ledger was restored from.
	leaves uint64
	origin Hash

	epochs []epoch // ascending; the last is the current one
}

// epoch is a stretch of the index in which transactions bear one ledger id.
type epoch struct {
	start uint64 // the index of the command that began it
	id    LedgerID
	// timeBefore is where ledger time stood when the epoch set it back, else 0.
	// What had expired by then stays expired.
	timeBefore int64
}

// beginTree begins the tree of a ledger id, whose first leaf has the history that it goes on from: zeros for none.
func (h *head) beginTree(parent LedgerID, index uint64) {
	b := appendIndexKey(appendIndexKey([]byte{originPrefix}, uint64(parent)), index)
	h.leaves, h.origin = 1, sha256.Sum256(append(b, h.digest[:]...))
}

func (h *head) created() bool { return len(h.epochs) > 0 }

// fingerprint returns the fingerprint of an idempotency key; see windowSlot.
func (h *head) fingerprint(k Key) uint32 {
	if !k.Present {
		return 0
	}
	return uint32(xxh3.HashSeed(k.UUID[:], h.seed)) | 1
}

// epochStart returns the index at which the current epoch began: sessions
// below it are over.
func (h *head) epochStart() uint64 { return h.epochs[len(h.epochs)-1].start }

func (h *head) ledgerID() LedgerID { return h.epochs[len(h.epochs)-1].id }

// ledgerIDAt returns the id that the transaction of an index bears.
func (h *head) ledgerIDAt(index uint64) LedgerID {
	for i := len(h.epochs) - 1; i > 0; i-- {
		if h.epochs[i].start <= index {
			return h.epochs[i].id
		}
	}
	return h.epochs[0].id
}

// expired reports whether an entity that was set at an index is past its time.
// 0 means never.
func (h *head) expired(expiresAt int64, version uint64) bool {
	if expiresAt == 0 {
		return false
	}
	if h.time >= expiresAt {
		return true
	}
	for i := len(h.epochs) - 1; i >= 0 && h.epochs[i].start > version; i-- {
		if h.epochs[i].timeBefore >= expiresAt {
			return true
		}
	}
	return false
}

// timeSetBackFrom returns the latest time that an epoch has set ledger time back
// from, or 0.
func (h *head) timeSetBackFrom() (latest int64) {
	for _, e := range h.epochs {
		latest = max(latest, e.timeBefore)
	}
	return latest
}

// advance moves ledger time to that of a log entry. It never runs backwards,
// whatever a leader stamps.
func (h *head) advance(unixNanos int64) {
	if unixNanos <= h.time {
		return
	}
	if pause := unixNanos - h.time; h.time > 0 {
		h.longestPause = max(h.longestPause, pause)
		if pause > int64(keyed.OutagePause) {
			h.leaseFloor, h.floorSet = unixNanos+int64(keyed.OutageGrace), unixNanos
		}
	}
	h.time = unixNanos
}

// check names where the head stands.
func (h *head) check() Check {
	return Check{Index: h.index, Digest: binary.BigEndian.Uint64(h.digest[:])}
}

func (h *head) append(dst []byte) []byte {
	dst = append(dst, headVersion)
	dst = binary.AppendUvarint(dst, h.index)
	dst = appendTime(dst, h.time)
	dst = append(dst, h.digest[:]...)
	dst = binary.AppendUvarint(dst, h.streams)
	dst = appendConfig(dst, h.config)
	dst = binary.BigEndian.AppendUint64(dst, h.seed)
	dst = binary.AppendUvarint(dst, h.sincePass)
	dst = appendBool(dst, h.backlog)
	dst = binary.AppendUvarint(dst, h.added.entries)
	dst = binary.AppendUvarint(dst, h.added.work)
	dst = binary.AppendUvarint(dst, uint64(h.longestPause))
	dst = appendTime(appendTime(dst, h.leaseFloor), h.floorSet)
	dst = binary.AppendUvarint(dst, h.pendingKeys)
	dst = h.retention.append(dst)
	dst = append(binary.AppendUvarint(dst, h.leaves), h.origin[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(h.epochs)))
	for _, e := range h.epochs {
		dst = binary.AppendUvarint(dst, e.start)
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.id))
		dst = appendTime(dst, e.timeBefore)
	}
	return dst
}

func decodeHead(b []byte) (head, error) {
	d := decoder{rest: b}
	var h head
	if err := d.formatVersion(headVersion, "head of the state"); err != nil {
		return h, err
	}
	h.index = d.uvarint()
	h.time = d.time()
	h.digest = d.hash()
	h.streams = d.uvarint()
	h.config = decodeConfig(&d)
	h.seed = d.uint64()
	h.sincePass, h.backlog = d.uvarint(), d.bool()
	h.added = indexGrowth{d.uvarint(), d.uvarint()}
	h.longestPause = int64(d.uvarint())
	h.leaseFloor, h.floorSet, h.pendingKeys = d.time(), d.time(), d.uvarint()
	h.retention.decode(&d)
	h.leaves, h.origin = d.uvarint(), d.hash()
	n := d.uvarint()
	for range n {
		e := epoch{start: d.uvarint(), id: LedgerID(d.uint64()), timeBefore: d.time()}
		if h.epochs = append(h.epochs, e); d.bad {
			break
		}
	}
	if err := d.done("head of the state"); err != nil {
		return head{}, err
	}
	if n == 0 {
		return head{}, fmt.Errorf("%w: head of the state without a ledger id", ErrCorrupt)
	}
	return h, nil
}

func appendConfig(dst []byte, c Config) []byte {
	dst = binary.AppendUvarint(dst, c.EvictionInterval)
	dst = binary.AppendUvarint(dst, uint64(c.ClientTTL))
	dst = binary.AppendUvarint(dst, c.EvictionLimit)
	dst = binary.AppendUvarint(dst, c.ReceiptWindow)
	dst = binary.AppendUvarint(dst, c.MaxStreams)
	dst = binary.AppendUvarint(dst, uint64(c.RetainBlocks))
	return binary.AppendUvarint(dst, c.RetainBytes)
}

func decodeConfig(d *decoder) Config {
	return Config{
		EvictionInterval: d.uvarint(),
		ClientTTL:        int64(d.uvarint()),
		EvictionLimit:    d.uvarint(),
		ReceiptWindow:    d.uvarint(),
		MaxStreams:       d.uvarint(),
		RetainBlocks:     int64(d.uvarint()),
		RetainBytes:      d.uvarint(),
	}
}

// with returns the configuration after an update.
func (c Config) with(u *ConfigUpdate) Config {
	set := func(field, value *uint64) {
		if value != nil {
			*field = *value
		}
	}
	set(&c.EvictionInterval, u.EvictionInterval)
	set(&c.EvictionLimit, u.EvictionLimit)
	set(&c.ReceiptWindow, u.ReceiptWindow)
	set(&c.MaxStreams, u.MaxStreams)
	set(&c.RetainBytes, u.RetainBytes)
	if u.ClientTTL != nil {
		c.ClientTTL = *u.ClientTTL
	}
	if u.RetainBlocks != nil {
		c.RetainBlocks = *u.RetainBlocks
	}
	return c
}
