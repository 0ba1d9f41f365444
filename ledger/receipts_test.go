package ledger_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/transparency-dev/formats/log"
	"github.com/transparency-dev/formats/proof"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/receipt"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/witness"
)

const receiptOrigin = "log.example/test"

func receiptKey(t testing.TB) *witness.Key {
	t.Helper()
	return must.Get(witness.NewKey(witness.LogKey, "log.example"))(t)
}

func signedWith(key *witness.Key) *ledger.ReceiptOptions {
	return &ledger.ReceiptOptions{Keys: []*witness.Key{key}, Origin: receiptOrigin, Interval: time.Millisecond}
}

// believing returns the policy that believes a key for a ledger, without witnesses.
func believing(t testing.TB, key *witness.Key, id machine.LedgerID) *witness.Policy {
	t.Helper()
	vkey := key.As(receipt.Origin(receiptOrigin, id)).String()
	return must.Get(witness.ParsePolicy([]byte("log " + vkey + "\nquorum none\n")))(t)
}

// offlineReceipt gets the receipt of a write, and verifies it as a file.
func offlineReceipt(
	t testing.TB, l *ledger.Ledger, key *witness.Key, r machine.Receipt,
) (file []byte, s *receipt.Statement) {
	t.Helper()
	got := must.Get(l.OfflineReceipt(t.Context(), machine.NewTxID(r.LedgerID, r.Index), nil))(t)
	file = got.Append(nil)
	parsed := must.Get(receipt.Parse(file))(t)
	return file, must.Get(parsed.Verify(believing(t, key, r.LedgerID)))(t)
}

// receiptWrites are writes of every kind that makes a transaction.
func receiptWrites(t testing.TB, l *ledger.Ledger) (all []machine.Receipt) {
	t.Helper()
	large := appendWrite("large", 1, make([]byte, 1<<20))
	elsewhere := appendWrite("c", 1, []byte("x"))
	elsewhere.Scope = machine.Scope{Organization: "other"}
	unchanged := appendWrite("c", 1, []byte("y"))
	unchanged.Operations = append(unchanged.Operations, machine.Operation{Kind: machine.OpDeleteEntity,
		Key: []byte("absent")})
	unchanged.Key = machine.Key{UUID: [16]byte{7}, Present: true}
	for _, w := range []*machine.Write{large, elsewhere, unchanged} {
		all = append(all, mustWrite(t, l, w, machine.Committed).Receipt)
	}
	s := must.Get(l.Submit(t.Context(), commandsOf(t, appendWrite("d", 1, nil), appendWrite("d", 2, nil),
		appendWrite("e", 1, nil))))(t)
	for _, out := range must.Get(s.Wait(t.Context()))(t) {
		all = append(all, out.Receipt)
	}
	return all
}

// TestOfflineReceipts: each transaction has a receipt that says what the ledger said, and somebody else's programs read
// it. It is small, however large the write.
func TestOfflineReceipts(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), receiptKey(t)
	l := open(t, ledger.Options{Dir: dir, Receipts: signedWith(key)})
	for _, want := range receiptWrites(t, l) {
		file, s := offlineReceipt(t, l, key, want)
		if s.ID() != machine.NewTxID(want.LedgerID, want.Index) || s.Sequence != want.Sequence ||
			s.Leaf.CommittedAt != want.CommittedAt || s.Actor != want.Actor || s.RequestHash != want.RequestHash ||
			s.Height != want.BlockHeight || fmt.Sprint(s.Versions) != fmt.Sprint(want.Versions) {
			t.Errorf("it shows %+v, want %+v", s, want)
		}
		if len(file) > 4<<10 {
			t.Errorf("%d bytes", len(file))
		}
		theirs := proof.TLogProof{}
		if err := theirs.Unmarshal(file); err != nil || !bytes.Equal(theirs.Marshal(), file) {
			t.Errorf("package formats reads it as %+v, %v", theirs, err)
		}
		named := key.As(s.Checkpoint.Origin)
		c, _, _, err := log.ParseCheckpoint(theirs.Checkpoint, s.Checkpoint.Origin, named)
		hash := s.BlockHeader.Hash()
		if err == nil {
			var path tlog.RecordProof
			for _, h := range theirs.Hashes {
				path = append(path, h)
			}
			err = tlog.CheckRecord(path, int64(c.Size), tlog.Hash(c.Hash), int64(theirs.Index),
				tlog.RecordHash(hash[:]))
		}
		must.Do(t, err, "their checkpoint and the path in it")
	}
	missing := machine.NewTxID(l.Head().Ledger, 1<<40)
	early := func() { t.Error("it is said to wait, and has its work to do") }
	check.Is(t, check.Err(l.OfflineReceipt(t.Context(), missing, early)), machine.ErrNotFound, "no transaction")
	_ = l.Close()
	l = open(t, ledger.Options{Dir: dir})
	check.Is(t, check.Err(l.OfflineReceipt(t.Context(), missing, nil)), ledger.ErrNoReceipts, "without a key")
}

