package machine

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// goldenSeeds are the golden files whose names begin with the prefix: so that a
// corpus has every kind of encoding, and none of them is kept twice.
func goldenSeeds(f *testing.F, prefix string) (seeds [][]byte) {
	f.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "format", prefix+"*.hex"))
	if err != nil || len(paths) == 0 {
		f.Fatalf("no golden file begins with %s: %v", prefix, err)
	}
	for _, path := range paths {
		text := must.Get(os.ReadFile(path))(f)
		seed, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		must.Do(f, err, "%s", path)
		seeds = append(seeds, seed)
	}
	return seeds
}

// allocated returns how many bytes a call takes from the heap.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// recode decodes a command and encodes what it says, or returns nil.
func recode(command []byte) []byte {
	d := decoder{rest: command}
	switch kind := commandKind(d.octet()); kind {
	case commandWrite:
		var c writeCommand
		c.decode(&d)
		if d.done("write") != nil {
			return nil
		}
		return AppendWrite([]byte{}, &Write{
			Scope: Scope{string(c.organization), string(c.vault)}, ClientID: string(c.clientID), Actor: string(c.actor),
			Session: c.session, Sequence: c.sequence, Key: c.key, Operations: c.operations,
		})
	case commandOpenSession:
		var c openSessionCommand
		c.decode(&d)
		if d.done("session") != nil {
			return nil
		}
		return AppendOpenSession([]byte{}, &OpenSession{
			Scope: Scope{string(c.organization), string(c.vault)}, ClientID: string(c.clientID), Actor: string(c.actor),
			AttemptID: c.attemptID, ExpectedSession: c.expectedSession,
		})
	case commandUpdateConfig:
		actor := decoder{rest: d.rest}
		update := decodeConfigUpdate(&d)
		if d.done("update") != nil {
			return nil
		}
		return AppendUpdateConfig([]byte{}, &update, string(actor.bytes()))
	case commandCreate:
		id, seed, config := LedgerID(d.uint64()), d.uint64(), decodeConfig(&d)
		if d.done("create") != nil {
			return nil
		}
		return AppendCreate([]byte{}, id, seed, config)
	case commandEpoch:
		id, unixNanos := LedgerID(d.uint64()), d.time()
		if d.done("epoch") != nil {
			return nil
		}
		return AppendEpoch([]byte{}, id, unixNanos)
	case commandTick:
		if d.done("tick") != nil {
			return nil
		}
		return AppendTick([]byte{})
	case commandKeyed:
		actor := d
		var c keyedCommand
		c.decode(&d)
		if d.done("keyed") != nil {
			return nil
		}
		actor.octet()
		actor.keyedID()
		return AppendKeyed([]byte{}, &KeyedCommand{ID: c.id.public(), Actor: string(actor.bytes()), MaxKeys: c.maxKeys,
			Command: c.command})
	case commandKeyedWrite:
		var c keyedWriteCommand
		c.decode(&d)
		if d.done("keyed write") != nil {
			return nil
		}
		return AppendKeyedWrite([]byte{}, &KeyedWrite{
			ID: c.id.public(), ClientID: string(c.write.clientID), Actor: string(c.write.actor), TTL: c.ttl,
			MaxKeys:    c.maxKeys,
			Operations: c.write.operations,
		})
	}
	return nil
}

func (id *keyedID) public() KeyedID {
	k := KeyedID{
		Scope: Scope{string(id.organization), string(id.vault)}, Namespace: string(id.namespace),
		Principal: string(id.principal),
	}
	copy(k.Key[:], id.key)
	return k
}

