package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"slices"
	"strings"
)

// canonicalMediaType returns the type and subtype in lower case, with the parameters that change the meaning, sorted.
// UTF-8 is the charset of JSON, texts and forms that name none, and the boundary of a multipart body is drawn anew for
// each request. A text that does not parse is kept unchanged.
func canonicalMediaType(text string) string {
	mediaType, parameters, err := mime.ParseMediaType(text)
	if err != nil {
		return text
	}
	if charset, ok := parameters["charset"]; ok {
		charset = strings.ToLower(charset)
		if parameters["charset"] = charset; (charset == "utf-8" || charset == "utf8") && isUTF8(mediaType) {
			delete(parameters, "charset")
		}
	}
	if strings.HasPrefix(mediaType, "multipart/") {
		delete(parameters, "boundary")
	}
	if formatted := mime.FormatMediaType(mediaType, parameters); formatted != "" {
		return formatted
	}
	return text
}

// isUTF8 reports whether content of a type is in UTF-8 unless it says otherwise.
func isUTF8(mediaType string) bool {
	return strings.HasPrefix(mediaType, "text/") || strings.HasPrefix(mediaType, "multipart/") ||
		mediaType == "application/json" || strings.HasSuffix(mediaType, "+json") ||
		mediaType == "application/x-www-form-urlencoded"
}

// The bounds of a multipart body that is compared by its parts; a larger one is compared by its bytes.
const (
	maxParts     = 10_000
	maxPartDepth = 4
)

// contentDigest returns a digest of a body. A multipart body is compared by its parts in their order, because the
// boundary between them is drawn anew for each request. One that does not parse is compared by its bytes.
func contentDigest(mediaType string, body []byte, depth int) []byte {
	kind, parameters, err := mime.ParseMediaType(mediaType)
	if err == nil && strings.HasPrefix(kind, "multipart/") && depth < maxPartDepth {
		if digest, err := partsDigest(parameters["boundary"], body, depth); err == nil {
			return digest
		}
	}
	sum := sha256.Sum256(body)
	return sum[:]
}

// partsDigest returns a digest of the parts of a multipart body: of each its name, file name, type, further headers and
// bytes.
func partsDigest(boundary string, body []byte, depth int) ([]byte, error) {
	h := sha256.New()
	writePart(h, []byte("multipart"))
	if boundary == "" {
		return nil, errors.ErrUnsupported
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxParts {
		part, err := r.NextRawPart()
		if err == io.EOF { //nolint:errorlint // A body that is cut off has an error that wraps it.
			return h.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, err
		}
		writePart(h, []byte(canonicalPartHeader(part.Header)))
		writePart(h, contentDigest(part.Header.Get("Content-Type"), content, depth+1))
	}
	return nil, errors.ErrUnsupported
}

// canonicalPartHeader returns the header of a part with its names sorted and its media type in one spelling.
func canonicalPartHeader(header textproto.MIMEHeader) string {
	var lines []string
	for name, values := range header {
		for _, value := range values {
			switch name {
			case "Content-Type":
				value = canonicalMediaType(value)
			case "Content-Disposition":
				if kind, parameters, err := mime.ParseMediaType(value); err == nil {
					if formatted := mime.FormatMediaType(kind, parameters); formatted != "" {
						value = formatted
					}
				}
			}
			lines = append(lines, name+": "+value+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
