package machine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// pages reads a listing to its end, one element a page, each page beginning
// after the last element of the one before.
func pages(t *testing.T, list func(after string) (next string, ok bool)) (all []string) {
	t.Helper()
	after := ""
	for range 100 {
		next, ok := list(after)
		if !ok {
			return all
		}
		all, after = append(all, next), next
	}
	t.Fatalf("the listing does not end: %q", all)
	return nil
}

// VisitEntities shows keys with the prefix, greater than after, in byte order.
func TestVisitEntitiesPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.commit(operations("c", 1, 0, set("a", "1"), set("a\x00", "2"), set("ab", "3"), set("b", "4"), set("ba", "5"),
		set("é", "6")))
	for _, test := range []struct {
		prefix, after string
		want          []string
	}{
		{"", "", []string{"a", "a\x00", "ab", "b", "ba", "é"}},
		{"", "a", []string{"a\x00", "ab", "b", "ba", "é"}},
		{"", "aa", []string{"ab", "b", "ba", "é"}},
		{"a", "", []string{"a", "a\x00", "ab"}},
		{"a", "a\x00", []string{"ab"}},
		{"a", "ab", nil},
		{"b", "a", []string{"b", "ba"}},
		{"b", "ba", nil},
		{"z", "", nil},
	} {
		var got []string
		_, err := f.view().VisitEntities(testScope, test.prefix, test.after, func(e Entity) bool {
			got = append(got, e.Key)
			return true
		})
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("prefix %q after %q: %q, %v, want %q", test.prefix, test.after, got, err, test.want)
		}
	}
}

// A listing goes on after an entity whose key is the prefix itself.
func TestVisitEntitiesAfterTheKeyThatIsThePrefix(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.commit(operations("c", 1, 0, set("a", "1"), set("ab", "3"), set("b", "4")))
	all := pages(t, func(after string) (next string, ok bool) {
		must.Get(f.view().VisitEntities(testScope, "a", after, func(e Entity) bool {
			next, ok = e.Key, true
			return false
		}))(t)
		return next, ok
	})
	check.EqualSlices(t, all, []string{"a", "ab"}, "page by page there are %q")
}

func TestVisitRelationshipsPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.commit(operations("c", 1, 0,
		relate("doc", "owner", "bob"), relate("doc", "owner", "eve"), relate("doc", "own", "bob"),
		relate("docs", "owner", "bob"),
		relate("doc", "viewer", "bob"), unrelate("doc", "viewer", "bob")))
	for _, test := range []struct {
		resource, relation string
		want               []Relationship
	}{
		{"", "", []Relationship{{"doc", "own", "bob"}, {"doc", "owner", "bob"}, {"doc", "owner", "eve"},
			{"docs", "owner", "bob"}}},
		{"doc", "", []Relationship{{"doc", "own", "bob"}, {"doc", "owner", "bob"}, {"doc", "owner", "eve"}}},
		{"doc", "owner", []Relationship{{"doc", "owner", "bob"}, {"doc", "owner", "eve"}}},
		{"doc", "viewer", nil},
		{"d", "", nil},
	} {
		var got []Relationship
		var after []byte
		for range 10 { // one a page
			n := len(got)
			must.Get(f.view().VisitRelationships(testScope, test.resource, test.relation, after,
				func(key []byte, r Relationship) bool {
					got, after = append(got, r), key
					return false
				}))(t)
			if len(got) == n {
				break
			}
		}
		check.EqualSlices(t, got, test.want, "%q %q: %v", test.resource, test.relation)
	}
}

func TestVisitStreamsPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	vault := Scope{"acme", "v"}
	for _, scope := range []Scope{testScope, vault, {"b", ""}} {
		for _, client := range []string{"x", "xy"} {
			w := appendWrite(client, 1, 0, "x")
			w.Scope = scope
			f.commit(w)
		}
	}
	for _, test := range []struct {
		scope *Scope
		want  []string
	}{
		{nil, []string{"b/x", "b/xy", "acme/x", "acme/xy", "acme v/x", "acme v/xy"}}, // in the order of encoded keys
		{&testScope, []string{"acme/x", "acme/xy"}},
		{&vault, []string{"acme v/x", "acme v/xy"}},
		{&Scope{"acme", "w"}, nil},
	} {
		var got []string
		var after []byte
		for range 10 {
			n := len(got)
			must.Get(f.view().VisitStreams(test.scope, after, func(key []byte, s NamedStream) bool {
				got, after = append(got, s.Scope.String()+"/"+s.ClientID), key
				return false
			}))(t)
			if len(got) == n {
				break
			}
		}
		check.EqualSlices(t, got, test.want, "scope %v: %q", test.scope)
	}
}

