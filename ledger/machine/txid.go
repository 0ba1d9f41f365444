package machine

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// TxID names a transaction: a UUIDv8 (RFC 9562) of the ledger id and the
// ledger index. 122 bits are free in it: 64 for the id and 58 for the index,
// which at a million commands a second last for nine thousand years.
type TxID [16]byte

// NewTxID returns the id of the transaction that took the index.
func NewTxID(id LedgerID, index uint64) TxID {
	var t TxID
	ledger := uint64(id)
	binary.BigEndian.PutUint64(t[:8], ledger>>16<<16|0x8000|ledger>>4&0xfff)
	binary.BigEndian.PutUint64(t[8:], 1<<63|ledger&0xf<<58|index&maxLedgerIndex)
	return t
}

// Parts returns what the id was made of.
func (t TxID) Parts() (LedgerID, uint64) {
	high, low := binary.BigEndian.Uint64(t[:8]), binary.BigEndian.Uint64(t[8:])
	ledger := high>>16<<16 | high&0xfff<<4 | low>>58&0xf
	return LedgerID(ledger), low & maxLedgerIndex
}

// String returns the id as UUID text.
func (t TxID) String() string { return FormatUUID(t) }

// ParseTxID reads a transaction id. The error is a *FieldError.
func ParseTxID(text string) (TxID, error) {
	u, err := ParseUUID(text)
	if err != nil {
		return TxID{}, &FieldError{"tx_id", err.Error()}
	}
	t := TxID(u)
	if t[6]>>4 != 8 || t[8]>>6 != 2 {
		return TxID{}, &FieldError{"tx_id", "is not a transaction id (UUID version 8)"}
	}
	return t, nil
}

// FormatUUID returns the canonical text of a UUID: 36 characters, lower case.
func FormatUUID(u [16]byte) string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	hex.Encode(b[9:13], u[4:6])
	hex.Encode(b[14:18], u[6:8])
	hex.Encode(b[19:23], u[8:10])
	hex.Encode(b[24:36], u[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// ParseUUID reads UUID text of the form 8-4-4-4-12, in either case.
func ParseUUID(text string) (u [16]byte, err error) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return u, errNoUUID(text)
	}
	for i, at := range uuidDigits {
		high, low := nibble(text[at]), nibble(text[at+1])
		if high > 15 || low > 15 {
			return [16]byte{}, errNoUUID(text)
		}
		u[i] = high<<4 | low
	}
	return u, nil
}

// uuidDigits is where the two digits of each byte stand.
var uuidDigits = [16]uint8{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

func errNoUUID(text string) error {
	return fmt.Errorf("%q is not a UUID of the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", clip(text))
}

func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}

// clip shortens a text for an error message, which must not repeat a huge
// input.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
