package receipt

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

// leafOf returns the data of a leaf.
func leafOf(i int64) [hashSize]byte {
	return sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i)))
}

// treeOf returns a tree with n leaves, which is saved after each step of them.
func treeOf(t testing.TB, dir string, n, step int64) *Tree {
	t.Helper()
	tree := must.Get(Open(dir))(t)
	for i := tree.Size(); i < n; i++ {
		tree.Add(leafOf(i))
		if tree.Unsaved() == step || i == n-1 {
			must.Do(t, tree.Save(uint64(i)))
		}
	}
	return tree
}

// rootOf is the root by the definition of RFC 6962.
func rootOf(from, n int64) []byte {
	if n == 1 {
		data := leafOf(from)
		return rfc6962.DefaultHasher.HashLeaf(data[:])
	}
	k := int64(1)
	for 2*k < n {
		k *= 2
	}
	return rfc6962.DefaultHasher.HashChildren(rootOf(from, k), rootOf(from+k, n-k))
}

// Whatever the steps in which it was saved, the tree is that of RFC 6962, and the verifier of others takes its proofs.
func TestTreeIsThatOfTheStandard(t *testing.T) {
	t.Parallel()
	for n, step := range map[int64]int64{1: 1, 2: 1, 255: 100, 256: 256, 257: 1, 1_000: 7, 70_000: 9_999} {
		dir := filepath.Join(t.TempDir(), "log", "id")
		tree := treeOf(t, dir, n, step)
		want := rootOf(0, n)
		check.Equal(t, tree.Saved().Hash, tlog.Hash(want), "%d leaves: the root is %s", n)
		again := must.Get(Open(dir))(t)
		check.Equal(t, again.Saved(), tree.Saved(), "%d leaves: opened again it is %v", n)
		check.Equal(t, again.Last(), uint64(n-1), "%d leaves: opened again the number is %d", n)
		for _, leaf := range []int64{0, n / 3, n - 1} {
			path := must.Get(again.ProveLeaf(tree.Saved(), leaf))(t)
			data := leafOf(leaf)
			must.Do(t, proof.VerifyInclusion(rfc6962.DefaultHasher, uint64(leaf), uint64(n),
				rfc6962.DefaultHasher.HashLeaf(data[:]), slices(path), want), "leaf %d of %d", leaf, n)
			old := leaf + 1
			path2 := must.Get(again.ProveTree(tree.Saved(), old))(t)
			must.Do(t, proof.VerifyConsistency(rfc6962.DefaultHasher, uint64(old), uint64(n), slices(path2),
				rootOf(0, old), want), "%d to %d leaves", old, n)
		}
	}
}

func rootAt(n int64) (h tlog.Hash) {
	copy(h[:], rootOf(0, n))
	return h
}

func slices[T ~[]tlog.Hash](hashes T) (all [][]byte) {
	for i := range hashes {
		all = append(all, hashes[i][:])
	}
	return all
}

// A process that dies at any step of Save leaves the tree of the Save before, and the next one continues from it.
func TestTreeSurvivesKills(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{3, 255, 300, 70_000} {
		dir := filepath.Join(t.TempDir(), "log", "id")
		tree := treeOf(t, dir, n, n)
		before := tree.Saved()
		for i := range 2 * int64(tileWidth) {
			tree.Add(leafOf(1_000_000 + i)) // other ones than those that follow
		}
		// What a kill may leave: parts of what was written of each level, and no new file that counts it.
		for level, hashes := range tree.fresh {
			if len(hashes) > 0 {
				must.Do(t, tree.write(level, hashes[:len(hashes)-1], before.N>>(Height*level)*hashSize))
			}
			again, err := Open(dir)
			if err != nil || again.Saved() != before {
				t.Fatalf("%d leaves, killed after level %d: %v, %v", n, level, again.Saved(), err)
			}
		}
		must.Do(t, os.WriteFile(filepath.Join(dir, sizeName+".new"), []byte("part of it"), 0o600))
		tree = treeOf(t, dir, n+300, 100)
		check.Equal(t, tree.Saved().Hash, tlog.Hash(rootOf(0, n+300)), "afterwards the root is %s")
	}
}