// FuzzDecodeCommand: a command of any kind that decodes has exactly one form,
// and decoding one takes memory in proportion to its bytes.
func FuzzDecodeCommand(f *testing.F) {
	for _, seed := range goldenSeeds(f, "command_") {
		f.Add(seed)
	}
	f.Add(append([]byte{byte(commandUpdateConfig), 0}, 1, 0x81, 0x00, 0, 0, 0, 0)) // a number of two spellings
	f.Add([]byte{byte(commandWrite), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, command []byte) {
		var again []byte
		took := allocated(func() { again = recode(command) })
		if again != nil && !bytes.Equal(again, command) {
			t.Errorf("%x decodes, and encodes to %x", command, again)
		}
		// An operation has at least one byte and takes some two hundred, and the
		// list doubles as it grows.
		if limit := uint64(64<<10 + 1024*len(command)); took > limit {
			t.Errorf("%d bytes took %d of memory", len(command), took)
		}
	})
}

// storedOf returns an encoded transaction as a record has it, with right checksums.
func storedOf(encoded, changed []byte) *storedTransaction {
	d := decoder{rest: encoded}
	d.transactionHead()
	d.operationCount()
	t := &storedTransaction{encoded: encoded, head: len(encoded) - len(d.rest), changed: changed}
	operations := encoded[t.head:]
	for chunk := range chunks(operations) {
		t.sums = binary.BigEndian.AppendUint32(t.sums, checksum(chunkOf(operations, chunk)))
	}
	return t
}

// FuzzStoredTransaction: what a block holds of a transaction, the leaf and which
// operations changed something, has exactly one form.
func FuzzStoredTransaction(f *testing.F) {
	x := goldenTransaction() // of seven operations
	for _, changed := range [][]byte{nil, {0}, {0x55}, {0x7f}, {0xff}, {1, 0}} {
		f.Add(x.Encode(), changed)
	}
	f.Fuzz(func(t *testing.T, encoded, changed []byte) {
		x, err := storedOf(encoded, changed).decode(1)
		if err != nil {
			return
		}
		if again := x.Encode(); !bytes.Equal(again, encoded) {
			t.Errorf("%x decodes, and encodes to %x", encoded, again)
		}
		if x.Index == 0 {
			return // the versions do not tell what changed; no transaction has this index
		}
		var bitmap []byte
		if slices.Contains(x.Versions, 0) {
			bitmap = make([]byte, (len(x.Versions)+7)/8)
			for i, version := range x.Versions {
				if version != 0 {
					bitmap[i/8] |= 1 << (i % 8)
				}
			}
		}
		if !bytes.Equal(bitmap, changed) {
			t.Errorf("%d operations with the results %x would be stored with %x", len(x.Operations), changed, bitmap)
		}
	})
}

// walkedTransaction is where a walk through a record finds a transaction.
type walkedTransaction struct {
	index                   uint64
	block, position, offset int
	header                  BlockHeader
}

// walk reads a record without its rows, and returns what is in it
// and the one form that all of it has; nil when it does not decode.
func walk(record []byte) (found []walkedTransaction, canonical []byte) {
	d := decoder{rest: record}
	at := func() int { return len(record) - len(d.rest) }
	d.version(recordVersion)
	first, blocks := d.uint64(), d.uvarint()
	canonical = binary.BigEndian.AppendUint64([]byte{recordVersion}, first)
	canonical = binary.AppendUvarint(canonical, blocks)
	for range blocks {
		block := at()
		b := d.block(first)
		if d.bad {
			return nil, nil
		}
		inner, body := decoder{rest: b.body}, []byte(nil)
		for position := range b.header.TxCount {
			offset := at() - len(inner.rest)
			stored := inner.storedTransaction()
			if inner.bad || stored.check(0, len(stored.encoded)-stored.head) != nil {
				return nil, nil
			}
			body = appendStored(body, stored)
			found = append(found, walkedTransaction{stored.index(), block, int(position), offset, b.header})
		}
		if inner.done("block") != nil {
			return nil, nil
		}
		canonical = appendBlock(canonical, b.header.append(nil), b.leaf, first, b.places(), body)
	}
	slices.SortStableFunc(found, func(a, b walkedTransaction) int { return cmp.Compare(a.index, b.index) })
	rows, next := uint32(0), first
	for _, x := range found {
		if x.index < next || x.index-next > uint64(len(record)) {
			return nil, nil
		}
		for ; next < x.index; next++ {
			canonical = binary.BigEndian.AppendUint64(canonical, 1<<64-1)
			rows++
		}
		canonical = binary.BigEndian.AppendUint32(canonical, uint32(x.offset))
		canonical = binary.BigEndian.AppendUint32(canonical, uint32(x.block))
		next, rows = x.index+1, rows+1
	}
	return found, binary.BigEndian.AppendUint32(canonical, rows)
}

