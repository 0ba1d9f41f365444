package receipt

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/witness"
)

// Receipt shows that a transaction is in the history of a ledger: it leads from the transaction to the header of its
// block, and from that to a signed checkpoint. It is a file of the format tlog-proof.
type Receipt struct {
	Leaf     []byte // of the transaction, in the tree of its block
	Position uint32 // of the transaction in the block
	Path     []machine.Hash
	Header   machine.BlockHeader

	Index      int64 // of the block in the tree of the ledger
	Proof      tlog.RecordProof
	Checkpoint []byte // signed
}

const (
	firstLine    = "c2sp.org/tlog-proof@v1"
	extraVersion = 1
	maxPath      = 64 // is more than any proof has
)

// MaxBytes is more than a receipt with 64 signatures has.
const MaxBytes = 64 << 10

// Append appends the file.
func (r *Receipt) Append(dst []byte) []byte {
	extra := binary.AppendUvarint([]byte{extraVersion}, uint64(len(r.Leaf)))
	extra = binary.AppendUvarint(append(extra, r.Leaf...), uint64(r.Position))
	extra = binary.AppendUvarint(extra, uint64(len(r.Path)))
	for i := range r.Path {
		extra = append(extra, r.Path[i][:]...)
	}
	extra = append(extra, r.Header.Encode()...)
	dst = fmt.Appendf(dst, "%s\nextra %s\nindex %d\n", firstLine, base64.StdEncoding.EncodeToString(extra), r.Index)
	for _, h := range r.Proof {
		dst = fmt.Appendf(dst, "%s\n", h)
	}
	return append(append(dst, '\n'), r.Checkpoint...)
}

// Parse reads a file. Whether the receipt is true is for Verify.
func Parse(file []byte) (*Receipt, error) {
	head, checkpoint, whole := strings.Cut(string(file), "\n\n")
	lines := strings.Split(head, "\n")
	if len(file) > MaxBytes || !whole || len(lines) < 3 || lines[0] != firstLine {
		return nil, fmt.Errorf("it is no receipt: the first of its lines must be %s, and an empty one come before the "+
			"checkpoint", firstLine)
	}
	r := &Receipt{Checkpoint: []byte(checkpoint)}
	text, is := strings.CutPrefix(lines[1], "extra ")
	extra, err := base64.StdEncoding.Strict().DecodeString(text)
	if err == nil && !is {
		err = errors.New("there is none")
	}
	if err == nil {
		err = r.parseExtra(extra)
	}
	if err != nil {
		return nil, fmt.Errorf("line extra: %w", err)
	}
	if text, is = strings.CutPrefix(lines[2], "index "); is {
		r.Index, err = strconv.ParseInt(text, 10, 64)
	}
	if !is || err != nil || r.Index < 0 || strconv.FormatInt(r.Index, 10) != text || len(lines) > 3+maxPath {
		return nil, errors.New("line index: must be a decimal number, and the hashes of a proof follow")
	}
	for _, line := range lines[3:] {
		h, err := tlog.ParseHash(line)
		if err != nil || h.String() != line {
			return nil, fmt.Errorf("%q is no hash in base64", line)
		}
		r.Proof = append(r.Proof, h)
	}
	return r, nil
}

func (r *Receipt) parseExtra(b []byte) error {
	bad := errors.New("does not decode")
	number := func() (v uint64) {
		var n int
		if v, n = binary.Uvarint(b); n <= 0 || b[n-1] == 0 && n > 1 {
			b = nil
			return 1 << 63
		}
		b = b[n:]
		return v
	}
	if len(b) == 0 || b[0] != extraVersion {
		return errors.New("is of a version that is not known here")
	}
	b = b[1:]
	size := number()
	if size > uint64(len(b)) {
		return bad
	}
	r.Leaf, b = b[:size], b[size:]
	position, n := number(), uint64(0)
	if n = number(); position > 1<<32-1 || n > maxPath || n*hashSize > uint64(len(b)) {
		return bad
	}
	for r.Position = uint32(position); n > 0; n-- {
		r.Path, b = append(r.Path, machine.Hash(b[:hashSize])), b[hashSize:]
	}
	var err error
	r.Header, err = machine.DecodeHeader(b)
	return err
}

// Statement is what a receipt shows.
type Statement struct {
	machine.Leaf
	machine.BlockHeader

	Position   uint32 // in the block
	Checkpoint witness.Checkpoint
	Cosigners  []witness.Cosigner
}

// Verify hashes all of the receipt again, and returns what it shows if the policy is met.
func (r *Receipt) Verify(p *witness.Policy) (s *Statement, err error) {
	s = &Statement{BlockHeader: r.Header, Position: r.Position}
	if s.Checkpoint, s.Cosigners, err = p.Satisfied(r.Checkpoint); err != nil {
		return nil, fmt.Errorf("the checkpoint is not to be trusted: %w", err)
	}
	if s.Leaf, err = machine.DecodeLeaf(r.Leaf); err == nil {
		err = r.holds(s)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Check reports whether the receipt is true if a checkpoint is.
func (r *Receipt) Check(c witness.Checkpoint) (err error) {
	s := &Statement{Checkpoint: c}
	if s.Leaf, err = machine.DecodeLeaf(r.Leaf); err != nil {
		return err
	}
	return r.holds(s)
}

// holds follows the hashes from the transaction to the checkpoint.
func (r *Receipt) holds(s *Statement) error {
	path := make([][]byte, len(r.Path))
	for i := range path {
		path[i] = r.Path[i][:]
	}
	leaf := machine.LeafHash(r.Leaf)
	root, err := proof.RootFromInclusionProof(rfc6962.DefaultHasher, uint64(r.Position), uint64(r.Header.TxCount),
		leaf[:], path)
	block := r.Header.Hash()
	switch {
	case err != nil:
		return fmt.Errorf("the transaction is not in the block: %w", err)
	case !bytes.Equal(root, r.Header.TxRoot[:]):
		return errors.New("the transaction is not in the block")
	case s.Leaf.Scope != r.Header.Scope || s.Leaf.CommittedAt != r.Header.CommittedAt:
		return errors.New("the transaction has another scope or time than the block")
	case !strings.HasSuffix(s.Checkpoint.Origin, "/"+s.LedgerID.String()):
		return fmt.Errorf("the transaction is of the ledger %s, the checkpoint of %s", s.LedgerID, s.Checkpoint.Origin)
	}
	err = tlog.CheckRecord(r.Proof, s.Checkpoint.N, s.Checkpoint.Hash, r.Index, tlog.RecordHash(block[:]))
	if err != nil {
		return fmt.Errorf("the block is not in the history of the checkpoint: %w", err)
	}
	return nil
}

// Origin returns the origin of a ledger's checkpoints.
func Origin(name string, id machine.LedgerID) string { return name + "/" + id.String() }
