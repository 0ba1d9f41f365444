package receipt

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/witness"
)

// goldenKey signs the golden receipt. It signs nothing else.
const goldenKey = "PRIVATE+KEY+log.example+b252d0cf+AQABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

// goldenTransaction is the second of two in its block.
func goldenTransaction() machine.Transaction {
	return machine.Transaction{
		LedgerID: 0x123456789abcdef, Index: 300, CommittedAt: 1_000_000_000_000_000_000,
		Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: "till-7", CreatedIndex: 2, Session: 3,
		Sequence: 5, Key: machine.Key{UUID: [16]byte{15: 1}, Present: true}, RequestHash: machine.RequestHash{1, 15: 2},
		Actor: "client:till-7",
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("hello")},
			{Kind: machine.OpDeleteEntity, Key: []byte("absent")}},
		Versions: []uint64{300, 0},
	}
}

// goldenReceipt makes a receipt, and the policy that believes it.
func goldenReceipt(t testing.TB) (*Receipt, *witness.Policy) {
	t.Helper()
	x := goldenTransaction()
	r, policy := receiptOf(t, x.Leaf())
	return r, must.Get(witness.ParsePolicy([]byte(policy)))(t)
}

// receiptOf makes the receipt of whatever is in the block of the golden transaction, and a policy that believes it.
func receiptOf(t testing.TB, data []byte) (r *Receipt, policy string) {
	t.Helper()
	x := goldenTransaction()
	key := must.Get(witness.ParseKey(goldenKey))(t)
	dir := filepath.Join(t.TempDir(), "log", "id")
	tree := must.Get(Open(dir))(t)
	sibling := machine.LeafHash([]byte("another"))
	leaf := machine.LeafHash(data)
	r = &Receipt{
		Leaf: data, Position: 1, Path: []machine.Hash{sibling}, Index: 3,
		Header: machine.BlockHeader{
			Scope: x.Scope, Height: 7, PreviousHash: machine.Hash{9}, TxCount: 2, CommittedAt: x.CommittedAt,
			TxRoot: sha256.Sum256(bytes.Join([][]byte{{1}, sibling[:], leaf[:]}, nil)),
		},
	}
	for i := range int64(3) {
		tree.Add(leafOf(i))
	}
	tree.Add(r.Header.Hash())
	tree.Add(leafOf(4))
	must.Do(t, tree.Save(300))
	log := must.Get(OpenLog(tree, Origin("log.example", x.LedgerID), []*witness.Key{key}, nil))(t)
	must.Do(t, log.Sign())
	c := log.Newest()
	r.Checkpoint, r.Proof = c.Note, must.Get(tree.ProveLeaf(c.Tree, r.Index))(t)
	vkey := key.As(c.Origin).String()
	return r, "log " + vkey + "\nquorum none\n"
}

// The bytes of a receipt, which the TypeScript client reads, too.
func TestGoldenReceipt(t *testing.T) {
	t.Parallel()
	r, policy := goldenReceipt(t)
	path := filepath.Join("testdata", "receipt.tlog-proof")
	file := r.Append(nil)
	if os.Getenv("SEQLEDGER_UPDATE") != "" {
		must.Do(t, os.WriteFile(path, file, 0o600))
	}
	must.Equal(t, string(file), string(must.Get(os.ReadFile(path))(t)), "THIS CHANGES THE FORMAT: it is %s")
	s, x := must.Get(r.Verify(policy))(t), goldenTransaction()
	payload := sha256.Sum256([]byte("\x05\x05hello\x02\x06absent\x00"))
	if s.ID() != x.ID() || s.Sequence != 5 || s.ClientID != "till-7" || fmt.Sprint(s.Versions) != "[300 0]" ||
		s.Payload != payload || s.Height != 7 || s.Checkpoint.N != 5 || len(s.Cosigners) != 0 {
		t.Errorf("it shows %+v", s)
	}
}