// A Save that fails has changed nothing that counts.
func TestFailedSave(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log", "id")
	before := treeOf(t, dir, 3, 3).Saved()
	must.Do(t, os.Mkdir(filepath.Join(dir, "1"), 0o700))
	tree := must.Get(Open(dir))(t)
	for i := range int64(300) {
		tree.Add(leafOf(3 + i))
	}
	if err := tree.Save(300); err == nil {
		t.Error("a level is a directory, and is written")
	}
	check.Equal(t, must.Get(Open(dir))(t).Saved(), before, "it has %v")
	must.Do(t, os.Remove(filepath.Join(dir, "1")))
	check.Equal(t, treeOf(t, dir, 303, 303).Saved().Hash, rootAt(303), "then the root is %s")
}

// Damage of what is read at a start is found then, and any other by the proof that reads it. Nothing false comes of it.
func TestDamagedTree(t *testing.T) {
	t.Parallel()
	const n = 1_000
	damaged := func(name string, at int64) (*Tree, error) {
		dir := filepath.Join(t.TempDir(), "log", "id")
		treeOf(t, dir, n, 300)
		path := filepath.Join(dir, name)
		b := must.Get(os.ReadFile(path))(t)
		if at < 0 {
			at += int64(len(b))
		}
		b[at] ^= 1
		must.Do(t, os.WriteFile(path, b, 0o600))
		return Open(dir)
	}
	for name, at := range map[string]int64{"0": -1, "1": -1, sizeName: 20} {
		tree, err := damaged(name, at)
		check.Is(t, err, ErrDamaged, name)
		check.Equal(t, tree.Size(), 0, "%s: it has %d leaves", name)
		for i := range int64(n) {
			tree.Add(leafOf(i))
		}
		must.Do(t, tree.Save(n))
		check.Equal(t, tree.Saved().Hash, tlog.Hash(rootOf(0, n)), "%s: made again the root is %s", name)
	}
	tree, err := damaged("0", 5*hashSize)
	must.Do(t, err)
	if path, err := tree.ProveLeaf(tree.Saved(), 7); err == nil {
		t.Error("a proof of a damaged tile:", path)
	}
	must.Do(t, check.Err(tree.ProveLeaf(tree.Saved(), 300)), "a leaf of another tile")
	short := filepath.Join(t.TempDir(), "log", "id")
	treeOf(t, short, n, n)
	must.Do(t, os.Truncate(filepath.Join(short, "0"), n*hashSize-1))
	check.Is(t, check.Err(Open(short)), ErrDamaged, "cut off")
	must.Do(t, os.Remove(filepath.Join(short, "0")))
	check.Is(t, check.Err(Open(short)), ErrDamaged, "missing")
}

func keyOf(t *testing.T) *witness.Key {
	t.Helper()
	return must.Get(witness.NewKey(witness.LogKey, "log.example"))(t)
}

const origin = "log.example/0123456789abcdef"

// policyOf believes a key without witnesses.
func policyOf(t *testing.T, k *witness.Key) *witness.Policy {
	t.Helper()
	return must.Get(witness.ParsePolicy([]byte("log " + k.As(origin).String() + "\nquorum none\n")))(t)
}

// A log signs what its tree has saved, never less and never something else, also after a restart.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log", "id")
	tree, key := treeOf(t, dir, 300, 300), keyOf(t)
	open := func(keys ...*witness.Key) *Log {
		t.Helper()
		return must.Get(OpenLog(tree, origin, keys, nil))(t)
	}
	log := open(key)
	must.Do(t, log.Sign())
	first := log.Newest()
	c, _, err := policyOf(t, key).Satisfied(first.Note)
	if err != nil || c != first.Checkpoint || c.Tree != tree.Saved() {
		t.Fatalf("%+v, %v, want %v", c, err, tree.Saved())
	}
	tree.Add(leafOf(300))
	must.Do(t, log.Sign())
	if c := log.Newest(); c.Checkpoint != first.Checkpoint {
		t.Error("it signs what is not saved:", c)
	}
	must.Do(t, tree.Save(300))
	log = open(key)
	must.Do(t, log.Sign())
	second := log.Newest()
	check.Equal(t, second.N, 301, "the next one has the size %d")

	// Both keys sign while one is replaced, and the first one alone is asked for.
	next := keyOf(t)
	log = open(next, key)
	tree.Add(leafOf(301))
	must.Do(t, tree.Save(301))
	must.Do(t, log.Sign())
	for _, k := range []*witness.Key{key, next} {
		must.Do(t, third(policyOf(t, k).Satisfied(log.Newest().Note)))
	}
	if _, err := OpenLog(tree, origin, []*witness.Key{keyOf(t)}, nil); err == nil {
		t.Error("a checkpoint of a key that is not given is taken")
	}

	// A tree that is made again is signed once it has come as far, if it is the same.
	tree = Empty(dir)
	log = open(key, next)
	for i := range int64(302) {
		tree.Add(leafOf(i))
		if i%100 == 0 {
			must.Do(t, tree.Save(uint64(i)))
			covers, err := log.Check()
			if must.Do(t, errors.Join(err, log.Sign())); covers {
				t.Fatalf("%d leaves are said to be all", i)
			}
		}
	}
	if c := log.Newest(); c.N != 302 {
		t.Error("the size became lower:", c)
	}
	tree = treeOf(t, filepath.Join(t.TempDir(), "log", "id"), 290, 290)
	for i := range int64(20) {
		tree.Add(leafOf(1_000 + i))
	}
	must.Do(t, tree.Save(0))
	other := must.Get(OpenLog(tree, origin, []*witness.Key{key}, nil))(t)
	other.newest = log.Newest()
	check.Is(t, other.Sign(), ErrForked, "another history")
}

