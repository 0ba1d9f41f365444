package idempotency

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// mark sets the headers of every response to a request that has a key, or should have one.
func mark(header http.Header, r *http.Request, key string, replayed bool, expires time.Time) {
	markHeader(header, key, replayed, expires)
	if header.Get("X-Request-Id") == "" {
		header.Set("X-Request-Id", NewUUID())
	}
	if r.Header.Get("Origin") != "" {
		expose(header)
	}
}

// exposed lists the headers that scripts in browsers may read.
var exposed = []string{
	HeaderKey, HeaderReplayed, "X-" + HeaderReplayed, HeaderExpires, "X-Idempotent-Expires", HeaderBypassed,
	HeaderIgnored, "X-Request-Id", "Retry-After", "Link", "Location",
}

// expose adds these headers to the ones that the handler exposes to browsers.
func expose(header http.Header) {
	const name = "Access-Control-Expose-Headers"
	header.Set(name, strings.Join(append(slices.Clone(header[name]), exposed...), ", "))
}

// replay answers with the response of an earlier request.
func (m *middleware) replay(w http.ResponseWriter, r *http.Request, key string, record *Record) {
	response, err := decodeResponse(record.Response)
	if err != nil && isSettled(record) {
		if record.State == Rejected {
			m.Metrics.Count(EventReplayed)
			m.fail(w, r, &Error{Code: CodeNotExecuted, Record: record})
			return
		}
		response, err = settledResponse(record.Response), nil
	}
	if err != nil || !response.Kept {
		m.Metrics.Count(EventNotRetained)
		answer := &Error{Code: CodeNotRetained, Record: record, Cause: err}
		if response != nil {
			answer.Location = response.Header.Get("Location")
		}
		m.fail(w, r, answer)
		return
	}
	if !acceptsCodings(r.Header, response.Header["Content-Encoding"]) {
		m.Metrics.Count(EventNotRetained)
		m.fail(w, r, &Error{Code: CodeReplayEncoded, Record: record, Cause: fmt.Errorf(
			"it has the content coding %s: send the same request with an Accept-Encoding that has it",
			strings.Join(response.Header["Content-Encoding"], ", "))})
		return
	}
	m.Metrics.Count(EventReplayed)
	if len(m.options.FreshFields) > 0 {
		m.refresh(response)
	}
	header := w.Header()
	outer := header["Vary"] // of what serves around the middleware, such as CORS
	copyHeader(header, response.Header)
	for _, value := range outer {
		if !slices.Contains(header["Vary"], value) {
			header.Add("Vary", value)
		}
	}
	mark(header, r, key, true, record.Expires)
	status := response.Status
	if m.options.ReplayStatus != 0 && status < 300 {
		status = m.options.ReplayStatus
	}
	if status != http.StatusNoContent && status != http.StatusNotModified {
		header.Set("Content-Length", strconv.Itoa(len(response.Body)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(response.Body) // the client may be gone
}

// refresh gives the fresh fields of a JSON response new values. A body that is not JSON is left unchanged, so that an
// otherwise correct replay does not fail.
func (m *middleware) refresh(response *storedResponse) {
	if response.Header.Get("Content-Encoding") != "" || !jsontext.Value(response.Body).IsValid() {
		return
	}
	for _, pointer := range m.options.FreshFields {
		start, end, found, err := locate(response.Body, pointer)
		if err != nil || !found {
			continue
		}
		response.Body = slices.Concat(response.Body[:start], []byte(strconv.Quote(NewUUID())), response.Body[end:])
		response.Header.Del("Etag") // it belongs to the stored bytes
		contentChanged(response.Header)
	}
}

// Documentation is the page that describes every code, with an anchor for each.
const Documentation = "https://github.com/seqledger/seqledger/blob/main/docs/codes.md"

// Problem is a problem document (RFC 9457). It says why a request was not executed, or why its response is unknown, and
// what the client should do next. [Middleware] answers with problems; a component in front of it, such as a proxy with
// its own limits, can do the same.
type Problem struct {
	Status int
	Code   Code
	Action Action
	Title  string // determined by the code
	Detail string // specific to this problem; may be empty
	// RetryAfter is how long to wait before sending the request again; 0 leaves it open.
	RetryAfter time.Duration
	// Location is the Location of a response that was not kept; may be empty.
	Location string
	// DescribedBy is the URL of the documentation, in which each code is an anchor; "" means [Documentation].
	DescribedBy string
}

// Write answers a request with the problem. The response has the headers of every response to a request with a key: the
// key, if the request has a valid one, a marker that this is not a replay, and a request id.
func (p *Problem) Write(w http.ResponseWriter, r *http.Request) {
	describedBy := cmp.Or(p.DescribedBy, Documentation) + "#" + string(p.Code)
	header := w.Header()
	key, _ := ParseHeader(r.Header, false) // "" for an invalid one
	mark(header, r, key, false, time.Time{})
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")
	header.Set("Link", "<"+describedBy+`>; rel="describedby"`)
	if p.Location != "" {
		header.Set("Location", p.Location)
	}
	if p.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
	}
	body, _ := json.Marshal(struct { // strings, a number and a bool always encode
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail,omitempty"`
		Code      Code   `json:"code"`
		Retryable bool   `json:"retryable"`
		Action    Action `json:"action"`
	}{describedBy, p.Title, p.Status, p.Detail, p.Code, p.Action == SameKey, p.Action})
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}

// fail answers a request that was not executed, or whose response is unknown.
func (m *middleware) fail(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = fromStore(err)
	}
	status := codes[e.Code].status
	if e.Code == CodeKeyReused {
		status = m.options.MismatchStatus
	}
	if status >= 500 {
		m.Logger.ErrorContext(r.Context(), "a request with a key was refused", "code", string(e.Code), "error", e.Cause)
	}
	p := Problem{
		Status: status, Code: e.Code, Action: e.Action(), Title: codes[e.Code].title, Detail: e.detail(),
		RetryAfter: e.RetryAfter, Location: e.Location, DescribedBy: m.options.DescribedBy,
	}
	p.Write(w, r)
}

// maxDetail is the maximum length, in bytes, of a record's text that a problem repeats.
const maxDetail = 1 << 10

// detail returns the part of the cause that a client may see: the mistake in its request or what an operator has
// stored for it, and never anything about the store.
func (e *Error) detail() string {
	if e.Code == CodeNotExecuted && e.Record != nil && len(e.Record.Response) <= maxDetail {
		return string(e.Record.Response)
	}
	if e.Cause != nil && (e.Action() == FixRequest || e.Code == CodeReplayEncoded) {
		return e.Cause.Error()
	}
	return ""
}

// policy is the document at /.well-known/idempotency.
type policy struct {
	Header          string   `json:"header"`
	Methods         []string `json:"methods"`
	Required        bool     `json:"required"`
	Strict          bool     `json:"strict"`
	MaxKeyLength    int      `json:"max_key_length"`
	Principal       []string `json:"principal"` // what tells senders apart
	Shared          bool     `json:"shared,omitempty"`
	VisitorHeader   string   `json:"visitor_header,omitempty"`
	Fingerprint     string   `json:"fingerprint"`
	Pointers        []string `json:"pointers,omitempty"`
	RequestHeaders  []string `json:"request_headers"` // compared, as are method, path, query and body
	MaxBodyBytes    int64    `json:"max_body_bytes"`
	TTLSeconds      float64  `json:"ttl_seconds"`
	RejectedSeconds float64  `json:"rejected_ttl_seconds"`
	// How long a key stays taken after its request has ended, unless it is never forgotten.
	ForgetSeconds  float64  `json:"forget_after_seconds,omitempty"`
	NeverForget    bool     `json:"never_forget,omitempty"`
	WaitSeconds    float64  `json:"wait_seconds"`
	OnLeaseExpired string   `json:"on_lease_expired"`
	MaxStoredBytes int      `json:"max_stored_bytes"`
	MismatchStatus int      `json:"mismatch_status"`
	StoredHeaders  []string `json:"stored_headers,omitempty"` // in addition to the usual ones
	Documentation  string   `json:"documentation"`
}

var modeNames = map[FingerprintMode]string{
	FingerprintRaw: "raw", FingerprintJCS: "jcs", FingerprintPointers: "pointers", FingerprintNone: "none",
}

// Policy returns what clients must know, as JSON: the document at /.well-known/idempotency. It returns an error if the
// options are invalid for Middleware.
func (o Options) Policy() ([]byte, error) {
	o, err := o.validate()
	if err != nil {
		return nil, err
	}
	p := policy{
		Header: HeaderKey, Methods: o.Methods, Required: o.Required, Strict: o.Strict, MaxKeyLength: MaxKey,
		Principal: o.sources(), Shared: o.Shared, VisitorHeader: o.VisitorHeader,
		Fingerprint: modeNames[o.Fingerprint], Pointers: o.Pointers, MaxBodyBytes: o.MaxBody,
		RequestHeaders:  lower(slices.Concat(actingHeaders, o.compared)),
		TTLSeconds:      o.TTL.Seconds(),
		RejectedSeconds: o.RejectedTTL.Seconds(), WaitSeconds: max(0, o.Wait.Seconds()),
		OnLeaseExpired: "indeterminate",
		MaxStoredBytes: MaxResponse, MismatchStatus: o.MismatchStatus, StoredHeaders: o.StoredHeaders,
		Documentation: o.DescribedBy,
	}
	if p.NeverForget = o.ForgetAfter == Never; !p.NeverForget {
		p.ForgetSeconds = max(o.TTL, o.ForgetAfter).Seconds()
	}
	if o.OnLeaseExpired == TakeOver {
		p.OnLeaseExpired = "takeover"
	}
	return json.Marshal(p)
}

// sources returns what tells the senders of requests apart: the credential and the names of headers.
func (o *Options) sources() []string {
	sources := []string{}
	switch {
	case o.Principal != nil:
		sources = append(sources, "principal")
	case o.who.credential != "":
		sources = append(sources, o.who.credential)
	}
	return append(sources, lower(o.who.headers)...)
}

func lower(names []string) []string {
	lowered := make([]string, len(names))
	for i, name := range names {
		lowered[i] = strings.ToLower(name)
	}
	return lowered
}

// servePolicy answers with the policy.
func (m *middleware) servePolicy(w http.ResponseWriter, r *http.Request) {
	body, _ := m.options.Policy() // Middleware has validated them, and strings and numbers always encode
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		_, _ = w.Write(append(body, '\n'))
	}
}
