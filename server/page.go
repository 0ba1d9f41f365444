package server

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
	// maxPageBytes is how many bytes a page or a part has, encoded: with the token and
	// all that is around it less than 3 MiB, of which gRPC takes 4 by default.
	maxPageBytes  = 3<<20 - 16<<10
	maxTokenBytes = 8 << 10 // of text; the longest cursor has about 3 KiB
	tokenVersion  = 1
	digestBytes   = 8
)

// pageSize returns how many elements a page may have.
func pageSize(asked uint32) (int, error) {
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

// query names a list and its filters. A page token bears its digest, so that a
// token of another query is refused instead of answering something odd.
type query [digestBytes]byte

func newQuery(procedure string, filters ...string) query {
	h := sha256.New()
	for _, part := range append([]string{procedure}, filters...) {
		h.Write(binary.AppendUvarint(nil, uint64(len(part)))) // so that parts cannot shift
		h.Write([]byte(part))
	}
	return query(h.Sum(nil)[:digestBytes])
}

// token returns the text that continues the query after a cursor. It protects
// against mistakes only: one that is made up leads to nothing that the caller may not
// see.
func (q query) token(cursor []byte) string {
	b := append([]byte{tokenVersion}, q[:]...)
	return base64.RawURLEncoding.EncodeToString(append(b, cursor...))
}

// cursor returns where a token says to go on, nil for an empty token.
func (q query) cursor(token string) ([]byte, error) {
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
	if query(b[1:1+digestBytes]) != q {
		return nil, &machine.FieldError{Field: "page_token", Problem: "belongs to another query"}
	}
	return b[1+digestBytes:], nil
}

// heightToken is token for a list that goes on at a height.
func (q query) heightToken(height uint64) string {
	return q.token(binary.BigEndian.AppendUint64(nil, height))
}

// heightOf returns where such a token says to go on, or the height to begin with.
func (q query) heightOf(token string, first uint64) (uint64, error) {
	cursor, err := q.cursor(token)
	if err != nil || cursor == nil {
		return first, err
	}
	if len(cursor) != 8 {
		return 0, &machine.FieldError{Field: "page_token", Problem: "is not one that this server gave out"}
	}
	return binary.BigEndian.Uint64(cursor), nil
}
