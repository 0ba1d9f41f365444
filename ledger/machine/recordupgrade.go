package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
)

// Records of blocks of versions 1 and 2 are in state files of format 3 and before, and
// nowhere else. A ledger of level 1 wrote version 1.
const (
	recordVersion1 = 1
	recordVersion2 = 2
)

// RecordUpgrade turns the records of blocks of an older state file, from the first on and in
// their order, into records as they are now. It needs memory for each scope. The
// zero value is ready.
type RecordUpgrade struct{ chains map[string]*chainHead }

// Convert returns a record and the ledger index of its last transaction, under which it is
// stored. The record is what a log that is replayed now makes of the same entry.
func (u *RecordUpgrade) Convert(key, data []byte) (last uint64, record []byte, err error) {
	d := decoder{rest: data}
	old := oldRecord{version: d.octet()}
	switch old.version {
	case recordVersion1:
		old.level = 1
	case recordVersion2:
		old.level = 2
		d.uint64() // the first ledger index
	default:
		d.fail()
	}
	for range d.uvarint() {
		if old.block(&d); d.bad {
			break
		}
	}
	if d.bad || len(old.pending) == 0 {
		return 0, nil, fmt.Errorf("%w: record of blocks %x does not decode", ErrCorrupt, key)
	}
	sort.Slice(old.pending, func(i, j int) bool { return old.pending[i].index < old.pending[j].index })
	first := old.pending[0].index
	last = old.pending[len(old.pending)-1].index
	// Version 2 has a row for each index between them: as many as fit in the record.
	if len(key) != 8 || last > binary.BigEndian.Uint64(key) ||
		old.version == recordVersion2 && last-first > uint64(len(data)) {
		return 0, nil, fmt.Errorf("%w: record of blocks %x has the ledger indexes %d to %d", ErrCorrupt, key, first,
			last)
	}
	for i, b := range old.blocks {
		if err := u.follow(b, &old.headers[i]); err != nil {
			return 0, nil, err
		}
	}
	record = appendRecord(nil, old.level, old.blocks, old.pending, func(i int) ([]byte, Hash) {
		return old.headers[i].append(nil), old.headers[i].Hash()
	})
	for _, b := range old.blocks {
		u.chains[string(b.scopeKey)] = &b.chain
	}
	return last, record, nil
}

// follow gives a block the chain that it continues.
func (u *RecordUpgrade) follow(b *blockBuilder, header *BlockHeader) error {
	if u.chains == nil {
		u.chains = map[string]*chainHead{}
	}
	b.scopeKey = appendScopeKey(nil, header.Scope)
	if c := u.chains[string(b.scopeKey)]; c != nil {
		b.chain = *c
	}
	if header.Height != b.chain.height+1 || header.PreviousHash != b.chain.hash {
		return fmt.Errorf("%w: block %d of %s does not follow block %d", ErrCorrupt, header.Height, header.Scope,
			b.chain.height)
	}
	return nil
}

// Head returns what the table of scopes has for a scope behind the last record, which must
// agree with what the older state file has.
func (u *RecordUpgrade) Head(scopeKey, old []byte) ([]byte, error) {
	c := u.chains[string(scopeKey)]
	if c == nil || !bytes.Equal(old, append(binary.AppendUvarint(nil, c.height), c.hash[:]...)) {
		return nil, fmt.Errorf("%w: the blocks of scope %x end elsewhere than the head of their chain says", ErrCorrupt,
			scopeKey)
	}
	return c.append(nil), nil
}

// oldRecord is a record of an older version that is being read.
type oldRecord struct {
	version byte
	level   byte
	headers []BlockHeader
	blocks  []*blockBuilder
	pending []pendingTx
}

// block reads the next block.
func (r *oldRecord) block(d *decoder) {
	var header BlockHeader
	var body decoder
	if r.version == recordVersion1 {
		body = decoder{rest: d.bytes()}
		header = body.header()
	} else {
		sum, checked := d.uint32(), d.rest
		inner := decoder{rest: d.bytes()}
		size := d.uint32()
		header = inner.header()
		if d.bad || inner.bad || len(inner.rest) != 0 || checksum(checked[:len(checked)-len(d.rest)]) != sum {
			d.fail()
			return
		}
		body = decoder{rest: d.take(uint64(size))}
	}
	b := new(blockBuilder)
	for position := range header.TxCount {
		t, ok := r.transaction(&body)
		if !ok {
			d.fail()
			return
		}
		t.position = position
		r.pending = append(r.pending, pendingTx{t.index(), b, len(b.body)})
		b.body = appendStored(b.body, t)
	}
	if body.done("block") != nil {
		d.fail()
	}
	r.headers, r.blocks = append(r.headers, header), append(r.blocks, b)
}

// transaction reads a transaction and checks all of it.
func (r *oldRecord) transaction(d *decoder) (t storedTransaction, ok bool) {
	if r.version == recordVersion2 {
		t = d.storedTransaction()
		_, err := t.verified()
		return t, !d.bad && err == nil
	}
	// The store has a checksum of the whole record.
	t = storedTransaction{encoded: d.bytes(), changed: d.bytes()}
	head := decoder{rest: t.encoded}
	head.transactionHead()
	head.operationCount()
	t.head = len(t.encoded) - len(head.rest)
	return t, !d.bad && !head.bad
}
