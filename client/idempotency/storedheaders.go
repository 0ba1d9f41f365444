package idempotency

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// storedHeaders are the response headers that are stored and replayed, in addition to those of [Options.StoredHeaders].
// The others belong to one delivery (Date, cookies, credentials, CORS) or to one connection.
var storedHeaders = []string{
	"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location", "Content-Range",
	"Content-Type", "Etag", "Last-Modified", "Link", "Location", "Operation-Location", "Retry-After", "Vary",
}

// neverStored are headers that belong to one delivery or one connection, and are never stored.
var neverStored = []string{
	"Set-Cookie", "Set-Cookie2", "Clear-Site-Data", "Www-Authenticate", "Proxy-Authenticate", "Authentication-Info",
	"Proxy-Authentication-Info", "Authorization", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Content-Length", "Date", "Age", "X-Request-Id", HeaderKey,
}

// ofContent are headers with a digest of the bytes of the content, which no longer hold when these have changed.
var ofContent = []string{"Content-Digest", "Content-Md5", "Digest", "Repr-Digest"}

// mayStore reports whether a response header with a name may be stored.
func mayStore(name string) bool {
	name = http.CanonicalHeaderKey(name)
	own := http.Header{name: nil}
	StripHeaders(own)
	return isToken(name) && len(own) > 0 && !slices.Contains(neverStored, name) &&
		!strings.HasPrefix(name, "Access-Control-")
}

// isToken reports whether a text can be the name of a header.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') &&
			!strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// decode undoes the content codings of a response, because a repeat may come from a client that cannot read them. A
// coding that is not known, and content that would be larger than a record, are left as they are.
func decode(header http.Header, body []byte) []byte {
	codings := header["Content-Encoding"]
	if len(body) == 0 || len(codingNames(codings)) == 0 || header.Get("Content-Range") != "" {
		return body
	}
	plain, undone, err := undoCodings(codings, body, MaxResponse)
	if !undone || err != nil {
		return body
	}
	header.Del("Content-Encoding")
	contentChanged(header)
	if header.Get("Content-Length") != "" {
		header.Set("Content-Length", strconv.Itoa(len(plain)))
	}
	if etag := header.Get("Etag"); etag != "" && !strings.HasPrefix(etag, "W/") {
		header.Set("Etag", "W/"+etag) // the strong one is of the encoded bytes
	}
	return plain
}

// contentChanged removes what no longer holds of a header when the bytes of the content have changed.
func contentChanged(header http.Header) {
	for _, name := range ofContent {
		header.Del(name)
	}
}

// acceptsCodings reports whether a client takes content with these codings: it must have named each of them, or *. One
// without an Accept-Encoding takes any (RFC 9110, section 12.5.3).
func acceptsCodings(header http.Header, codings []string) bool {
	if len(header["Accept-Encoding"]) == 0 {
		return true
	}
	for _, coding := range codingNames(codings) {
		if !acceptsCoding(header, strings.TrimPrefix(coding, "x-")) {
			return false
		}
	}
	return true
}

func acceptsCoding(header http.Header, coding string) bool {
	accepted := false
	for one := range strings.SplitSeq(strings.ToLower(strings.Join(header["Accept-Encoding"], ",")), ",") {
		name, parameters, _ := strings.Cut(one, ";")
		name = strings.TrimPrefix(strings.TrimSpace(name), "x-")
		if name != coding && name != "*" {
			continue
		}
		quality, isQuality := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q=")
		weight, err := strconv.ParseFloat(quality, 64)
		accepted = !isQuality || err == nil && weight > 0
		if name == coding {
			return accepted // it counts more than *
		}
	}
	return accepted
}