// Nothing that a receipt shows can be changed: a flipped bit is found.
func TestEveryBitOfAReceipt(t *testing.T) {
	t.Parallel()
	key := receiptKey(t)
	l := open(t, ledger.Options{Receipts: signedWith(key)})
	all := receiptWrites(t, l)
	file, want := offlineReceipt(t, l, key, all[len(all)-1])
	policy := believing(t, key, l.Head().Ledger)
	for i := range file {
		for bit := range 8 {
			changed := bytes.Clone(file)
			changed[i] ^= 1 << bit
			if r, err := receipt.Parse(changed); err == nil {
				// The encoding of a signature has bits that mean nothing.
				if s, err := r.Verify(policy); err == nil && fmt.Sprint(s) != fmt.Sprint(want) {
					t.Errorf("byte %d, bit %d: it shows %+v", i, bit, s)
				}
			}
		}
	}
	_, s := offlineReceipt(t, l, key, all[0])
	if _, err := must.Get(receipt.Parse(file))(t).Verify(believing(t, receiptKey(t), s.LedgerID)); err == nil {
		t.Error("another key is believed")
	}
}

// checkpointOf reads the newest checkpoint in a directory.
func checkpointOf(t testing.TB, dir string, id machine.LedgerID) (c witness.Checkpoint) {
	t.Helper()
	signed, err := os.ReadFile(filepath.Join(treeOf(dir, id), "checkpoint"))
	if os.IsNotExist(err) {
		return c
	}
	n, err := note.Open(signed, note.VerifierList())
	unverified, is := err.(*note.UnverifiedNoteError) //nolint:errorlint // Returned as it is.
	if !is {
		t.Fatal(n, err)
	}
	return must.Get(witness.ParseCheckpoint(unverified.Note.Text))(t)
}

func treeOf(dir string, id machine.LedgerID) string { return filepath.Join(dir, "tlog", id.String()) }

