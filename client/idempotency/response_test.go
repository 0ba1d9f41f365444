package idempotency_test

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
)

// A response that is not as long as its handler has declared is never replayed as a whole one.
func TestMiddlewareContentLength(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status   int
		declared string
		written  int
		flush    bool
		whole    bool
	}{
		"as declared":         {200, "50", 50, false, true},
		"as declared, 404":    {404, "50", 50, false, true},
		"nothing, declared":   {201, "0", 0, false, true},
		"not declared":        {200, "", 50, false, true},
		"no number":           {200, "many", 50, false, true},
		"204":                 {204, "", 0, false, true},
		"204, with a length":  {204, "50", 0, false, true},
		"304, with a length":  {304, "50", 0, false, true},
		"flushed":             {200, "50", 50, true, true},
		"too short":           {200, "100", 50, false, false},
		"too short, 404":      {404, "100", 50, false, false},
		"nothing":             {200, "100", 0, false, false},
		"too long":            {200, "5", 10, false, false},
		"too short, flushed":  {200, "100", 50, true, false},
		"too large, and long": {200, "5", 2 << 20, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
				if test.declared != "" {
					w.Header().Set("Content-Length", test.declared)
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, strings.Repeat("x", test.written/2))
				if test.flush {
					_ = http.NewResponseController(w).Flush()
				}
				_, _ = io.WriteString(w, strings.Repeat("x", test.written-test.written/2))
			}
			s.expect(s.send(), test.status, "false", 1)
			answer := s.send()
			if !test.whole {
				s.refused(answer, http.StatusConflict, idempotency.CodeOutcomeUnknown, idempotency.Reconcile, 1)
				return
			}
			check.Equal(t, len(s.expect(answer, test.status, "true", 1)), test.written, "%d bytes are replayed")
		})
	}
}

// The bytes of a header survive, UTF-8 or not. Headers that are UTF-8 are stored as before, in bytes that programs of
// before read.
func TestMiddlewareHeaderBytes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]http.Header{
		"UTF-8":        {"Content-Disposition": {`attachment; filename="café.pdf"`}, "Location": {"/a?b=1&c=<2>"}},
		"Latin-1":      {"Content-Disposition": {"attachment; filename=\"caf\xe9.pdf\""}, "Location": {"/a"}},
		"several":      {"Link": {"</a>", "</caf\xe9>", "</é>"}},
		"none":         {},
		"only Latin-1": {"Location": {"/\xe9\xff"}},
	} {
		s := newService(t)
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
			maps.Copy(w.Header(), want)
			w.WriteHeader(http.StatusCreated)
		}
		for _, replayed := range []string{"false", "true"} {
			answer := s.send()
			s.expect(answer, http.StatusCreated, replayed, 1)
			for _, field := range []string{"Content-Disposition", "Location", "Link"} {
				check.EqualSlices(t, answer.Header[field], want[field], "%s, replayed %s: %s is %q", name, replayed,
					field)
			}
		}
	}
	head := `{"status":201,"header":{"Location":["/café"]},"kept":true}`
	before := "\x01" + string(rune(len(head))) + head + "body"
	if now := idempotency.EncodeStored(201, http.Header{"Location": {"/café"}}, []byte("body")); string(now) != before {
		t.Errorf("stored as %q, before as %q", now, before)
	}
	if again, kept, err := idempotency.DecodeStored([]byte(before)); err != nil || !kept || string(again) != before {
		t.Errorf("%q, %v, %v", again, kept, err)
	}
}

// A part of a document says in the replay, too, which part it is: without Content-Range a client takes it for another.
func TestMiddlewareRange(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
		r.Method = http.MethodGet // http.ServeContent has ranges for no other
		http.ServeContent(w, r, "x.txt", time.Unix(1e9, 0), strings.NewReader("0123456789"))
	}
	for _, replayed := range []string{"false", "true"} {
		answer := s.send(header("Range", "bytes=2-3"))
		if text := s.expect(answer, http.StatusPartialContent, replayed, 1); text != "23" ||
			answer.Header.Get("Content-Range") != "bytes 2-3/10" {
			t.Errorf("%q, %v", text, answer.Header)
		}
	}
}

// A stored status is replayed, also one that is none of HTTP's.
func TestMiddlewareOddStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{299, 499, 599, 600, 999} {
		s := newService(t, func(o *idempotency.Options) { o.ServerErrors = idempotency.StoreResult })
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "denied")
		}
		for _, replayed := range []string{"false", "true"} {
			check.Equal(t, s.expect(s.send(), status, replayed, 1), "denied", "%d, replayed %s: %q", status, replayed)
		}
	}
}

// Headers that are set after WriteHeader are neither sent nor stored, as with net/http; trailers are sent.
func TestMiddlewareLateHeaders(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(w http.ResponseWriter){
		"WriteHeader": func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) },
		"Write":       func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") },
		"Flush":       func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
	} {
		s := newService(t)
		s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "/charges/1")
			w.Header().Set("Trailer", "X-Sum")
			begin(w)
			w.Header().Del("Location")
			w.Header().Set("Etag", `"late"`)
			w.Header().Set("Content-Length", "1")
			w.Header().Set("X-Sum", "4")
			w.Header().Set(http.TrailerPrefix+"X-Other", "5")
			http.Error(w, "late", http.StatusInternalServerError)
		}
		for _, replayed := range []string{"false", "true"} {
			answer := s.send()
			s.expect(answer, http.StatusOK, replayed, 1)
			for field, want := range map[string]string{
				"Content-Type": "application/json", "Location": "/charges/1", "Etag": "", "X-Sum": "",
			} {
				check.Equal(t, answer.Header.Get(field), want, "%s, replayed %s: %s is %q", name, replayed, field)
			}
			if replayed == "false" && (answer.Trailer.Get("X-Sum") != "4" || answer.Trailer.Get("X-Other") != "5") {
				t.Errorf("%s: trailers %v", name, answer.Trailer)
			}
		}
	}
}
