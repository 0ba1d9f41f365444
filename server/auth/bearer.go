package auth

import (
	"net/http"
	"strings"
)

// maxBearerBytes is room for a token with many claims.
const maxBearerBytes = 8 << 10

// RefusedError reports that a request has no valid credential.
type RefusedError struct {
	// Reason is one of a few words, for counting.
	Reason string
	// Problem is the message for the caller. It never contains a part of what the caller sent.
	Problem string
	// Cause has details, such as which claim is wrong, or is nil. It is for the operator and not sent to the caller.
	Cause error
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Problem }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Cause }

func refused(reason, problem string) *RefusedError {
	return &RefusedError{Reason: reason, Problem: problem}
}

// Missing reports whether there was no credential at all, rather than a bad one.
func (e *RefusedError) Missing() bool { return e.Reason == "missing" }

// bearerOf returns the one bearer credential of a request. Two headers are refused, because a proxy might have looked
// at the other one.
func bearerOf(h http.Header) (string, error) {
	values := h["Authorization"]
	switch len(values) {
	case 0:
		return "", refused("missing", "this server needs a credential: Authorization: Bearer and an API key or "+
			"session token")
	case 1:
		return parseBearer(values[0])
	}
	return "", refused("malformed", "there is more than one Authorization header")
}

// parseBearer follows RFC 6750.
func parseBearer(value string) (string, error) {
	scheme, text, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", refused("malformed", "the Authorization header must be Bearer and a credential")
	}
	text = strings.TrimLeft(text, " ")
	if len(text) == 0 || len(text) > maxBearerBytes {
		return "", refused("malformed", "the credential must have 1 to 8192 bytes")
	}
	for i := range len(text) {
		c := text[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("-._~+/=", c) >= 0
		if !ok {
			return "", refused("malformed", "the credential has a character that no credential has")
		}
	}
	return text, nil
}
