// Package receipt has the transparency log of a ledger, and the receipts that are verified with it, offline.
//
// A [Tree] is the Merkle tree of RFC 6962 over the hashes of the ledger's blocks. A [Log] signs what it has as a
// checkpoint, and a [Receipt] leads from a transaction to one. Its files are not the tiles of tlog-tiles, each of which
// would have to be synced: they have the same hashes, a file for each level, and [Tree.ReadTiles] cuts tiles from them.
//
// It follows tlog-tiles@v1.0.0 and tlog-checkpoint@v1.0.0 of c2sp.org, and tlog-proof, which has no version, at commit
// 5ba5ee830903 of github.com/C2SP/C2SP.
package receipt

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/internal/private"
)

const (
	// Height is that of tiles.
	Height    = 8
	tileWidth = 1 << Height
	levels    = 64 / Height
	hashSize  = tlog.HashSize

	sizeName = "tree"
)

// ErrDamaged says that the files of a tree are not as they were written.
var ErrDamaged = errors.New("the tree of receipts is damaged")

// Tree is the tree of a ledger, in a directory: the file "0" has the data of its leaves, the file of each level above
// the roots of the full tiles below, and "tree" how much of them counts. One goroutine adds; what is saved is read by
// others meanwhile.
type Tree struct {
	dir string

	size  int64
	last  uint64                // see Last
	fresh [levels + 1][]byte    // added since the last Save
	tails [levels + 1]tileTails // of each level: the hashes of the tile that is not full
	saved tlog.Tree
}

type tileTails []tlog.Hash

// Open opens the tree in a directory, which may be empty. Where the files are not as they were written the error wraps
// ErrDamaged, and the tree is empty: what is added then replaces them.
func Open(dir string) (*Tree, error) {
	t := Empty(dir)
	if err := os.MkdirAll(dir, private.Directory); err != nil {
		return nil, err
	}
	above := filepath.Dir(dir)
	if err := errors.Join(durable.SyncDir(above), durable.SyncDir(filepath.Dir(above))); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(dir, sizeName))
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	if err := t.load(content); err != nil {
		return Empty(dir), fmt.Errorf("%w: %s: %w", ErrDamaged, dir, err)
	}
	return t, nil
}

// Empty returns a tree without leaves, which replaces the one in a directory.
func Empty(dir string) *Tree { return &Tree{dir: dir} }

// load reads the ends of the files, and compares the root.
func (t *Tree) load(content []byte) (err error) {
	if t.saved, t.last, err = parseSize(content); err != nil {
		return fmt.Errorf("%s: %w", sizeName, err)
	}
	t.size = t.saved.N
	for level := range t.tails {
		n := t.size >> (Height * level)
		tile := tlog.Tile{H: Height, L: level, N: n >> Height, W: int(n % tileWidth)}
		if tile.W == 0 {
			continue
		}
		data, err := t.readTile(tile)
		if err != nil {
			return err
		}
		for ; len(data) > 0; data = data[hashSize:] {
			t.tails[level] = append(t.tails[level], tlog.Hash(data[:hashSize]))
		}
	}
	if root, err := t.Root(t.size); err != nil || root != t.saved.Hash {
		return errors.Join(fmt.Errorf("its root is %s, it was %s", root, t.saved.Hash), err)
	}
	return nil
}

// formatSize writes the file that says how much of the others counts.
func formatSize(saved tlog.Tree, last uint64) []byte {
	text := fmt.Appendf(nil, "seqledger tree 1\n%d\n%s\n%d\n", saved.N, saved.Hash, last)
	return fmt.Appendf(text, "%x\n", sha256.Sum256(text))
}

func parseSize(content []byte) (saved tlog.Tree, last uint64, err error) {
	lines := bytes.Split(content, []byte("\n"))
	if len(lines) != 6 {
		return saved, 0, errors.New("does not have five lines")
	}
	saved.N, err = strconv.ParseInt(string(lines[1]), 10, 64)
	if err == nil {
		saved.Hash, err = tlog.ParseHash(string(lines[2]))
	}
	if err == nil {
		last, err = strconv.ParseUint(string(lines[3]), 10, 64)
	}
	if err == nil && (saved.N <= 0 || !bytes.Equal(formatSize(saved, last), content)) {
		err = errors.New("its last line is not the hash of the others")
	}
	return saved, last, err
}

// Size returns how many leaves were added, and Last the number that the last Save was told.
func (t *Tree) Size() int64 { return t.size }

// Last returns the number that the last Save was told.
func (t *Tree) Last() uint64 { return t.last }

// Saved returns the tree as of the last Save.
func (t *Tree) Saved() tlog.Tree { return t.saved }

// Unsaved returns how many leaves were added since.
func (t *Tree) Unsaved() int64 { return t.size - t.saved.N }