// A tree that is missing or damaged is made again of the blocks, and agrees with the checkpoints from before. A ledger
// that has lost what was signed signs nothing more. Writes go on in any case.
func TestTreeIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), receiptKey(t)
	o := ledger.Options{Dir: dir, Receipts: signedWith(key)}
	l := open(t, o)
	id := l.Head().Ledger
	first := receiptWrites(t, l)
	file, _ := offlineReceipt(t, l, key, first[0])
	closeLedger(t, l)
	older := filepath.Join(t.TempDir(), "older")
	must.Do(t, os.CopyFS(older, os.DirFS(dir)))
	before := checkpointOf(t, dir, id)
	again := func(what string) {
		t.Helper()
		l = open(t, o)
		sequence := uint64(1)
		must.Do(t, l.View(t.Context(), func(v machine.View) error {
			s, _, err := v.Stream(scope, "more")
			sequence += s.Last
			return err
		}))
		out := mustWrite(t, l, appendWrite("more", sequence, nil), machine.Committed)
		same, _ := offlineReceipt(t, l, key, first[0])
		offlineReceipt(t, l, key, out.Receipt)
		closeLedger(t, l)
		now := checkpointOf(t, dir, id)
		tree := must.Get(receipt.Open(treeOf(dir, id)))(t)
		if root, err := tree.Root(before.N); err != nil || root != before.Hash || now.N <= before.N {
			t.Errorf("%s: the root of %d leaves is %s, %v, it was %s; now %v", what, before.N, root, err, before.Hash,
				now)
		}
		if before = now; len(same) < len(file) {
			t.Errorf("%s: the receipt is %s", what, same)
		}
	}
	again("opened again")
	must.Do(t, os.RemoveAll(filepath.Join(dir, "tlog")))
	again("removed")
	for _, name := range []string{"0", "tree"} {
		path := filepath.Join(treeOf(dir, id), name)
		b := must.Get(os.ReadFile(path))(t)
		b[len(b)-2] ^= 1
		must.Do(t, os.WriteFile(path, b, 0o600))
		again("damaged " + name)
	}

	// Damage behind the end is found by a receipt.
	path := filepath.Join(treeOf(dir, id), "0")
	b := must.Get(os.ReadFile(path))(t)
	l = open(t, o)
	offlineReceipt(t, l, key, first[1])
	b[40] ^= 1 // leaf 1
	must.Do(t, os.WriteFile(path, b, 0o600))
	check.Is(t, check.Err(l.OfflineReceipt(t.Context(), machine.NewTxID(id, first[1].Index), nil)),
		ledger.ErrReceiptsFail, "of a damaged tile")
	closeLedger(t, l)
	must.Do(t, os.RemoveAll(treeOf(dir, id)))
	again("removed because of that")

	// An older copy of the ledger with the newer tree.
	must.Do(t, os.RemoveAll(filepath.Join(older, "tlog")))
	must.Do(t, os.CopyFS(filepath.Join(older, "tlog"), os.DirFS(filepath.Join(dir, "tlog"))))
	l = open(t, ledger.Options{Dir: older, Receipts: signedWith(key)})
	for i := range uint64(9) {
		out := mustWrite(t, l, appendWrite("another", i+1, []byte("history")), machine.Committed)
		err := check.Err(l.OfflineReceipt(t.Context(), machine.NewTxID(id, out.Receipt.Index), nil))
		check.Is(t, err, receipt.ErrForked, "of another history")
	}
	closeLedger(t, l)
	check.Equal(t, checkpointOf(t, older, id), before, "the newest checkpoint is %v")
}

// A tree of other blocks than the ledger's gives no receipts, even if it has as many leaves, and is signed no more once
// its end was compared.
func TestTreeOfOtherBlocks(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), receiptKey(t)
	o := ledger.Options{Dir: dir, Receipts: signedWith(key)}
	l := open(t, o)
	first := mustWrite(t, l, appendWrite("c", 1, nil), machine.Committed).Receipt
	offlineReceipt(t, l, key, first)
	closeLedger(t, l)
	other := filepath.Join(t.TempDir(), "other")
	must.Do(t, os.CopyFS(other, os.DirFS(dir)))
	for _, dir := range []string{dir, other} {
		o.Dir = dir
		l = open(t, o)
		offlineReceipt(t, l, key, mustWrite(t, l, appendWrite("c", 2, []byte(dir)), machine.Committed).Receipt)
		closeLedger(t, l)
	}
	id, before := first.LedgerID, checkpointOf(t, dir, first.LedgerID)
	must.Do(t, os.RemoveAll(treeOf(other, id)))
	must.Do(t, os.CopyFS(treeOf(other, id), os.DirFS(treeOf(dir, id))))
	l = open(t, o)
	out := mustWrite(t, l, appendWrite("c", 3, nil), machine.Committed)
	for _, r := range []machine.Receipt{out.Receipt, first} {
		check.Is(t, check.Err(l.OfflineReceipt(t.Context(), machine.NewTxID(id, r.Index), nil)), receipt.ErrForked)
	}
	closeLedger(t, l)
	check.Equal(t, checkpointOf(t, other, id), before, "the newest checkpoint is %v")

	// A tree that differs before its end gives no receipt of what it has otherwise.
	must.Do(t, os.Remove(filepath.Join(treeOf(dir, id), "checkpoint")))
	sound := must.Get(receipt.Open(treeOf(dir, id)))(t)
	forged := receipt.Empty(treeOf(dir, id))
	for i := range sound.Size() {
		leaf := machine.Hash(must.Get(sound.ReadHashes(0, i, 1))(t))
		if i == 1 {
			leaf[0] ^= 1
		}
		forged.Add(leaf)
	}
	must.Do(t, forged.Save(sound.Last()))
	o.Dir = dir
	l = open(t, o)
	offlineReceipt(t, l, key, mustWrite(t, l, appendWrite("c", 3, nil), machine.Committed).Receipt)
	check.Is(t, check.Err(l.OfflineReceipt(t.Context(), machine.NewTxID(id, first.Index), nil)), ledger.ErrReceiptsFail)
}

