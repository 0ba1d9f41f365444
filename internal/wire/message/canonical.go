package message

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// CanonicalLeaf returns the leaf of a transaction as ledger/FORMAT.md specifies it.
// It accepts each field only in the one form that a ledger writes. Two messages that differ for a reader therefore
// never have the same leaf.
func CanonicalLeaf(t *seqledgerv1.Transaction) ([]byte, error) {
	leaf, err := canonicalHead(t)
	if err != nil {
		return nil, err
	}
	operations, err := CanonicalOperations(t.GetOperations())
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(operations)
	return appendBytes(append(leaf, hash[:]...), t.GetChanged()), nil
}

// CanonicalOperations encodes operations without their number: the payload hash of a transaction is over it.
func CanonicalOperations(operations []*seqledgerv1.Operation) (encoded []byte, err error) {
	for i, operation := range operations {
		if encoded, err = appendOperation(encoded, operation); err != nil {
			return nil, fmt.Errorf("operations[%d] %w", i, err)
		}
	}
	return encoded, nil
}

// canonicalHead encodes a transaction up to the number of its operations.
func canonicalHead(t *seqledgerv1.Transaction) ([]byte, error) {
	id, err := canonicalUUID(t.GetTxId())
	if err != nil {
		return nil, fmt.Errorf("tx_id %w", err)
	}
	ledger, index := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	const indexBits = 58
	if ledger>>12&0xf != 8 || index>>62 != 2 || index&(1<<indexBits-1) != t.GetIndex() {
		return nil, fmt.Errorf("tx_id is not that of index %d in any ledger", t.GetIndex())
	}
	ledger = ledger>>16<<16 | ledger&0xfff<<4 | index>>indexBits&0xf
	committed, err := canonicalTime(t.GetCommittedAt())
	if err != nil {
		return nil, fmt.Errorf("committed_at %w", err)
	}
	hash, err := canonicalHex(t.GetRequestHash(), 16)
	if err != nil {
		return nil, fmt.Errorf("request_hash %w", err)
	}
	keyed := t.GetKeyed()
	const transactionVersion, transactionVersionKeyed = 1, 2
	if e := t.GetEncoding(); e != transactionVersion && e != transactionVersionKeyed {
		return nil, fmt.Errorf("encoding is %d, which is not known here", e)
	} else if (e == transactionVersionKeyed) != (keyed != nil) {
		return nil, fmt.Errorf("encoding %d does not fit keyed", e)
	}
	dst := []byte{byte(t.GetEncoding())}
	dst = binary.BigEndian.AppendUint64(dst, ledger)
	dst = binary.BigEndian.AppendUint64(dst, t.GetIndex())
	dst = binary.BigEndian.AppendUint64(dst, committed)
	dst = appendBytes(dst, t.GetScope().GetOrganization())
	dst = appendBytes(dst, t.GetScope().GetVault())
	dst = appendBytes(dst, t.GetClientId())
	dst = binary.AppendUvarint(dst, t.GetStreamCreatedIndex())
	dst = binary.AppendUvarint(dst, t.GetSession())
	dst = binary.AppendUvarint(dst, t.GetSequence())
	if t.GetIdempotencyKey() == "" {
		dst = append(dst, 0)
	} else {
		key, err := canonicalUUID(t.GetIdempotencyKey())
		if err != nil {
			return nil, fmt.Errorf("idempotency_key %w", err)
		}
		dst = append(append(dst, 1), key...)
	}
	dst = append(dst, hash...)
	dst = appendBytes(dst, t.GetActor())
	if keyed != nil {
		if len(keyed.GetKeyHash()) != sha256.Size {
			return nil, fmt.Errorf("keyed.key_hash has %d bytes, not %d", len(keyed.GetKeyHash()), sha256.Size)
		}
		dst = appendBytes(appendBytes(dst, keyed.GetNamespace()), keyed.GetPrincipal())
		dst = append(dst, keyed.GetKeyHash()...)
	}
	return binary.AppendUvarint(dst, uint64(len(t.GetOperations()))), nil
}

// errUnknownKind is also returned for an operation or a condition that is newer than this program, because it cannot be
// hashed.
var errUnknownKind = errors.New("is of no kind that is known here")

