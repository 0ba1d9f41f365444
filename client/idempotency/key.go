package idempotency

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/seqledger/seqledger/internal/uuid"
)

// HeaderKey is the request header that carries the idempotency key, as in draft-ietf-httpapi-idempotency-key-header.
const HeaderKey = "Idempotency-Key"

// NewAttemptID returns a random attempt id. Draw one for each Reserve, and reuse it only to retry a Reserve whose
// answer was lost.
func NewAttemptID() (id AttemptID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// NewUUID returns a random UUID of version 7 (RFC 9562). Such UUIDs sort approximately by time.
func NewUUID() string { return uuid.New() }

// nonceBytes is the length of a composed key's nonce in bytes.
const nonceBytes = 8

// NewKey returns a key for the numbered request of a client, {client_id}:{sequence}:{nonce}; the nonce is eight random
// bytes in hex. It panics if the key would be longer than 256 characters or the client id is not visible ASCII.
func NewKey(clientID string, sequence uint64) string {
	var nonce [nonceBytes]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := clientID + ":" + strconv.FormatUint(sequence, 10) + ":" + hex.EncodeToString(nonce[:])
	if clientID == "" || len(key) > MaxKey || firstOutside(clientID, '!') >= 0 {
		panic(fmt.Sprintf("idempotency: NewKey: client id %q is empty, too long or not visible ASCII", clientID))
	}
	return key
}

// ParseKey splits a key made by [NewKey] into its parts. It reads from the right, because a client id may contain
// colons.
func ParseKey(key string) (clientID string, sequence uint64, nonce string, err error) {
	rest, nonce, ok := cutLast(key)
	clientID, number, ok2 := cutLast(rest)
	if !ok || !ok2 || clientID == "" || len(key) > MaxKey || firstOutside(key, '!') >= 0 {
		return "", 0, "", fmt.Errorf("idempotency: %q is not of the form client_id:sequence:nonce", key)
	}
	if b, err := hex.DecodeString(nonce); err != nil || len(b) != nonceBytes || strings.ToLower(nonce) != nonce {
		return "", 0, "", fmt.Errorf("idempotency: %q: the nonce must be %d lower-case hex digits", key, 2*nonceBytes)
	}
	sequence, err = strconv.ParseUint(number, 10, 64)
	if err != nil || strconv.FormatUint(sequence, 10) != number {
		return "", 0, "", fmt.Errorf("idempotency: %q: %q is not a sequence", key, number)
	}
	return clientID, sequence, nonce, nil
}

// cutLast splits s at its last colon.
func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+1:], true
}

// errKeyLines is the error for a header with several keys.
var errKeyLines = errors.New("must be one line with one string")

// ParseHeader returns the key in a request header, or "" if there is none. The field is a String of Structured Field
// Values (RFC 9651), such as "8e03978e-40d5-43dd-bc93-6894a57f9324" including the quotes; parameters are ignored.
// Unless strict is set, the same key without quotes is accepted as well, and is the same key.
func ParseHeader(header http.Header, strict bool) (string, error) {
	lines := header.Values(HeaderKey)
	if len(lines) == 0 {
		return "", nil
	}
	if len(lines) > 1 {
		return "", &InvalidError{HeaderKey, errKeyLines.Error()}
	}
	line := strings.Trim(lines[0], " \t")
	key := line
	if strict || strings.HasPrefix(line, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{line})
		if err != nil {
			return "", &InvalidError{HeaderKey, "must be a string of Structured Field Values, in double quotes: " +
				err.Error()}
		}
		text, ok := item.Value.(string)
		if !ok {
			return "", &InvalidError{HeaderKey, "must be a string of Structured Field Values, in double quotes"}
		}
		key = text
	} else if strings.ContainsAny(line, `",;\`) {
		// A bare key that contains one of these is refused, because it would look like a list, a parameter or an
		// escape.
		return "", &InvalidError{HeaderKey, errKeyLines.Error() +
			`; put a key with '"', ',', ';' or '\' in double quotes`}
	}
	if key == "" || len(key) > MaxKey || firstOutside(key, '!') >= 0 {
		return "", &InvalidError{HeaderKey, fmt.Sprintf("must have 1 to %d visible ASCII characters", MaxKey)}
	}
	return key, nil
}

// headerString returns a key as a header field.
func headerString(key string) string {
	text, err := httpsfv.Marshal(httpsfv.NewItem(key))
	if err != nil {
		return "" // a key is visible ASCII
	}
	return text
}
