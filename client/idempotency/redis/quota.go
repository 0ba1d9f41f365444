package redis

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
	"github.com/seqledger/seqledger/internal/keyed"
)

// overQuota is the answer of swap.lua for a key beyond the quota.
const overQuota = -1

// openOf returns the name of the sorted set of a principal's open keys. Its members are the names of records, and their
// scores the times, in ms, until which they are open.
func (b *backend) openOf(d *describe.Description) string {
	h := sha256.New()
	for _, part := range []string{d.Organization, d.Vault, d.Principal} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return b.open + hex.EncodeToString(h.Sum(nil))
}

// openState tells swap.lua whether a record counts, and until when, in ms: one that is remembered stays for longer.
func openState(record []byte) (state string, until int64) {
	r, err := keyed.Decode(record)
	if err != nil { // the counter of tokens
		return "", 0
	}
	switch until = r.OpenUntil()/int64(time.Millisecond) + 1; r.State {
	case keyed.Pending:
		state = "pending"
	case keyed.Indeterminate:
		state = "unknown"
	}
	return state, until
}
