package receipt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/ledger/witness"
)

const checkpointName = "checkpoint"

// ErrForked says that the ledger has another history than the one that was signed.
var ErrForked = errors.New("the ledger has another history than the one that its checkpoint was signed for")

// ErrCosign says that a checkpoint lacks cosignatures.
var ErrCosign = errors.New("cosignatures are missing")

// Cosign gets the cosignatures of a signed checkpoint, as [witness.Gatherer.Gather] does. With some of them missing it
// returns the others and an error.
type Cosign func(
	ctx context.Context, signed []byte, prove func(old int64) (tlog.TreeProof, error),
) (cosigned []byte, err error)

// Log signs what a tree has. It belongs to one goroutine.
type Log struct {
	tree   *Tree
	origin string
	keys   []note.Signer
	cosign Cosign

	newest  witness.Checkpoint // the zero one before the first
	signed  []byte
	missing bool // a witness did not cosign it
}

// OpenLog opens the log of a tree. Each key signs; cosign may be nil. The newest checkpoint must be signed by one of
// the keys: with a new key the old one signs, too, for as long as it is in policies.
func OpenLog(tree *Tree, origin string, keys []*witness.Key, cosign Cosign) (*Log, error) {
	l := &Log{tree: tree, origin: origin, cosign: cosign}
	var verifiers []note.Verifier
	for _, k := range keys {
		named := k.As(origin)
		l.keys, verifiers = append(l.keys, named), append(verifiers, named)
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
		l.newest, err = witness.ParseCheckpoint(n.Text)
	}
	if err == nil && l.newest.Origin != origin {
		err = fmt.Errorf("it is of %q", l.newest.Origin)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not signed by the keys of %q: with a new key give the old one, too; remove it "+
			"if that is lost: %w", path, origin, err)
	}
	l.signed, l.missing = signed, cosign != nil // whether it has all that it could have is not known
	return l, nil
}

// Newest returns the newest checkpoint, which is nil before the first.
func (l *Log) Newest() (c witness.Checkpoint, signed []byte) { return l.newest, l.signed }

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
// contradicts the newest one. An error of Cosign comes with a checkpoint that is as good otherwise.
func (l *Log) Sign(ctx context.Context) error {
	covers, err := l.Check()
	tree := l.tree.Saved()
	if err != nil || !covers || tree.N == 0 || tree.N == l.newest.N && !l.missing {
		return err
	}
	c := witness.Checkpoint{Origin: l.origin, Tree: tree}
	signed, err := note.Sign(&note.Note{Text: c.String()}, l.keys...)
	if err != nil {
		return err
	}
	var missing error
	if l.cosign != nil {
		var cosigned []byte
		cosigned, missing = l.cosign(ctx, signed, func(old int64) (tlog.TreeProof, error) {
			return l.tree.ProveTree(tree, old)
		})
		if cosigned != nil {
			signed = cosigned
		}
		if missing != nil {
			missing = fmt.Errorf("%w: %w", ErrCosign, missing)
		}
	}
	if missing != nil && tree.N == l.newest.N || bytes.Equal(signed, l.signed) {
		return missing // the next call asks again
	}
	if err := durable.WriteFile(filepath.Join(l.tree.dir, checkpointName), signed); err != nil {
		return err
	}
	l.newest, l.signed, l.missing = c, signed, missing != nil
	return missing
}
