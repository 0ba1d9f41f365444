package machine

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

const headVersion = 1

// head is the part of the state that every command changes.
type head struct {
	index   uint64
	time    int64 // of the last entry, Unix nanoseconds; never runs backwards
	digest  Hash
	streams uint64 // in all organizations
	config  Config
	seed    uint64  // of the marks of idempotency keys
	epochs  []epoch // ascending; the last is the current one
}

// epoch is a stretch of the index in which transactions bear one ledger id.
type epoch struct {
	start uint64 // the index of the command that began it
	id    LedgerID
}

func (h *head) created() bool { return len(h.epochs) > 0 }

// mark returns the mark of an idempotency key; see windowSlot.
func (h *head) mark(k Key) uint32 {
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

func (h *head) append(dst []byte) []byte {
	dst = append(dst, headVersion)
	dst = binary.AppendUvarint(dst, h.index)
	dst = appendTime(dst, h.time)
	dst = append(dst, h.digest[:]...)
	dst = binary.AppendUvarint(dst, h.streams)
	dst = appendConfig(dst, h.config)
	dst = binary.BigEndian.AppendUint64(dst, h.seed)
	dst = binary.AppendUvarint(dst, uint64(len(h.epochs)))
	for _, e := range h.epochs {
		dst = binary.AppendUvarint(dst, e.start)
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.id))
	}
	return dst
}

func decodeHead(b []byte) (head, error) {
	d := decoder{rest: b}
	var h head
	d.version(headVersion)
	h.index = d.uvarint()
	h.time = d.time()
	h.digest = d.hash()
	h.streams = d.uvarint()
	h.config = decodeConfig(&d)
	h.seed = d.uint64()
	n := d.uvarint()
	for range n {
		h.epochs = append(h.epochs, epoch{d.uvarint(), LedgerID(d.uint64())})
		if d.bad {
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
	return binary.AppendUvarint(dst, c.MaxStreams)
}

func decodeConfig(d *decoder) Config {
	return Config{
		EvictionInterval: d.uvarint(),
		ClientTTL:        int64(d.uvarint()),
		EvictionLimit:    d.uvarint(),
		ReceiptWindow:    d.uvarint(),
		MaxStreams:       d.uvarint(),
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
	if u.ClientTTL != nil {
		c.ClientTTL = *u.ClientTTL
	}
	return c
}