// What is not there is ErrNotFound, never an empty answer.
func TestNotFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.commit(operations("c", 1, 0, set("k", "v")))
	v := f.view()
	_, entity := v.Entity(testScope, "absent")
	_, elsewhere := v.Entity(Scope{"acme", "v"}, "k")
	_, block := v.Block(testScope, 2)
	_, zero := v.headerAt(testScope, 0)
	_, command := v.Transaction(NewTxID(testLedger, 1)) // an index without a transaction
	_, later := v.Transaction(NewTxID(testLedger, 99))
	_, foreign := v.Transaction(NewTxID(testLedger+1, 2))
	_, noProof := v.Proof(1)
	for i, err := range []error{entity, elsewhere, block, zero, command, later, foreign, noProof} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("case %d gives %v, want ErrNotFound", i, err)
		}
	}
	if c, err := v.Chain(Scope{"nobody", ""}); err != nil || c.Height != 0 || c.Hash != (Hash{}) {
		t.Errorf("a scope without blocks has %+v, %v", c, err)
	}
	if receipts, err := v.Receipts(testScope, "nobody", 5); len(receipts) != 0 || err != nil {
		t.Errorf("a client that is not there has receipts %v, %v", receipts, err)
	}
}

// One block per log entry and scope; the headers of a scope form a chain. The
// proofs of blocks of every size up to 20, and of a large one, verify with an
// implementation that is not ours.
func TestBlocksAndProofs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	vault := Scope{"acme", "v"}
	sequence := uint64(0)
	sizes := make([]int, 0, 22)
	for n := 1; n <= 20; n++ {
		sizes = append(sizes, n)
	}
	sizes = append(sizes, 257)
	for _, n := range sizes {
		var commands [][]byte
		for range n {
			sequence++
			commands = append(commands, AppendWrite(nil, appendWrite("c", sequence, 0, fmt.Sprint(sequence))))
		}
		inVault := appendWrite("c", uint64(n)/2+1, 0, "x") // every other one repeats a sequence: no block
		inVault.Scope = vault
		out := f.entry(append(commands, AppendWrite(nil, inVault))...)
		for i, o := range out[:n] {
			if int(o.Receipt.Position) != i || o.Receipt.BlockHeight != out[0].Receipt.BlockHeight {
				t.Errorf("write %d of an entry of %d is at %d/%d", i, n, o.Receipt.BlockHeight, o.Receipt.Position)
			}
		}
		scopes := map[Scope]int{}
		f.m.CommittedScopes(func(s Scope) { scopes[s]++ })
		want := map[Scope]int{testScope: 1}
		if out[n].Code == Committed {
			want[vault] = 1
		}
		if !maps.Equal(scopes, want) {
			t.Errorf("the entry made blocks in %v, want %v", scopes, want)
		}
		f.now++
	}
	if c, err := f.view().Chain(testScope); err != nil || c.Height != uint64(len(sizes)) {
		t.Errorf("the chain is %+v, %v, want height %d", c, err, len(sizes))
	}
	must.Do(t, readBack(f.mem, nil))
}

// Receipts come newest first, at most as many as asked for.
func TestReceiptsOfAStream(t *testing.T) {
	t.Parallel()
	f, want := prepared(t)
	for limit, sequences := range [][]uint64{{}, {6}, {6, 5}, {6, 5, 4}, {6, 5, 4, 3}, {6, 5, 4, 3}} {
		got := must.Get(f.view().Receipts(testScope, "c", limit))(t)
		must.Equal(t, len(got), len(sequences), "at most %d: %v", limit)
		for i, sequence := range sequences {
			sameReceipt(t, "listed", got[i], want[sequence])
		}
	}
}

// What a view hands out stays valid when the state goes on.
func TestViewsAnswersAreCopies(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	id := f.view().TxIDAt(f.commit(operations("c", 1, 0, set("k", "before"))).Index)
	e, _ := f.entity("k")
	x := must.Get(f.view().Transaction(id))(t)
	for _, table := range f.mem.tables { // the worst that a storage may do: use its pages again
		for _, value := range table.values {
			for i := range value {
				value[i] = 0xee
			}
		}
	}
	if string(e.Value) != "before" || string(x.Operations[0].Value) != "before" || string(x.Operations[0].Key) != "k" {
		t.Errorf("the entity is %q, the operation %q", e.Value, x.Operations[0].Value)
	}
}

// A listing steps over a bounded number of expired entities at a time.
func TestVisitEntitiesIsBounded(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionInterval = maxInterval // no round clears them away
	f := newFixture(t, config)
	const dead = maxExpiredScan + 5
	for n := uint64(0); n < dead; n += MaxOperations {
		w := appendWrite("c", n/MaxOperations+1, 0, "")
		w.Operations = nil
		for i := n; i < min(n+MaxOperations, dead); i++ {
			w.Operations = append(w.Operations, Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "a%06d", i),
				ExpiresAt: 1})
		}
		f.entry(AppendWrite(nil, w))
	}
	w := appendWrite("c", dead/MaxOperations+2, 0, "")
	w.Operations = []Operation{{Kind: OpSetEntity, Key: []byte("z"), Value: []byte("alive")}}
	f.entry(AppendWrite(nil, w))
	var seen []string
	calls := 0
	for after := ""; ; calls++ {
		resume := must.Get(f.view().VisitEntities(testScope, "", after, func(e Entity) bool {
			seen = append(seen, e.Key)
			return true
		}))(t)
		if after = resume; resume == "" {
			break
		}
	}
	if calls != 1 || len(seen) != 1 || seen[0] != "z" {
		t.Errorf("%d more calls saw %q, want one more and the one that lives", calls, seen)
	}
}
