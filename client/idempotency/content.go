package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/textproto"
	"slices"
	"strings"
)

// canonicalMediaType returns the type and subtype in lower case, with the parameters that change the meaning, sorted.
// UTF-8 is the charset of JSON, texts and forms that name none, and the boundary of a multipart body is drawn anew for
// each request. A text that does not parse is kept unchanged, and so is one with extended parameters.
func canonicalMediaType(text string) string {
	mediaType, parameters, err := parseMediaType(text)
	if err != nil {
		return text
	}
	if isExtended(text) {
		return keepExtended(withoutBoundary(text))
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

// parseMediaType is [mime.ParseMediaType] that also takes a boundary without the quotes that it needs, as some programs
// send it. A boundary in an extended form is an error.
func parseMediaType(text string) (mediaType string, parameters map[string]string, err error) {
	mediaType, parameters, err = mime.ParseMediaType(text)
	if !isMultipart(text) {
		return mediaType, parameters, err
	}
	parts := splitQuoted(text, ';') // the first is not a parameter
	for i, part := range parts[1:] {
		name := parameterName(part)
		if strings.HasPrefix(name, "boundary*") {
			return "", nil, errors.ErrUnsupported
		}
		if _, value, _ := strings.Cut(part, "="); name == "boundary" && !strings.ContainsAny(value, `"\`) {
			parts[i+1] = `boundary="` + strings.TrimSpace(value) + `"`
		}
	}
	if err != nil {
		return mime.ParseMediaType(strings.Join(parts, ";"))
	}
	return mediaType, parameters, nil
}

func isMultipart(mediaType string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(mediaType)), "multipart/")
}

// splitQuoted splits a text at a separator, except where it is in quotes.
func splitQuoted(text string, separator byte) (parts []string) {
	start, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == separator && !quoted:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}

func parameterName(parameter string) string {
	name, _, _ := strings.Cut(parameter, "=")
	return strings.ToLower(strings.TrimSpace(name))
}

// isExtended reports whether a media type or a disposition has a parameter in an extended form of RFC 2231 or RFC 8187,
// such as name* or name*0. Programs differ in which forms they read, and which one they prefer.
func isExtended(text string) bool {
	return slices.ContainsFunc(splitQuoted(text, ';')[1:], func(parameter string) bool {
		return strings.Contains(parameterName(parameter), "*")
	})
}

// keepExtended returns a text with extended parameters such that it equals no text that [mime.FormatMediaType] writes.
func keepExtended(text string) string { return " " + text }

// withoutBoundary removes the boundary of a multipart type from a text and keeps the rest unchanged.
func withoutBoundary(text string) string {
	if !isMultipart(text) {
		return text
	}
	return strings.Join(slices.DeleteFunc(splitQuoted(text, ';'), func(parameter string) bool {
		return parameterName(parameter) == "boundary"
	}), ";")
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
	kind, parameters, err := parseMediaType(mediaType)
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

// canonicalPartHeader returns the header of a part with its names sorted and its media type and disposition in one
// spelling. Lines of one name keep their order.
func canonicalPartHeader(header textproto.MIMEHeader) string {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			switch name {
			case "Content-Type":
				value = canonicalMediaType(value)
			case "Content-Disposition":
				value = canonicalDisposition(value)
			}
			lines.WriteString(name + ": " + value + "\n")
		}
	}
	return lines.String()
}

// canonicalDisposition returns a disposition with its parameters sorted. A text that does not parse is kept unchanged,
// and so is one with extended parameters.
func canonicalDisposition(text string) string {
	kind, parameters, err := mime.ParseMediaType(text)
	if err != nil {
		return text
	}
	if isExtended(text) {
		return keepExtended(text)
	}
	if formatted := mime.FormatMediaType(kind, parameters); formatted != "" {
		return formatted
	}
	return text
}
