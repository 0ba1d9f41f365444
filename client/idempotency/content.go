package idempotency

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"crypto/sha256"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"slices"
	"strings"
)

// maxCodings bounds the content codings of a body that are undone.
const maxCodings = 4

var errContentTooLarge = errors.New("the content is too large")

// undoCodings returns the content of a body, at most most bytes, without its content codings, because a client may
// compress a repeat differently, or may not read them. undone is false if a coding is not known or the body is not in it; then the bytes as
// they are must be compared. The error is errContentTooLarge.
func undoCodings(codings []string, body []byte, most int64) (content []byte, undone bool, err error) {
	all := codingNames(codings)
	if len(all) > maxCodings {
		return nil, false, nil
	}
	for _, coding := range slices.Backward(all) {
		body, err = undo(coding, body, most)
		if errors.Is(err, errContentTooLarge) {
			return nil, false, err
		}
		if err != nil {
			return nil, false, nil //nolint:nilerr // The bytes are compared.
		}
	}
	return body, true, nil
}

// codingNames returns the codings of a Content-Encoding in lower case, except identity.
func codingNames(codings []string) (all []string) {
	for coding := range strings.SplitSeq(strings.ToLower(strings.Join(codings, ",")), ",") {
		if coding = strings.TrimSpace(coding); coding != "" && coding != "identity" {
			all = append(all, coding)
		}
	}
	return all
}

// undo undoes one coding.
func undo(coding string, body []byte, most int64) ([]byte, error) {
	var content io.Reader
	var err error
	switch coding {
	case "gzip", "x-gzip":
		content, err = gzip.NewReader(bytes.NewReader(body))
	case "deflate":
		// Some clients send the data without the frame of zlib.
		if content, err = zlib.NewReader(bytes.NewReader(body)); err != nil {
			content, err = flate.NewReader(bytes.NewReader(body)), nil
		}
	default:
		err = errors.ErrUnsupported
	}
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(content, most+1))
	if int64(len(plain)) > most {
		return nil, errContentTooLarge
	}
	return plain, err
}

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