func third[A, B any](_ A, _ B, err error) error { return err }

// Cosignatures are kept with the checkpoint, and the newest one with those of the quorum beside it, also after a start.
func TestKeptCosignatures(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log", "id")
	tree, key := treeOf(t, dir, 9, 9), keyOf(t)
	w := []*witness.Key{
		must.Get(witness.NewKey(witness.WitnessKey, "w0"))(t), must.Get(witness.NewKey(witness.WitnessKey, "w1"))(t),
	}
	lines := fmt.Sprintf("log %s\nwitness w0 %s\nwitness w1 %s\n", key.As(origin), w[0], w[1])
	policy := must.Get(witness.ParsePolicy([]byte(lines + "group g all w0 w1\nquorum g\n")))(t)
	open := func() *Log { return must.Get(OpenLog(tree, origin, []*witness.Key{key}, policy))(t) }
	log := open()
	keep := func(s Signed, by ...note.Signer) (Signed, int, error) {
		t.Helper()
		u, _ := errors.AsType[*note.UnverifiedNoteError](check.Err(note.Open(s.Note, nil)))
		s.Note = must.Get(note.Sign(u.Note, by...))(t)
		got, err := log.Keep(s)
		return s, len(got), err
	}
	is := func(got, want Signed, what string) {
		t.Helper()
		check.Equal(t, string(got.Note), string(want.Note), what+": %s")
		check.Equal(t, got.Checkpoint, want.Checkpoint, what+": %v")
	}
	must.Do(t, log.Sign())
	first, n, err := keep(log.Newest(), w[1])
	check.ErrorContains(t, err, "1 of 2 witnesses")
	check.Equal(t, n, 1)
	log = open()
	is(log.Newest(), first, "one of the cosignatures")
	is(log.Cosigned(), Signed{}, "the quorum is missing")
	first, n, err = keep(first, w[0])
	must.Do(t, err)
	check.Equal(t, n, 2)
	tree.Add(leafOf(9))
	must.Do(t, tree.Save(9))
	must.Do(t, log.Sign())
	second, _, err := keep(log.Newest(), w[0])
	check.ErrorContains(t, err, "1 of 2 witnesses")
	log = open()
	is(log.Newest(), second, "the newest lacks one")
	is(log.Cosigned(), first, "the one before has all")
	second, _, err = keep(second, w[1])
	must.Do(t, err)
	_, _, err = keep(first) // it came late
	must.Do(t, err)
	for range 2 {
		is(log.Newest(), second, "the newest")
		is(log.Cosigned(), second, "the newest with all")
		log = open()
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, cosignedName), first.Note[:len(first.Note)-9], 0o600))
	is(open().Cosigned(), Signed{}, "damaged")
	named := key.As("log.example/another")
	policy = must.Get(witness.ParsePolicy(fmt.Appendf(nil, "log %s\nlog %s\nquorum none\n",
		named, must.Get(witness.NewKey(witness.LogKey, "x"))(t))))(t)
	text := witness.Checkpoint{Origin: named.Name(), Tree: tree.Saved()}.String()
	signed := must.Get(note.Sign(&note.Note{Text: text}, named))(t)
	must.Do(t, os.WriteFile(filepath.Join(dir, cosignedName), signed, 0o600))
	is(open().Cosigned(), Signed{}, "of another origin")
}