// A receipt of another ledger, of a later size, or that says of itself what its hashes do not is refused, and each
// refusal says why.
func TestReceiptsThatDoNotHold(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(r *Receipt){
		"not in the block":             func(r *Receipt) { r.Position = 0 },
		"is not in the block: ":        func(r *Receipt) { r.Path = nil },
		"not in the history":           func(r *Receipt) { r.Index = 2 },
		"is not in the history":        func(r *Receipt) { r.Header.Height++ },
		"another scope or time":        func(r *Receipt) { r.Header.Scope.Vault = "" },
		"another scope":                func(r *Receipt) { r.Header.CommittedAt++ },
		"does not decode":              func(r *Receipt) { r.Leaf = r.Leaf[:20] },
		"too many":                     func(r *Receipt) { r.Leaf = append(bytes.Clone(r.Leaf), 0) },
		"checkpoint is not to be trus": func(r *Receipt) { r.Checkpoint[30] ^= 1 },
	} {
		r, policy := goldenReceipt(t)
		change(r)
		check.ErrorContains(t, check.Err(r.Verify(policy)), says)
	}
	r, policy := goldenReceipt(t)
	x := goldenTransaction()
	x.LedgerID++
	r.Leaf = x.Leaf()
	leaf := machine.LeafHash(r.Leaf)
	r.Header.TxRoot = sha256.Sum256(bytes.Join([][]byte{{1}, r.Path[0][:], leaf[:]}, nil))
	check.ErrorContains(t, check.Err(r.Verify(policy)), "is of the ledger")
}

func TestParse(t *testing.T) {
	t.Parallel()
	r, _ := goldenReceipt(t)
	file := string(r.Append(nil))
	for says, change := range map[string]string{
		"is no receipt": "", "must be c2sp": strings.Replace(file, "@v1", "@v2", 1),
		"extra: there": strings.Replace(file, "extra ", "", 1),
		"line extra":   strings.Replace(file, "extra A", "extra !", 1),
		"version":      strings.Replace(file, "extra A", "extra B", 1),
		"line index":   strings.Replace(file, "index 3", "index 03", 1),
		"index: must":  strings.Replace(file, "index 3", "index -3", 1),
		"no hash":      strings.Replace(file, "index 3\n", "index 3\nAAAA\n", 1),
		"log.example":  strings.Replace(file, "\n\n", "\n", 1), "come before": file + strings.Repeat("x", MaxBytes),
	} {
		check.ErrorContains(t, check.Err(Parse([]byte(change))), says)
	}
}

// FuzzReceipt: a file is read in one way alone, and what is believed says what was signed.
func FuzzReceipt(f *testing.F) {
	r, policy := goldenReceipt(f)
	want := fmt.Sprintf("%+v", must.Get(r.Verify(policy))(f))
	f.Add(r.Append(nil))
	f.Add([]byte(firstLine + "\nextra AQAAAA==\nindex 0\n\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := Parse(file)
		if err != nil {
			return
		}
		if again := r.Append(nil); !bytes.Equal(again, file) {
			t.Errorf("%q is read, and written as %q", file, again)
		}
		if s, err := r.Verify(policy); err == nil && fmt.Sprintf("%+v", s) != want {
			t.Errorf("it shows %+v", s)
		}
		if leaf, err := machine.DecodeLeaf(r.Leaf); err == nil {
			_ = leaf.ID()
		}
	})
}

// FuzzTree: whatever the file says that counts the leaves, it is refused or is what was written.
func FuzzTree(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "log", "id")
	saved := treeOf(f, dir, 300, 100).Saved()
	written := must.Get(os.ReadFile(filepath.Join(dir, sizeName)))(f)
	f.Add(written)
	f.Fuzz(func(t *testing.T, content []byte) {
		tree := Empty(dir)
		err := tree.load(content)
		if now := tree.Saved(); err == nil && now != saved && now.Hash != rootAt(now.N) {
			t.Errorf("%q is read as %v", content, now)
		}
	})
}
