package machine

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

// Whatever bit of a record is flipped, each of its transactions, receipts,
// values, proofs and blocks is read as it was or not at all.
func TestEveryBitOfARecord(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	vault := appendWrite("c", 1, 2, "other scope")
	vault.Scope.Vault = "v"
	first := f.view().Index() + 1
	f.entry(
		AppendWrite(nil, operations("a", 1, 1, set("k", longValue), remove("absent"), set("k2", "short"))),
		AppendWrite(nil, appendWrite("gap", 9, 0, "refused")),
		AppendWrite(nil, vault),
		AppendWrite(nil, operations("a", 2, 0, relate("doc", "owner", "bob"))),
	)
	last := f.view().Index()
	key := appendIndexKey(nil, last)
	record := f.mem.tables[TableBlocks].values[string(key)]
	answers := func() string {
		var b strings.Builder
		v := f.view()
		say := func(what string, answer any, err error) {
			switch {
			case errors.Is(err, ErrCorrupt), errors.Is(err, format.ErrVersion): // of which a store checks the whole
				fmt.Fprintln(&b, what, "damaged")
			default:
				fmt.Fprintln(&b, what, answer, err)
			}
		}
		for index := first; index <= last; index++ {
			x, err := v.Transaction(v.TxIDAt(index))
			say("transaction", x, err)
			p, err := v.Proof(index)
			say("proof", p, err)
		}
		for _, client := range []string{"a", "c"} {
			r, err := v.Receipts(testScope, client, 9)
			say("receipts", r, err)
		}
		e, err := v.Entity(testScope, "k")
		say("entity", e, err)
		for _, scope := range []Scope{testScope, vault.Scope} {
			block, err := v.Block(scope, 1)
			say("block", block, err)
			header, err := v.headerAt(scope, 1)
			say("header", header, err)
		}
		return b.String()
	}
	sound := strings.Split(answers(), "\n")
	if strings.Contains(strings.Join(sound, "\n"), "damaged") {
		t.Fatal(sound)
	}
	noticed, harmless := 0, 0
	for bit := range 8 * len(record) {
		flipped := bytes.Clone(record)
		flipped[bit/8] ^= 1 << (bit % 8)
		f.mem.tables[TableBlocks].values[string(key)] = flipped
		damaged := false
		for i, answer := range strings.Split(answers(), "\n") {
			if strings.HasSuffix(answer, "damaged") {
				damaged = true
			} else if answer != sound[i] {
				t.Errorf("bit %d of byte %d: %s\nwant %s", bit%8, bit/8, answer, sound[i])
			}
		}
		if damaged {
			noticed++
		} else {
			harmless++
		}
	}
	// The number of blocks is read by a walk through the record alone.
	if harmless > 8 {
		t.Errorf("%d of %d bits made no difference", harmless, noticed+harmless)
	}
}

// A record says itself which key it belongs to.
func TestRecordUnderAnotherKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.commit(appendWrite("c", 1, 0, "x"))
	f.commit(appendWrite("c", 2, 0, "y"))
	table := &f.mem.tables[TableBlocks]
	for i, key := range table.keys {
		value := table.values[key]
		if !SelfChecked(TableBlocks, value) || SelfChecked(TableStreams, value) {
			t.Errorf("record %d has no checksums of its own, or another table's has", i)
		}
		must.Do(t, CheckKey([]byte(key), value))
		for bit := range 8 * len(key) {
			flipped := []byte(key)
			flipped[bit/8] ^= 1 << (bit % 8)
			check.Is(t, CheckKey(flipped, value), ErrCorrupt, "record %x under key %x", key, flipped)
		}
		for n := range len(value) {
			check.Is(t, CheckKey([]byte(key), value[:n]), ErrCorrupt, "cut to %d of %d bytes", n, len(value))
		}
	}
}

// The blocks of a long entry are closed in pieces of about a mebibyte, and what
// is in a closed piece is found by what follows in the same entry.
func TestLongEntriesAreClosedInPieces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	payload := strings.Repeat("p", 300<<10)
	var commands [][]byte
	for i := range uint64(10) {
		commands = append(commands, AppendWrite(nil, operations("c", i+1, byte(i+1), set(fmt.Sprint(i), payload))))
	}
	again := operations("c", 10, 10, set("9", payload))
	commands = append(commands, AppendWrite(nil, again), AppendWrite(nil, operations("c", 7, 7, set("6", payload))),
		AppendWrite(nil, operations("c", 11, 11,
			provided(set("0", "x"), Condition{Kind: ConditionValueEquals, Value: []byte(payload)}))))
	out := f.entry(commands...)
	for i, want := range []Code{Replayed, Replayed, Committed} {
		check.Equal(t, out[10+i].Code, want, "command %d behind the writes: %v", i)
	}
	sameReceipt(t, "a retry from a closed piece", out[11].Receipt, out[6].Receipt)
	longest, records := 0, len(f.mem.tables[TableBlocks].keys)
	for _, record := range f.mem.tables[TableBlocks].values {
		longest = max(longest, len(record))
	}
	if records < 3 || longest > maxPiece+len(payload)+1_000 {
		t.Errorf("%d records, the longest has %d bytes", records, longest)
	}
	scopes := 0
	f.m.CommittedScopes(func(s Scope) {
		check.Equal(t, s, testScope)
		scopes++
	})
	if scopes != records {
		t.Errorf("%d blocks in %d records", scopes, records)
	}
	var handed []HandedOut
	for i := range uint64(10) {
		handed = append(handed, HandedOut{operations("c", i+1, byte(i+1), set(fmt.Sprint(i), payload)), out[i].Receipt})
	}
	must.Do(t, readBack(f.mem, handed))
	check.Equal(t, len(audit(t, f.m, f.mem)), 0)
	f.commit(appendWrite("c", 12, 0, "x"))
	for _, buffer := range [][]byte{f.m.record, f.m.transaction, f.m.digestInput, f.m.scratch} {
		if cap(buffer) > maxBuffer {
			t.Errorf("a buffer of %d bytes is kept", cap(buffer))
		}
	}
}

// A pass closes pieces as well, so that what it removes never makes one record.
func TestPassesAreClosedInPieces(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit = maxEvictLimit
	f := newFixture(t, config)
	for i := range 10 {
		w := operations("c", 1, 0)
		w.Scope.Vault = fmt.Sprint(i)
		for j := range 200 {
			key := fmt.Sprintf("%d/%03d/%s", i, j, strings.Repeat("k", 1_000))
			w.Operations = append(w.Operations, setUntil(key, "", f.now+1+int64(j)))
		}
		f.entry(AppendWrite(nil, w))
	}
	f.now += second
	before := len(f.mem.tables[TableBlocks].keys)
	f.round() // as many of each vault as the pass has work for
	check.Equal(t, len(f.mem.tables[TableBlocks].keys)-before, 2,
		"a pass over more than a mebibyte of keys made %d records")
	for _, record := range f.mem.tables[TableBlocks].values {
		if len(record) > 2*maxPiece+64<<10 {
			t.Errorf("a record of %d bytes", len(record))
		}
	}
	must.Do(t, readBack(f.mem, nil))
}
