package machine

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// appendOperations appends the canonical encoding of the operations: what the
// request hash covers.
func appendOperations(dst []byte, ops []Operation) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ops)))
	for i := range ops {
		dst = appendOperation(dst, &ops[i])
	}
	return dst
}

func appendOperation(dst []byte, op *Operation) []byte {
	dst = append(dst, byte(op.Kind))
	switch op.Kind {
	case OpSetEntity:
		dst = appendBytes(dst, op.Key)
		dst = appendBytes(dst, op.Value)
		dst = appendCondition(dst, &op.Condition)
		dst = binary.AppendUvarint(dst, uint64(op.ExpiresAt))
	case OpDeleteEntity:
		dst = appendBytes(dst, op.Key)
		dst = appendCondition(dst, &op.Condition)
	case OpCreateRelationship, OpDeleteRelationship:
		dst = appendBytes(dst, op.Key)
		dst = appendBytes(dst, op.Relation)
		dst = appendBytes(dst, op.Subject)
	case OpAppend:
		dst = appendBytes(dst, op.Value)
	case OpExpireEntity:
		dst = appendBytes(dst, op.Key)
	}
	return dst
}

func appendCondition(dst []byte, c *Condition) []byte {
	dst = append(dst, byte(c.Kind))
	switch c.Kind {
	case ConditionVersion:
		dst = binary.AppendUvarint(dst, c.Version)
	case ConditionValueEquals:
		dst = appendBytes(dst, c.Value)
	}
	return dst
}

// decodeOperations appends the operations to ops. Their fields alias the
// decoder's input.
func decodeOperations(d *decoder, ops []Operation) []Operation {
	for range d.operationCount() {
		ops = append(ops, decodeOperation(d))
		if d.bad {
			return ops
		}
	}
	return ops
}

// decodeOperationsAt is decodeOperations that also appends the offset of each operation, counted from the end of their
// number.
func decodeOperationsAt(d *decoder, ops []Operation, offsets []uint32) ([]Operation, []uint32) {
	n := d.operationCount()
	size := len(d.rest)
	for range n {
		offset := uint32(size - len(d.rest))
		op := decodeOperation(d)
		if d.bad {
			break
		}
		ops, offsets = append(ops, op), append(offsets, offset)
	}
	return ops, offsets
}

// operationCount reads how many operations follow.
func (d *decoder) operationCount() uint64 {
	n := d.uvarint()
	if n == 0 || n > MaxOperations {
		d.fail()
		return 0
	}
	return n
}

func decodeOperation(d *decoder) Operation {
	op := Operation{Kind: OperationKind(d.octet())}
	switch op.Kind {
	case OpSetEntity:
		op.Key = d.bytes()
		op.Value = d.bytes()
		op.Condition = decodeCondition(d)
		op.ExpiresAt = int64(d.uvarint())
		if op.ExpiresAt < 0 {
			d.fail()
		}
	case OpDeleteEntity:
		op.Key = d.bytes()
		op.Condition = decodeCondition(d)
	case OpCreateRelationship, OpDeleteRelationship:
		op.Key = d.bytes()
		op.Relation = d.bytes()
		op.Subject = d.bytes()
	case OpAppend:
		op.Value = d.bytes()
	case OpExpireEntity:
		op.Key = d.bytes()
	default:
		d.fail()
	}
	return op
}

func decodeCondition(d *decoder) Condition {
	c := Condition{Kind: ConditionKind(d.octet())}
	switch c.Kind {
	case ConditionNone, ConditionNotExists, ConditionMustExist:
	case ConditionVersion:
		c.Version = d.uvarint()
	case ConditionValueEquals:
		c.Value = d.bytes()
	default:
		d.fail()
	}
	return c
}

func hashOperations(encoded []byte) RequestHash {
	return RequestHash(xxh3.Hash128(encoded).Bytes())
}

// HashOperations returns the request hash of the operations. Buffer is scratch
// space; pass what is returned to the next call.
func HashOperations(buffer []byte, ops []Operation) (hash RequestHash, scratch []byte) {
	buffer = appendOperations(buffer[:0], ops)
	return hashOperations(buffer), buffer
}
