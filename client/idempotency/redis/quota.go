package redis

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
)

// overQuota is the answer of swap.lua for a key beyond the quota.
const overQuota = -1

// openOf returns the name of the sorted set of a principal's open keys. Its members are the names of records, and their
// scores the times, in ms, at which the records expire.
func (b *backend) openOf(d *describe.Description) string {
	h := sha256.New()
	for _, part := range []string{d.Organization, d.Vault, d.Principal} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return b.open + hex.EncodeToString(h.Sum(nil))
}

// openState tells swap.lua whether a record counts.
func openState(record []byte) string {
	const stateAt = 1 // as internal/keyed encodes it
	if len(record) > stateAt {
		switch idempotency.State(record[stateAt]) {
		case idempotency.Pending:
			return "pending"
		case idempotency.Indeterminate:
			return "unknown"
		}
	}
	return ""
}
