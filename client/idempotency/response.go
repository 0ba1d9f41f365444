package idempotency

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// storedResponse is an HTTP response in a record.
type storedResponse struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
	// Raw has the headers with values that are not UTF-8, which JSON strings cannot carry, instead of Header. It is
	// used only in the stored form.
	Raw map[string][][]byte `json:"raw,omitempty"`
	// Kept is false if the body was too large, a stream, or cut off.
	Kept bool   `json:"kept"`
	Body []byte `json:"-"`

	cut bool // it was cut off; see recorder.isCutOff
}

// responseVersion begins every stored response.
const responseVersion = 1

var errStoredResponse = errors.New("the stored result is not an HTTP response of this middleware")

// newStoredResponse returns a response with the headers that are stored; more are those of a route.
func newStoredResponse(status int, header http.Header, more []string) *storedResponse {
	r := &storedResponse{Status: status, Header: http.Header{}}
	for _, name := range slices.Concat(storedHeaders, more) {
		name = http.CanonicalHeaderKey(name)
		if values := header[name]; len(values) > 0 {
			r.Header[name] = slices.Clone(values)
		}
	}
	return r
}

// forget drops everything but the status and the Location.
func (r *storedResponse) forget() {
	r.Kept, r.Body = false, nil
	location := r.Header.Values("Location")
	if r.Header = nil; len(location) > 0 {
		r.Header = http.Header{"Location": location}
	}
}

// head returns the response with the headers that are not UTF-8 in Raw.
func (r *storedResponse) head() *storedResponse {
	head := &storedResponse{Status: r.Status, Header: http.Header{}, Raw: map[string][][]byte{}, Kept: r.Kept}
	for name, values := range r.Header {
		if !slices.ContainsFunc(values, func(value string) bool { return !utf8.ValidString(value) }) {
			head.Header[name] = values
			continue
		}
		for _, value := range values {
			head.Raw[name] = append(head.Raw[name], []byte(value))
		}
	}
	return head
}

// encode returns the stored form of the response: u8 1, the length of the head as a varint, the head as JSON, the body.
// A body that does not fit into a record is left out, and with it all headers but the Location.
func (r *storedResponse) encode() []byte {
	for {
		head, err := json.Marshal(r.head())
		if err != nil {
			head = nil // strings and numbers always encode
		}
		encoded := binary.AppendUvarint([]byte{responseVersion}, uint64(len(head)))
		encoded = append(encoded, head...)
		if r.Kept {
			encoded = append(encoded, r.Body...)
		}
		switch {
		case len(encoded) <= MaxResponse:
			return encoded
		case r.Kept:
			r.Kept, r.Body = false, nil
		default:
			location := r.Header.Get("Location")
			r.Header = nil
			if len(location) < MaxResponse/2 && location != "" {
				r.Header = http.Header{"Location": {location}}
			}
		}
	}
}

// decodeResponse reads a stored response. Its body aliases b.
func decodeResponse(b []byte) (*storedResponse, error) {
	if len(b) == 0 || b[0] != responseVersion {
		return nil, errStoredResponse
	}
	length, n := binary.Uvarint(b[1:])
	if n <= 0 || length > uint64(len(b)-1-n) {
		return nil, errStoredResponse
	}
	head, body := b[1+n:1+n+int(length)], b[1+n+int(length):]
	r := new(storedResponse)
	if err := json.Unmarshal(head, r); err != nil {
		return nil, errStoredResponse
	}
	// net/http sends every status of three digits.
	if r.Status < 200 || r.Status > 999 || !r.Kept && len(body) > 0 {
		return nil, errStoredResponse
	}
	for name, values := range r.Raw {
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header[name] = make([]string, len(values))
		for i, value := range values {
			r.Header[name][i] = string(value)
		}
	}
	r.Raw, r.Body = nil, body
	return r, nil
}

// recorder is the ResponseWriter of a keyed request. It holds the response back until its result is stored, so that a
// client that has seen a response can rely on its replay. A response that the handler flushes, or that is too large for
// a record, is delivered as it is written. A body that is too large, or a stream of events, is not kept.
type recorder struct {
	w      http.ResponseWriter
	header http.Header // set by the handler
	sent   http.Header // header at WriteHeader, as net/http takes it: later changes are trailers, or nothing
	// before runs once, before the header is sent.
	before func(header http.Header)

	status    int    // 0 until the handler has decided it
	body      []byte // at most MaxResponse
	written   int64  // bytes of the body, kept or not
	lost      bool   // the body is no longer complete
	streaming bool   // delivered as it is written
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	switch {
	case r.status != 0:
		return
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		// An informational response is delivered at once and never stored.
		r.apply(r.header)
		r.w.WriteHeader(status)
		return
	}
	r.status, r.sent = status, r.header.Clone()
}

