package receipt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/ledger/witness"
)

// The names of the files of the newest checkpoint, and of the newest one that met the quorum.
const (
	checkpointName = "checkpoint"
	cosignedName   = "cosigned"
)

// ErrForked says that the ledger has another history than the one that was signed.
var ErrForked = errors.New("the ledger has another history than the one that its checkpoint was signed for")

// Signed is a checkpoint and the note that says it, with its signatures.
type Signed struct {
	witness.Checkpoint

	Note []byte // nil for none
}

// Log signs what a tree has. It belongs to one goroutine.
type Log struct {
	tree   *Tree
	origin string
	keys   []note.Signer
	policy *witness.Policy // nil for no witnesses

	newest, cosigned Signed
}

// OpenLog opens the log of a tree. Each key signs; policy may be nil. The newest checkpoint must be signed by one of
// the keys: with a new key the old one signs, too, for as long as it is in policies.
func OpenLog(tree *Tree, origin string, keys []*witness.Key, policy *witness.Policy) (*Log, error) {
	l := &Log{tree: tree, origin: origin, policy: policy}
	var verifiers []note.Verifier
	for _, k := range keys {
		named := k.As(origin)
		l.keys, verifiers = append(l.keys, named), append(verifiers, named)
	}
	if policy != nil {
		// One that is damaged, or that does not meet the policy of this start, is replaced with the next.
		if signed, err := os.ReadFile(filepath.Join(tree.dir, cosignedName)); err == nil {
			if c, _, err := policy.Satisfied(signed); err == nil && c.Origin == origin {
				l.cosigned = Signed{c, signed}
			}
		}
	}
	path := filepath.Join(tree.dir, checkpointName)
	signed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	var n *note.Note
	if err == nil {
		n, err = note.Open(signed, note.VerifierList(verifiers...))
	}
	if err == nil {
		l.newest.Checkpoint, err = witness.ParseCheckpoint(n.Text)
	}
	if err == nil && l.newest.Origin != origin {
		err = fmt.Errorf("it is of %q", l.newest.Origin)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not signed by the keys of %q: with a new key give the old one, too; remove it "+
			"if that is lost: %w", path, origin, err)
	}
	l.newest.Note = signed
	return l, nil
}

// Newest returns the newest checkpoint.
func (l *Log) Newest() Signed { return l.newest }

// Cosigned returns the newest checkpoint that the witnesses of the quorum have cosigned. There may be an older one than
// the newest, and none without a policy.
func (l *Log) Cosigned() Signed { return l.cosigned }

// Check reports whether the tree has all of the newest checkpoint. It does not while it is being built again. If it has
// something else there the error is ErrForked.
func (l *Log) Check() (covers bool, err error) {
	if l.newest.N > l.tree.Saved().N {
		return false, nil
	}
	if l.newest.N == 0 {
		return true, nil
	}
	root, err := l.tree.Root(l.newest.N)
	if err == nil && root != l.newest.Hash {
		err = fmt.Errorf("%w: with %d blocks its root is %s and not %s", ErrForked, l.newest.N, root, l.newest.Hash)
	}
	return err == nil, err
}

// Sign signs what the tree has saved, unless the newest checkpoint has all of it already. It signs nothing that
// contradicts the newest one.
func (l *Log) Sign() error {
	covers, err := l.Check()
	tree := l.tree.Saved()
	if err != nil || !covers || tree.N == l.newest.N {
		return err
	}
	c := witness.Checkpoint{Origin: l.origin, Tree: tree}
	signed, err := note.Sign(&note.Note{Text: c.String()}, l.keys...)
	if err == nil {
		err = l.store(checkpointName, &l.newest, Signed{c, signed})
	}
	return err
}

// Keep stores a checkpoint that Sign has made with the cosignatures that were gathered since, and returns the witnesses
// that have cosigned it. With an error that says that the quorum is missing, or that it could not be stored, the
// checkpoint is as good otherwise.
func (l *Log) Keep(s Signed) (by []witness.Cosigner, err error) {
	_, by, err = l.policy.Satisfied(s.Note)
	if err == nil && s.N >= l.cosigned.N {
		err = l.store(cosignedName, &l.cosigned, s)
	}
	if s.N == l.newest.N {
		err = errors.Join(err, l.store(checkpointName, &l.newest, s))
	}
	return by, err
}

func (l *Log) store(name string, old *Signed, s Signed) error {
	if bytes.Equal(old.Note, s.Note) {
		return nil
	}
	err := durable.WriteFile(filepath.Join(l.tree.dir, name), s.Note)
	if err == nil {
		*old = s
	}
	return err
}