// FuzzBlockRecord: looking a transaction up by its index never panics and finds
// none but the one that was asked for. In a record that is as one is written,
// it finds what a walk through the record finds.
func FuzzBlockRecord(f *testing.F) {
	base := preparedState(f)
	other := appendWrite("c", 1, 0, "y")
	other.Scope = Scope{"acme", "vault"}
	base.entry(AppendWrite(nil, appendWrite("d", 1, 0, "x")), AppendWrite(nil, appendWrite("gap", 5, 0, "x")),
		AppendWrite(nil, other), AppendWrite(nil, appendWrite("d", 2, 0, "z")))
	for _, table := range []*memoryTable{&base.mem.tables[TableBlocks]} {
		for _, key := range table.keys {
			record := table.values[key]
			found, canonical := walk(record)
			if !bytes.Equal(canonical, record) {
				f.Fatalf("a record of the machine walks to %x, it is %x", canonical, record)
			}
			f.Add(record, []byte(key), found[0].index)
		}
	}
	f.Add([]byte{recordVersion, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}, appendIndexKey(nil, 1), uint64(1))
	f.Add([]byte{recordVersion, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff}, appendIndexKey(nil, 1<<32-1),
		uint64(1))
	f.Fuzz(func(t *testing.T, data, key []byte, index uint64) {
		record, err := openRecord(key, data)
		if err != nil || index > binary.BigEndian.Uint64(key) {
			return // recordOf asks for no index behind the key
		}
		l, ok, err := record.find(index)
		if ok && (err != nil || l.stored.index() != index || l.position >= l.header.TxCount) {
			t.Errorf("index %d is found as %d at %d of %d, %v", index, l.stored.index(), l.position,
				l.header.TxCount, err)
		}
		found, canonical := walk(data)
		if canonical == nil || !bytes.Equal(canonical, data) {
			return
		}
		for _, x := range found {
			l, ok, err := record.find(x.index)
			if scope, scopeErr := l.stored.scope(); scopeErr != nil || scope != x.header.Scope ||
				int(l.stored.position) != x.position {
				continue // a transaction in the block of another scope, or at another place, is damage
			}
			if !ok || err != nil || l.header != x.header || int(l.position) != x.position ||
				l.stored.index() != x.index {
				t.Errorf("the walk finds %+v, the lookup %d of %+v: %v, %v", x, l.position, l.header, ok, err)
			}
		}
		if among := slices.ContainsFunc(found, func(x walkedTransaction) bool { return x.index == index }); ok &&
			!among {
			t.Errorf("the lookup finds index %d, the walk does not", index)
		}
	})
}