// Write implements http.ResponseWriter. A client that has disconnected does not stop the work.
func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.written += int64(len(b))
	if !r.lost && len(r.body)+len(b) > MaxResponse {
		r.stream()
		r.lost, r.body = true, nil
	}
	if !r.lost {
		r.body = append(r.body, b...)
	}
	if r.streaming {
		_, _ = r.w.Write(b)
	}
	return len(b), nil
}

// Flush implements http.Flusher. It delivers what was held back, because the client of a stream waits for it.
func (r *recorder) Flush() {
	r.WriteHeader(http.StatusOK)
	events := strings.HasPrefix(r.sent.Get("Content-Type"), "text/event-stream")
	if !events && len(codingNames(r.sent["Content-Encoding"])) > 0 {
		return // held back until it can be decoded as a whole: the client may not be able to read it
	}
	r.stream()
	if events {
		r.lost, r.body = true, nil
	}
	_ = http.NewResponseController(r.w).Flush()
}

// stream delivers what was held back, and everything later as it is written.
func (r *recorder) stream() {
	if r.streaming {
		return
	}
	r.streaming = true
	r.send()
	_, _ = r.w.Write(r.body)
}

// send sends the header.
func (r *recorder) send() {
	r.sniff()
	r.before(r.sent)
	r.apply(r.sent)
	r.w.WriteHeader(r.status)
}

// apply makes header that of the connection.
func (r *recorder) apply(header http.Header) {
	clear(r.w.Header())
	copyHeader(r.w.Header(), header)
}

// trailers gives the server the trailers, which the handler may set until it returns.
func (r *recorder) trailers() {
	for _, names := range r.sent["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values, ok := r.header[name]; ok {
				r.w.Header()[name] = values
			}
		}
	}
	for name, values := range r.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			r.w.Header()[name] = values
		}
	}
}

// sniff sets the content type of a response that has none, as net/http would, so that a replay has the same type.
func (r *recorder) sniff() {
	if len(r.body) > 0 && r.sent.Get("Content-Type") == "" && r.sent.Get("Content-Encoding") == "" {
		r.sent.Set("Content-Type", http.DetectContentType(r.body))
	}
}

// deliver sends what was held back, and leaves trailers to the server.
func (r *recorder) deliver() {
	defer r.trailers()
	if r.streaming {
		return
	}
	if len(r.body) > 0 && r.sent.Get("Content-Length") == "" && r.sent.Get("Trailer") == "" {
		r.sent.Set("Content-Length", strconv.Itoa(len(r.body)))
	}
	r.send()
	_, _ = r.w.Write(r.body)
}

// isCutOff reports whether the handler has written less, or more, than the Content-Length that it has declared, as one
// does whose source breaks in the middle. To a client such a response is broken: net/http closes the connection.
func (r *recorder) isCutOff() bool {
	if r.status < 200 || r.status == http.StatusNoContent || r.status == http.StatusNotModified {
		return false // no body; the length that a 304 declares is that of another response
	}
	length, err := strconv.ParseInt(r.sent.Get("Content-Length"), 10, 64)
	return err == nil && length >= 0 && length != r.written // net/http ignores one that is no length
}

// stored returns the response in its stored form, with the additional headers of a route. The response to this
// request becomes the same, unless some of it is delivered already.
func (r *recorder) stored(more []string) *storedResponse {
	r.sniff()
	cut := r.isCutOff()
	header, body := r.sent.Clone(), r.body
	if !r.lost && !cut {
		body = decode(header, body)
	}
	s := newStoredResponse(r.status, header, more)
	if s.cut = cut; !r.lost && !cut {
		s.Kept, s.Body = true, body
	}
	if !r.streaming && !cut {
		r.sent, r.body = header, body
	}
	return s
}

// marker is a ResponseWriter that changes the header just before it is sent, when the handler has finished setting
// headers.
type marker struct {
	http.ResponseWriter

	before func(header http.Header)
	marked bool
}

func (m *marker) mark() {
	if !m.marked {
		m.marked = true
		m.before(m.Header())
	}
}

// WriteHeader implements http.ResponseWriter.
func (m *marker) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		m.mark()
	}
	m.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (m *marker) Write(b []byte) (int, error) {
	m.mark()
	return m.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (m *marker) FlushError() error {
	m.mark()
	return http.NewResponseController(m.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (m *marker) Flush() { _ = m.FlushError() }

// Unwrap is for http.ResponseController.
func (m *marker) Unwrap() http.ResponseWriter { return m.ResponseWriter }

func copyHeader(to, from http.Header) {
	for name, values := range from {
		to[name] = values
	}
}
