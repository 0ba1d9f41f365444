package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// expectDigest moves a digest on by what the format says, not by what the
// machine does.
func expectDigest(previous Hash, parts ...any) Hash {
	b := append([]byte(nil), previous[:]...)
	for _, part := range parts {
		switch p := part.(type) {
		case byte:
			b = append(b, p)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, p)
		case int64:
			b = binary.BigEndian.AppendUint64(b, uint64(p))
		case int: // a varint
			b = binary.AppendUvarint(b, uint64(p))
		case Hash:
			b = append(b, p[:]...)
		case []byte:
			b = append(b, p...)
		}
	}
	return sha256.Sum256(b)
}

// The running digest covers every command, its index, time, outcome and
// transaction.
func TestDigestCoversCommandsAndOutcomes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	digest := f.view().Digest()
	check.Equal(t, digest, expectDigest(Hash{}, byte(1), uint64(1), f.now, byte(Committed), 0, 0,
		AppendCreate(nil, testLedger, 77, testConfig())), "after the creation the digest is %s")
	check := func(what string, parts ...any) {
		t.Helper()
		digest = expectDigest(digest, parts...)
		if got := f.view().Digest(); got != digest {
			t.Errorf("%s: the digest is %s, want %s", what, got, digest)
			digest = got
		}
	}
	f.now += 7
	w := AppendWrite(nil, appendWrite("c", 1, 1, "x"))
	f.one(w)
	x := must.Get(f.view().Transaction(f.view().TxIDAt(2)))(t)
	check("a commit", byte(1), uint64(2), f.now, byte(Committed), 2, 0, LeafHash(x.Leaf()), w)
	f.now += 7
	f.one(w)
	check("a replay", byte(1), uint64(3), f.now, byte(Replayed), 2, 0, w)
	gap := AppendWrite(nil, appendWrite("c", 9, 0, "x"))
	f.one(gap)
	check("a refusal", byte(1), uint64(4), f.now, byte(SequenceGap), 0, 0, gap)
	session := AppendOpenSession(nil, &OpenSession{Scope: testScope, ClientID: "c", Actor: "a"})
	f.one(session)
	check("a session", byte(1), uint64(5), f.now, byte(Committed), 0, 5, session)
	epoch := AppendEpoch(nil, 9, 0)
	f.one(epoch)
	check("an epoch", byte(1), uint64(1<<32+1<<40+9), f.now, byte(Committed), 0, 0, epoch)
}

// The digest covers every eviction, streams in the order of their keys
// whatever order they became due in, and the transactions of the gc.
func TestDigestCoversEvictions(t *testing.T) {
	t.Parallel()
	config := testConfig()
	f := newFixture(t, config)
	b := f.commit(operations("b", 1, 0, setUntil("k", "v", f.now+1))).Index
	f.now++
	a := f.commit(appendWrite("a", 1, 0, "x")).Index // due later than b, with a smaller key
	f.now += config.ClientTTL + 1
	digest := f.view().Digest()
	command := AppendUpdateConfig(nil, &ConfigUpdate{EvictionInterval: new(uint64(1))}, "a")
	f.one(command)
	x := must.Get(f.view().Transaction(f.view().TxIDAt(5)))(t)
	name := func(client string) []byte { return append(appendScopeKey(nil, testScope), client...) }
	want := expectDigest(digest, byte(1), uint64(4), f.now, byte(Committed), 0, 0, command)
	want = expectDigest(want, byte(2), uint64(4), f.now, name("a"), int(a))
	want = expectDigest(want, byte(2), uint64(4), f.now, name("b"), int(b))
	want = expectDigest(want, byte(3), uint64(5), f.now, LeafHash(x.Leaf()))
	if got := f.view().Digest(); got != want {
		t.Errorf("after the round the digest is %s, want %s: a and b in the order of their keys, then the gc",
			got, want)
	}
}
