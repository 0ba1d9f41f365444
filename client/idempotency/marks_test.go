package idempotency_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// marked checks the headers that every response to a request with a key has.
func marked(t *testing.T, header http.Header, echo, replayed string, expires bool) {
	t.Helper()
	if header.Get("Idempotency-Key") != echo || header.Get("Idempotent-Replayed") != replayed ||
		header.Get("X-Idempotent-Replayed") != replayed || header.Get("X-Request-Id") == "" ||
		len(header["X-Request-Id"]) != 1 || (header.Get("Idempotency-Expires") != "") != expires ||
		header.Get("Idempotency-Expires") != header.Get("X-Idempotent-Expires") {
		t.Errorf("the marks are wrong: %v", header)
	}
	exposed := header.Get("Access-Control-Expose-Headers")
	for name := range header {
		own := strings.HasPrefix(name, "Idempot") || strings.HasPrefix(name, "X-Idempot") || name == "X-Request-Id" ||
			name == "Retry-After" || name == "Link" || name == "Location"
		if own && !strings.Contains(exposed, name) {
			t.Errorf("a page may not read %s: %s", name, exposed)
		}
	}
}

// Every response to a request with a key says which key it is about and whether it is a replay, and has a request id.
// So does every refusal, even of a request whose key is missing or malformed.
func TestEveryResponseIsMarked(t *testing.T) {
	t.Parallel()
	down := newMapBackend()
	down.setFail(func(string, idempotency.Key) (bool, error) {
		return false, errors.New("the secret address is unreachable")
	})
	full := newMapBackend()
	full.setFail(func(string, idempotency.Key) (bool, error) {
		return false, &idempotency.QuotaError{Cause: errors.New("the secret is full")}
	})
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Request-Id", "the handler's")
			w.WriteHeader(code)
		}
	}
	const echo = `"` + testKey + `"`
	for name, test := range map[string]struct {
		options func(o *idempotency.Options)
		serve   func(http.ResponseWriter, *http.Request)
		store   idempotency.Backend
		first   []func(*http.Request) // the preceding request; nil for none
		change  func(*http.Request)

		status            int
		code              idempotency.Code
		noEcho, isExpires bool
		replayed          string // "false" if empty
	}{
		"first":    {status: 201, isExpires: true},
		"replayed": {first: keyed, status: 201, isExpires: true, replayed: "true"},
		"404":      {serve: status(404), first: keyed, status: 404, isExpires: true, replayed: "true"},
		"503":      {serve: status(503), status: 503},
		"401":      {serve: status(401), status: 401},
		"no key": {
			options: func(o *idempotency.Options) { o.Required = true },
			change:  func(r *http.Request) { r.Header.Del("Idempotency-Key") },
			status:  400, code: idempotency.CodeKeyMissing, noEcho: true,
		},
		"malformed key": {
			change: header("Idempotency-Key", `"`), status: 400, code: idempotency.CodeKeyInvalid, noEcho: true,
		},
		"two keys": {
			change: header("Idempotency-Key", `"a"`, `"b"`), status: 400, code: idempotency.CodeKeyInvalid, noEcho: true,
		},
		"upgrade": {change: header("Upgrade", "websocket"), status: 400, code: idempotency.CodeKeyInvalid},
		"no principal": {
			change: func(r *http.Request) { r.Header.Del("Authorization") }, status: 400,
			code: idempotency.CodePrincipalMissing,
		},
		"body that is no JSON": {
			options: func(o *idempotency.Options) { o.Fingerprint = idempotency.FingerprintJCS },
			change:  body("no JSON"), status: 400, code: idempotency.CodeBodyInvalid,
		},
		"large body": {
			options: func(o *idempotency.Options) { o.MaxBody = 1 }, status: 413, code: idempotency.CodeBodyTooLarge,
		},
		"slow body": {
			change: func(r *http.Request) { r.Body = io.NopCloser(failingReader{os.ErrDeadlineExceeded}) },
			status: 408, code: idempotency.CodeBodyTimeout,
		},
		"other request": {first: keyed, change: body("{}"), status: 422, code: idempotency.CodeKeyReused},
		"other request, 409": {
			options: func(o *idempotency.Options) { o.MismatchStatus = 409 }, first: keyed, change: body("{}"),
			status: 409, code: idempotency.CodeKeyReused,
		},
		"unknown outcome": {serve: status(500), first: keyed, status: 409, code: idempotency.CodeOutcomeUnknown},
		"response not kept": {
			options: func(o *idempotency.Options) { o.OutcomeOnly = true }, first: keyed, status: 410,
			code: idempotency.CodeNotRetained,
		},
		"replay forbidden": {
			options: func(o *idempotency.Options) {
				o.AllowReplay = func(*http.Request) (bool, error) { return false, nil }
			},
			first: keyed, status: 403, code: idempotency.CodeReplayForbidden,
		},
		"replay unchecked": {
			options: func(o *idempotency.Options) {
				o.AllowReplay = func(*http.Request) (bool, error) { return false, errors.New("the secret is away") }
			},
			first: keyed, status: 503, code: idempotency.CodeReplayUnchecked,
		},
		"not admitted": {
			options: func(o *idempotency.Options) { o.Admit = func(string) (func(), bool) { return nil, false } },
			status:  429, code: idempotency.CodeQuota,
		},
		"full store":        {store: full, status: 429, code: idempotency.CodeQuota},
		"unreachable store": {store: down, status: 503, code: idempotency.CodeStoreUnavailable},
		"bypassed": {
			options: func(o *idempotency.Options) { o.Open = true }, store: down, serve: status(201), status: 201,
		},
		"bypassed, empty": {
			options: func(o *idempotency.Options) { o.Open = true }, store: down,
			serve: func(http.ResponseWriter, *http.Request) {}, status: 200,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &service{T: t, store: idempotency.Memory(), metrics: newCounter()}
			if test.store != nil {
				s.store = idempotency.NewStore(test.store)
			}
			s.charge.serve = test.serve
			options := []func(*idempotency.Options){}
			if test.options != nil {
				options = append(options, test.options)
			}
			s.use(options...)
			change := []func(*http.Request){header("Origin", "https://shop.example")}
			if test.first != nil {
				s.send(append(change, test.first...)...)
			}
			if test.change != nil {
				change = append(change, test.change)
			}
			answer := s.send(change...)
			want, replayed := echo, test.replayed
			if test.noEcho {
				want = ""
			}
			if replayed == "" {
				replayed = "false"
			}
			marked(t, answer.Header, want, replayed, test.isExpires)
			check.Equal(t, answer.StatusCode, test.status, "status %d")
			if bypassed := strings.HasPrefix(name, "bypassed"); bypassed !=
				(answer.Header.Get("Idempotent-Bypassed") == "true") {
				t.Errorf("bypassed: %v", answer.Header)
			}
			text, _ := io.ReadAll(answer.Body)
			if test.code != "" && (!strings.Contains(string(text), `"code":"`+string(test.code)+`"`) ||
				answer.Header.Get("Cache-Control") != "no-store") {
				t.Errorf("%s, want the code %s; %v", text, test.code, answer.Header)
			}
			if strings.Contains(string(text), "secret") {
				t.Errorf("it tells of the store: %s", text)
			}
		})
	}
}

// keyed sends the test's request unchanged.
var keyed = []func(*http.Request){}

// The errors of an interceptor carry the same marks.
func TestEveryCallIsMarked(t *testing.T) {
	t.Parallel()
	_, clients := rpc(t)
	_, required := rpc(t, func(o *idempotency.Options) { o.Required = true })
	for protocol, c := range clients {
		name := strings.ReplaceAll(protocol, " ", "-")
		must.Get(c.Write(t.Context(), writeCall(name, "a")))(t)
		_, err := c.Write(t.Context(), writeCall(name, "b"))
		_, missing := required[protocol].Write(t.Context(), writeCall("", "a"))
		for want, err := range map[string]error{`"` + name + `"`: err, "": missing} {
			e, ok := errors.AsType[*connect.Error](err)
			if !ok || e.Meta().Get("Idempotency-Key") != want || e.Meta().Get("Idempotent-Replayed") != "false" {
				t.Errorf("%s: %v: %v", name, err, e)
			}
		}
	}
}
