package writer

import (
	cryptorand "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/seqledger/seqledger/internal/uuid"
)

// newKey returns a fresh UUIDv7 as text. Its 74 random bits come from the runtime's ChaCha8,
// seeded by the system, because the key must be unique among a stream's receipts, but not secret, and a
// system call for each write would cost more than the rest of Submit.
func newKey() string { return uuid.Of(rand.Uint64(), rand.Uint64()) }

// ledgerOf returns the ledger id in a tx_id, which is a UUIDv8: 48 bits, the version, 12 bits,
// the variant, 4 bits, and then 58 bits of index. It returns false if the text is not a tx_id.
func ledgerOf(txID string) (uint64, bool) {
	// Because this runs for every receipt, it does not allocate.
	var digits [32]byte
	n := 0
	for i := range len(txID) {
		if txID[i] == '-' {
			continue
		}
		if n == len(digits) {
			return 0, false
		}
		digits[n] = txID[i]
		n++
	}
	var raw [16]byte
	if size, err := hex.Decode(raw[:], digits[:n]); err != nil || size != len(raw) || raw[6]>>4 != 8 {
		return 0, false
	}
	high := binary.BigEndian.Uint64(raw[:])
	return high>>16<<16 | high&0x0fff<<4 | uint64(raw[8]>>2&0x0f), true
}

// newAttempt returns the 16 bytes that name one attempt to open a session. Because two processes with
// the same attempt would both hold the session, the bytes come from the system.
func newAttempt() []byte {
	attempt := make([]byte, 16)
	// crypto/rand.Read never fails: it ends the program instead.
	_, _ = cryptorand.Read(attempt)
	return attempt
}