// A tree that cannot be written stops no write.
func TestTreeThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), receiptKey(t)
	l := open(t, ledger.Options{Dir: dir})
	closeLedger(t, l)
	must.Do(t, os.WriteFile(filepath.Join(dir, "tlog"), nil, 0o600))
	l = open(t, ledger.Options{Dir: dir, Receipts: signedWith(key)})
	for _, r := range receiptWrites(t, l) {
		err := check.Err(l.OfflineReceipt(t.Context(), machine.NewTxID(r.LedgerID, r.Index), nil))
		check.Is(t, err, ledger.ErrReceiptsFail, "without a directory")
	}
	if l.Stats().ReceiptsFailing.IsZero() {
		t.Error("the statistics do not tell")
	}
	must.Do(t, os.Remove(filepath.Join(dir, "tlog")))
	must.Await(t, func() bool {
		_, err := l.OfflineReceipt(t.Context(), machine.NewTxID(l.Head().Ledger, 2), nil)
		return err == nil && l.Stats().ReceiptsFailing.IsZero()
	})
}

// A restored ledger has a log of its own, which says what it goes on from, and gives no receipts of what is older.
func TestReceiptsOfARestoredLedger(t *testing.T) {
	t.Parallel()
	key, backup := receiptKey(t), new(bytes.Buffer)
	l := open(t, ledger.Options{Receipts: signedWith(key)})
	old := receiptWrites(t, l)
	must.Do(t, l.Flush())
	must.Do(t, check.Err(l.BackupNow(backup)))
	dir := filepath.Join(t.TempDir(), "restored")
	must.Do(t, check.Err(restore.Backup(t.Context(), bytes.NewReader(backup.Bytes()), restore.Options{Dir: dir,
		Logger: slog.New(slog.DiscardHandler)})))
	l = open(t, ledger.Options{Dir: dir, Receipts: signedWith(key)})
	out := mustWrite(t, l, appendWrite("new", 1, nil), machine.Committed)
	_, s := offlineReceipt(t, l, key, out.Receipt)
	check.Equal(t, s.Checkpoint.Origin, receipt.Origin(receiptOrigin, out.Receipt.LedgerID), "the origin is %s")
	if out.Receipt.LedgerID == old[0].LedgerID || s.Checkpoint.N != 2 {
		t.Errorf("the checkpoint of the restored ledger is %v", s.Checkpoint)
	}
	check.Is(t, check.Err(l.OfflineReceipt(t.Context(), machine.NewTxID(old[0].LedgerID, old[0].Index), nil)),
		ledger.ErrNoReceipts, "of what is older")
}

// TestReceiptsOfACluster: whichever node leads, no checkpoint contradicts another, and a receipt is to be had.
func TestReceiptsOfACluster(t *testing.T) {
	t.Parallel()
	key := receiptKey(t)
	nodes := startClusterWith(t, 3, func(dir string) ledger.Options {
		return ledger.Options{Dir: dir, Receipts: signedWith(key)}
	})
	var sizes []witness.Checkpoint
	for round := range uint64(3) {
		awaitLeader(t, nodes...)
		must.Do(t, onLeader(t, nodes, func(leader *clusterNode) error {
			out, err := leader.Write(t.Context(), appendWrite("c", round+1, nil))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			r, err := leader.OfflineReceipt(ctx, machine.NewTxID(out.Receipt.LedgerID, out.Receipt.Index), nil)
			if err != nil { // it may lead no longer
				return fmt.Errorf("%w: %w", ledger.ErrOutcomeUnknown, err)
			}
			s, err := r.Verify(believing(t, key, out.Receipt.LedgerID))
			if err == nil {
				sizes = append(sizes, s.Checkpoint)
			}
			return err
		}))
		for _, n := range nodes {
			if leader, _ := n.Cluster().Leader(); !leader.Self {
				continue
			}
			for _, other := range nodes {
				if other != n {
					_ = n.Cluster().TransferLeadership(t.Context(), uint64(1+indexOf(nodes, other)))
					break
				}
			}
			break
		}
	}
	leader := awaitLeader(t, nodes...)
	id := leader.Head().Ledger
	for i, c := range sizes {
		must.Await(t, func() bool {
			tree, err := receipt.Open(treeOf(leader.dir, id))
			return err == nil && tree.Saved().N >= c.N
		})
		tree := must.Get(receipt.Open(treeOf(leader.dir, id)))(t)
		root := must.Get(tree.Root(c.N))(t)
		must.Equal(t, root, c.Hash, "checkpoint %d of %d blocks has another root here: %s", i, c.N)
	}
}