// Add adds a leaf.
func (t *Tree) Add(data [hashSize]byte) {
	t.fresh[0] = append(t.fresh[0], data[:]...)
	hash := leafHash(data[:])
	for level := range t.tails {
		t.tails[level] = append(t.tails[level], hash)
		if len(t.tails[level]) < tileWidth {
			break
		}
		hash = tileRoot(t.tails[level])
		t.tails[level] = t.tails[level][:0]
		t.fresh[level+1] = append(t.fresh[level+1], hash[:]...)
	}
	t.size++
}

// leafHash is tlog.RecordHash, in a third of its time.
func leafHash(data []byte) tlog.Hash {
	var b [1 + hashSize]byte
	copy(b[1:], data)
	return sha256.Sum256(b[:])
}

// tileRoot returns the root over the hashes of a full tile, which it overwrites.
func tileRoot(hashes []tlog.Hash) tlog.Hash {
	for n := len(hashes) / 2; n > 0; n /= 2 {
		for i := range n {
			hashes[i] = tlog.NodeHash(hashes[2*i], hashes[2*i+1])
		}
	}
	return hashes[0]
}

// Save makes what was added durable. last is a number to be remembered: up to which ledger index there is everything.
// After an error the tree is to be opened anew.
func (t *Tree) Save(last uint64) error {
	for level, hashes := range t.fresh {
		if len(hashes) == 0 {
			continue
		}
		if err := t.write(level, hashes, t.saved.N>>(Height*level)*hashSize); err != nil {
			return err
		}
		t.fresh[level] = hashes[:0]
	}
	if err := durable.SyncDir(t.dir); err != nil { // before the file that counts them
		return err
	}
	root, err := t.Root(t.size)
	if err != nil {
		return err
	}
	saved := tlog.Tree{N: t.size, Hash: root}
	if err := durable.WriteFile(filepath.Join(t.dir, sizeName), formatSize(saved, last)); err != nil {
		return err
	}
	t.saved, t.last = saved, last
	return nil
}

func (t *Tree) write(level int, hashes []byte, at int64) error {
	f, err := os.OpenFile(t.file(level), os.O_WRONLY|os.O_CREATE, private.File)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(hashes, at)
	return errors.Join(err, f.Sync(), f.Close())
}

func (t *Tree) file(level int) string { return filepath.Join(t.dir, strconv.Itoa(level)) }

// ReadTiles implements [tlog.TileReader].
func (t *Tree) ReadTiles(tiles []tlog.Tile) (data [][]byte, err error) {
	for _, tile := range tiles {
		b, err := t.readTile(tile)
		if err != nil {
			return nil, err
		}
		data = append(data, b)
	}
	return data, nil
}

// readTile returns the hashes of a tile.
func (t *Tree) readTile(tile tlog.Tile) ([]byte, error) {
	data, err := t.ReadHashes(tile.L, tile.N<<Height, tile.W)
	if tile.L == 0 {
		for i := 0; i < len(data); i += hashSize {
			hash := leafHash(data[i : i+hashSize])
			copy(data[i:], hash[:])
		}
	}
	return data, err
}

// ReadHashes returns n of the hashes of a level from one of them on. Those of level 0 are the data of the leaves.
func (t *Tree) ReadHashes(level int, from int64, n int) (data []byte, err error) {
	f, err := os.Open(t.file(level))
	if err != nil {
		return nil, err
	}
	data = make([]byte, n*hashSize)
	_, err = f.ReadAt(data, from*hashSize)
	return data, errors.Join(err, f.Close())
}

// Height implements [tlog.TileReader].
func (t *Tree) Height() int { return Height }

// SaveTiles implements [tlog.TileReader].
func (t *Tree) SaveTiles([]tlog.Tile, [][]byte) {}

// Root returns the root of the tree of the first leaves, as the files have it.
func (t *Tree) Root(size int64) (tlog.Hash, error) {
	return tlog.TreeHash(size, tlog.HashReaderFunc(func(indexes []int64) (hashes []tlog.Hash, err error) {
		for _, index := range indexes {
			tile := tlog.TileForIndex(Height, index)
			data, err := t.readTile(tile)
			if err != nil {
				return nil, err
			}
			hash, err := tlog.HashFromTile(tile, data, index)
			if err != nil {
				return nil, err
			}
			hashes = append(hashes, hash)
		}
		return hashes, nil
	}))
}

// ProveLeaf returns the path from a leaf to the root of a saved tree. Each hash of the files was compared with it.
func (t *Tree) ProveLeaf(tree tlog.Tree, leaf int64) (tlog.RecordProof, error) {
	return tlog.ProveRecord(tree.N, leaf, tlog.TileHashReader(tree, t))
}

// ProveTree returns the proof that a saved tree continues a smaller one.
func (t *Tree) ProveTree(tree tlog.Tree, old int64) (tlog.TreeProof, error) {
	return tlog.ProveTree(tree.N, old, tlog.TileHashReader(tree, t))
}