func appendOperation(dst []byte, m *seqledgerv1.Operation) ([]byte, error) {
	op, ok := ReadOperation(m)
	if !ok {
		return nil, errUnknownKind
	}
	dst = append(dst, byte(op.Kind))
	switch op.Kind {
	case SetEntity:
		dst = appendBytes(appendBytes(dst, op.Key), op.Value)
		dst, err := appendCondition(dst, op.Condition)
		if err != nil {
			return nil, err
		}
		expires, err := canonicalTime(op.ExpiresAt)
		if err != nil {
			return nil, fmt.Errorf("expires_at %w", err)
		}
		return binary.AppendUvarint(dst, expires), nil
	case DeleteEntity:
		return appendCondition(appendBytes(dst, op.Key), op.Condition)
	case CreateRelationship, DeleteRelationship:
		return appendBytes(appendBytes(appendBytes(dst, op.Key), op.Relation), op.Subject), nil
	case Append:
		return appendBytes(dst, op.Value), nil
	case ExpireEntity:
		return appendBytes(dst, op.Key), nil
	}
	return nil, errUnknownKind
}

func appendCondition(dst []byte, condition *seqledgerv1.Condition) ([]byte, error) {
	if condition == nil {
		return append(dst, 0), nil
	}
	switch c := condition.GetCondition().(type) {
	case *seqledgerv1.Condition_NotExists:
		if c.NotExists {
			return append(dst, 1), nil
		}
	case *seqledgerv1.Condition_MustExist:
		if c.MustExist {
			return append(dst, 2), nil
		}
	case *seqledgerv1.Condition_Version:
		return binary.AppendUvarint(append(dst, 3), c.Version), nil
	case *seqledgerv1.Condition_ValueEquals:
		return appendBytes(append(dst, 4), c.ValueEquals), nil
	}
	return nil, fmt.Errorf("condition %w", errUnknownKind)
}

// CanonicalHeader encodes a header as ledger/FORMAT.md specifies: these bytes are the input of its block's hash, which
// is also the previous_hash of the next header. The previous_hash and the tx_root must have the length of a hash.
func CanonicalHeader(header *seqledgerv1.BlockHeader) ([]byte, error) {
	committed, err := canonicalTime(header.GetCommittedAt())
	if err != nil {
		return nil, fmt.Errorf("committed_at %w", err)
	}
	// Leaves and nodes of a Merkle tree are hashed with the prefixes 0 and 1. A different prefix keeps a header from
	// passing for one of them.
	const headerPrefix, headerVersion = 2, 1
	encoded := []byte{headerPrefix, headerVersion}
	encoded = appendBytes(encoded, header.GetScope().GetOrganization())
	encoded = appendBytes(encoded, header.GetScope().GetVault())
	encoded = binary.AppendUvarint(encoded, header.GetHeight())
	encoded = append(encoded, header.GetPreviousHash()...)
	encoded = append(encoded, header.GetTxRoot()...)
	encoded = binary.AppendUvarint(encoded, uint64(header.GetTxCount()))
	return binary.BigEndian.AppendUint64(encoded, committed), nil
}

func appendBytes[T ~string | ~[]byte](dst []byte, b T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// canonicalTime returns Unix nanoseconds. A missing time is 0; no other time is.
func canonicalTime(at *timestamppb.Timestamp) (uint64, error) {
	if at == nil {
		return 0, nil
	}
	const second = 1_000_000_000
	seconds, nanos := at.GetSeconds(), int64(at.GetNanos())
	if nanos < 0 || nanos >= second || seconds < 0 || seconds > (math.MaxInt64-nanos)/second ||
		seconds == 0 && nanos == 0 {
		return 0, fmt.Errorf("is no time that a ledger gives (%d s, %d ns)", seconds, nanos)
	}
	return uint64(seconds*second + nanos), nil
}

// canonicalUUID parses UUID text in lower case.
func canonicalUUID(text string) ([]byte, error) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return nil, fmt.Errorf("is %q and no UUID", text)
	}
	return canonicalHex(text[:8]+text[9:13]+text[14:18]+text[19:23]+text[24:], 16)
}

// canonicalHex decodes size bytes from hex in lower case.
func canonicalHex(text string, size int) ([]byte, error) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != size || strings.ToLower(text) != text {
		return nil, fmt.Errorf("is not %d bytes in lower case hex", size)
	}
	return raw, nil
}