// FuzzWindow: any window that is taken for sound shows the slots that its bytes
// say, and a push moves them on, whatever the numbers are.
func FuzzWindow(f *testing.F) {
	var w window
	for i := range uint64(5) {
		w.push(windowSlot{index: i * i * 1_000, fingerprint: uint32(i)}, 4)
	}
	f.Add(uint16(w.size), w.append(nil), uint64(1<<40), uint32(7), uint8(4))
	f.Add(uint16(0), []byte{}, uint64(1), uint32(0), uint8(1))
	f.Add(uint16(1), []byte{0, 0, 0, 0, 0x80}, uint64(1), uint32(0), uint8(1))
	f.Add(uint16(2), []byte{0, 0, 0, 1, 0, 0, 0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		uint64(0), uint32(0), uint8(2))
	f.Fuzz(func(t *testing.T, size uint16, body []byte, index uint64, fingerprint uint32, limit uint8) {
		d := decoder{rest: body}
		var w window
		w.decode(&d, uint64(size))
		if d.bad {
			return
		}
		if again := w.append(nil); !bytes.Equal(again, body) {
			t.Errorf("%x decodes, and encodes to %x", body, again)
		}
		want := make([]windowSlot, size)
		rest, at := w.deltas, uint64(0)
		for i := range want {
			delta, n := binary.Uvarint(rest)
			rest, at = rest[max(n, 0):], at-delta
			if i == 0 {
				at = delta
			}
			want[i] = windowSlot{index: at, fingerprint: binary.BigEndian.Uint32(body[4*i:])}
		}
		sound := w.check() == nil
		compare := func(what string) {
			for i := range w.size {
				if got := w.slot(i); sound && got != want[i] { // a damaged one must not panic
					t.Errorf("%s: slot %d is %+v, want %+v", what, i, got, want[i])
				}
			}
		}
		compare("decoded")
		most := uint64(limit) + 1
		w.push(windowSlot{index, fingerprint}, most)
		want = append([]windowSlot{{index, fingerprint}}, want...)
		want = want[:min(uint64(len(want)), most)]
		if sound && (w.size != uint64(len(want)) || w.check() != nil) {
			t.Errorf("after a push there are %d slots, %v, want %d", w.size, w.check(), len(want))
		}
		compare("pushed")
	})
}

// FuzzCounters: the small records of scopes and organizations have one form.
func FuzzCounters(f *testing.F) {
	f.Add(append([]byte{5}, make([]byte, 32)...))
	f.Add([]byte{0x80, 1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, value []byte) {
		mem := NewMemory()
		for _, table := range []Table{TableScopes, TableOrganizations} {
			must.Do(t, mem.Put(table, []byte("k"), value))
		}
		var head chainHead
		if err := head.read(mem, []byte("k")); err == nil {
			if again := head.append(nil); !bytes.Equal(again, value) {
				t.Errorf("chain head: %x decodes, and encodes to %x", value, again)
			}
		}
		if n, err := readCount(mem, TableOrganizations, []byte("k")); err == nil {
			if again := binary.AppendUvarint(nil, n); !bytes.Equal(again, value) {
				t.Errorf("organization: %x decodes, and encodes to %x", value, again)
			}
		}
	})
}

// FuzzProof: the path of any leaf of any tree leads to the root for somebody
// else's verifier, and no longer does with one bit of it changed.
func FuzzProof(f *testing.F) {
	f.Add([]byte{}, uint16(0), uint16(0))
	f.Add([]byte("two"), uint16(1), uint16(9))
	f.Add([]byte("as many leaves as there are bytes"), uint16(31), uint16(300))
	f.Fuzz(func(t *testing.T, content []byte, which, flip uint16) {
		n := len(content)%600 + 1
		leaves := make([]Hash, n)
		for i := range leaves {
			leaves[i] = LeafHash(content[min(i, len(content)):])
		}
		i := int(which) % n
		header := BlockHeader{TxCount: uint32(n), TxRoot: merkleRoot(slices.Clone(leaves))}
		p, err := must.Get(NewBlockTree(header, leaves))(t).Proof(uint32(i))
		must.Do(t, firstErr(err, p.verify(leaves[i][:])), "leaf %d of %d", i, n)
		if len(p.Path) > 0 {
			bit := int(flip) % (len(p.Path) * 256)
			p.Path[bit/256][bit/8%32] ^= 1 << (bit % 8)
			if p.verify(leaves[i][:]) == nil {
				t.Errorf("leaf %d of %d: bit %d of the path makes no difference", i, n, bit)
			}
		}
	})
}