func indexOf(nodes []*clusterNode, n *clusterNode) int {
	for i := range nodes {
		if nodes[i] == n {
			return i
		}
	}
	return -1
}

const receiptChildEnv = "SEQLEDGER_RECEIPT_TEST_DIR"

// receiptChild writes as retainChild does, in a ledger that signs all the time and drops its history.
func receiptChild(dir string) error {
	key, err := witness.ReadKey(filepath.Join(dir, "key"), witness.LogKey)
	if err != nil {
		return err
	}
	l, err := ledger.Open(context.Background(), ledger.Options{
		Dir: filepath.Join(dir, "data"), Logger: slog.New(slog.DiscardHandler), Receipts: signedWith(key),
		CheckpointBytes: 64 << 10, LogBytes: 256 << 10,
		Config: machine.Config{EvictionInterval: 10, RetainBytes: 1 << 20},
	})
	if err != nil {
		return err
	}
	var stdout sync.Mutex
	errs := make(chan error)
	for i := range 4 {
		// The parent ends it, by SIGKILL.
		go func() { errs <- retainForEver(l, i, &stdout) }()
	}
	return <-errs
}

// A server that is killed again and again while it builds its tree, signs and drops blocks never contradicts what it
// has signed, and comes to a tree with all blocks.
func TestKillWhileReceiptsAreMade(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	random := rand.New(rand.NewPCG(must.Seed(t), 2))
	dir, key := t.TempDir(), receiptKey(t)
	must.Do(t, key.Create(filepath.Join(dir, "key")))
	data, acknowledged := filepath.Join(dir, "data"), map[[2]uint64]uint64{}
	var id machine.LedgerID
	var seen []witness.Checkpoint
	for range rounds {
		runAndKill(t, receiptChildEnv, dir, 1+random.IntN(600), acknowledged)
		ids, err := fs.ReadDir(os.DirFS(data), "tlog")
		if err != nil || len(ids) == 0 {
			continue // killed before there was one
		}
		must.Do(t, check.Err(fmt.Sscanf(ids[0].Name(), "%x", &id)))
		c := checkpointOf(t, data, id)
		if n := len(seen); n > 0 && c.N < seen[n-1].N {
			t.Errorf("the size became lower: %v, then %v", seen[n-1], c)
		}
		seen = append(seen, c)
	}
	l := open(t, ledger.Options{Dir: data, Receipts: signedWith(key)})
	out := mustWrite(t, l, appendWrite("last", 1, nil), machine.Committed)
	_, s := offlineReceipt(t, l, key, out.Receipt)
	tree := must.Get(receipt.Open(treeOf(data, id)))(t)
	for _, c := range append(seen, s.Checkpoint) {
		if c.N == 0 {
			continue
		}
		if root, err := tree.Root(c.N); err != nil || root != c.Hash {
			t.Errorf("with %d leaves the root is %s, %v; what was signed says %s", c.N, root, err, c.Hash)
		}
	}
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		check.Equal(t, uint64(tree.Size()), v.Tree().Leaves, "the tree has %d leaves")
		if v.Horizon().Index() == 0 && !testing.Short() {
			t.Error("nothing was dropped")
		}
		return nil
	}))
}
