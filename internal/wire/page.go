package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	defaultPageSize = 100
	maxPageSize     = 1_000
	// MaxPageBytes is the maximum size of an encoded page or part. With the token and all overhead it is less than 3
	// MiB; gRPC accepts 4 MiB by default.
	MaxPageBytes  = 3<<20 - 16<<10
	maxTokenBytes = 8 << 10 // of text; the longest cursor has about 3 KiB
	tokenVersion  = 1
	digestBytes   = 8
)

// PageSize returns how many elements a page may have.
func PageSize(asked uint32) (int, error) {
	switch {
	case asked == 0:
		return defaultPageSize, nil
	case asked > maxPageSize:
		return 0, &machine.FieldError{
			Field: "page_size", Problem: fmt.Sprintf("must be at most %d, is %d", maxPageSize, asked),
		}
	}
	return int(asked), nil
}

// Query names a list and its filters. A page token has its digest, so that a token of another query is refused.
type Query [digestBytes]byte

// NewQuery returns the query of a procedure with these filters.
func NewQuery(procedure string, filters ...string) Query {
	h := sha256.New()
	for _, part := range append([]string{procedure}, filters...) {
		h.Write(binary.AppendUvarint(nil, uint64(len(part)))) // so that parts cannot run into each other
		h.Write([]byte(part))
	}
	return Query(h.Sum(nil)[:digestBytes])
}

// Token returns the text that continues the query after a cursor. It only protects against mistakes, because a forged
// token gives no access that the caller does not have.
func (q Query) Token(cursor []byte) string {
	b := append([]byte{tokenVersion}, q[:]...)
	return base64.RawURLEncoding.EncodeToString(append(b, cursor...))
}

// Cursor returns where a token continues, nil for an empty token.
func (q Query) Cursor(token string) ([]byte, error) {
	if token == "" {
		return nil, nil
	}
	if len(token) > maxTokenBytes {
		return nil, &machine.FieldError{Field: "page_token", Problem: "is too long"}
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) <= 1+digestBytes || b[0] != tokenVersion {
		return nil, &machine.FieldError{Field: "page_token", Problem: "is not one that this server gave out"}
	}
	if Query(b[1:1+digestBytes]) != q {
		return nil, &machine.FieldError{Field: "page_token", Problem: "belongs to another query"}
	}
	return b[1+digestBytes:], nil
}

// HeightToken is Token for a list that continues at a height.
func (q Query) HeightToken(height uint64) string {
	return q.Token(binary.BigEndian.AppendUint64(nil, height))
}

// Height returns the height where such a token continues, or the first height.
func (q Query) Height(token string, first uint64) (uint64, error) {
	cursor, err := q.Cursor(token)
	if err != nil || cursor == nil {
		return first, err
	}
	if len(cursor) != 8 {
		return 0, &machine.FieldError{Field: "page_token", Problem: "is not one that this server gave out"}
	}
	return binary.BigEndian.Uint64(cursor), nil
}
