package idempotency

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"slices"
	"strings"
)

// maxCodings bounds the content codings of a body that are undone.
const maxCodings = 4

var (
	errContentTooLarge = errors.New("the content is too large")
	errContentBehind   = errors.New("bytes follow the end of the coded content")
)

// undoCodings returns the content of a body, at most most bytes, without its content codings. undone is false if the
// body is not in one of its codings. The error is errContentTooLarge or, if a coding is not known or there are too
// many, errors.ErrUnsupported.
func undoCodings(codings []string, body []byte, most int64) (content []byte, undone bool, err error) {
	all := codingNames(codings)
	if len(all) > maxCodings {
		return nil, false, errors.ErrUnsupported
	}
	for _, coding := range slices.Backward(all) {
		body, err = undo(coding, body, most)
		if errors.Is(err, errContentTooLarge) || errors.Is(err, errors.ErrUnsupported) {
			return nil, false, err
		}
		if err != nil {
			return nil, false, nil //nolint:nilerr // The body stays as it is.
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

// undo undoes one coding. Bytes after the end of the coded content are an error.
func undo(coding string, body []byte, most int64) ([]byte, error) {
	var content io.Reader
	var err error
	coded := bytes.NewReader(body) // an io.ByteReader, of which no more is read than the coded content
	switch coding {
	case "gzip", "x-gzip":
		content, err = gzip.NewReader(coded)
	case "deflate":
		// Some programs send the data without the frame of zlib.
		if content, err = zlib.NewReader(coded); err != nil {
			coded.Reset(body)
			content, err = flate.NewReader(coded), nil
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
	if err == nil && coded.Len() != 0 {
		err = errContentBehind
	}
	return plain, err
}
