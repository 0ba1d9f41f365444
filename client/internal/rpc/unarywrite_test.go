package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// arrival is a request as a server gets it.
type arrival struct {
	line   string
	header http.Header
	body   []byte
}

// ledgerOf is a server whose Write answers as a test says, with what has arrived.
type ledgerOf struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler
	answer func(*seqledgerv1.WriteRequest, http.Header) error // the header is that of the answer

	mu       sync.Mutex
	arrivals []arrival
}

// Write implements the handler.
func (s *ledgerOf) Write(
	_ context.Context, r *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	response := connect.NewResponse(&seqledgerv1.WriteResponse{Receipt: &seqledgerv1.Receipt{
		TxId: r.Msg.GetClientId(), BlockHeight: r.Msg.GetSequence(),
	}})
	if s.answer != nil {
		if err := s.answer(r.Msg, response.Header()); err != nil {
			return nil, err
		}
	}
	return response, nil
}

// ServeHTTP records what arrives.
func (s *ledgerOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, handler := seqledgerv1connect.NewLedgerServiceHandler(s)
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.arrivals = append(s.arrivals, arrival{r.Method + " " + r.URL.RequestURI() + " " + r.Host, r.Header, body})
		s.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	handler.ServeHTTP(w, r)
}

// serve returns a Client of the server.
func (s *ledgerOf) serve(t *testing.T, o Options) *Client {
	t.Helper()
	server := httptest.NewUnstartedServer(s)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	o.Server = server.URL
	c := must.Get(New(o))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *ledgerOf) last() arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrivals[len(s.arrivals)-1]
}

func someWrite(payload int) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{ClientId: "c", Sequence: 7, Operations: []*seqledgerv1.Operation{
		{Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: make([]byte, payload)}}},
	}}
}

// TestAWriteArrivesAsOneOfConnect: the pool's own request says the same as that of Connect's client, field by field,
// because a server or an intermediary must not treat the two differently.
func TestAWriteArrivesAsOneOfConnect(t *testing.T) {
	t.Parallel()
	s := new(ledgerOf)
	c := s.serve(t, Options{Token: func(context.Context) (string, error) { return "sl_a_b", nil }})
	e := c.Endpoint()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	send := func(write func(context.Context, *connect.Request[seqledgerv1.WriteRequest]) error) arrival {
		t.Helper()
		request := connect.NewRequest(someWrite(100))
		must.Get(c.Options.Authorize(ctx, request.Header()))(t)
		request.Header().Set("X-Request-Id", "r-1")
		must.Do(t, write(ctx, request))
		return s.last()
	}
	ours := send(func(ctx context.Context, r *connect.Request[seqledgerv1.WriteRequest]) error {
		_, err := e.Write(ctx, r)
		return err
	})
	theirs := send(func(ctx context.Context, r *connect.Request[seqledgerv1.WriteRequest]) error {
		_, err := e.LedgerServiceClient.Write(ctx, r)
		return err
	})
	if ours.line != theirs.line || !bytes.Equal(ours.body, theirs.body) {
		t.Errorf("%s with %x, and Connect's %s with %x", ours.line, ours.body, theirs.line, theirs.body)
	}
	for _, name := range []string{"Connect-Timeout-Ms"} {
		var milliseconds int64
		if _, err := fmt.Sscan(ours.header.Get(name), &milliseconds); err != nil ||
			milliseconds > time.Hour.Milliseconds() || milliseconds < (time.Hour/2).Milliseconds() {
			t.Errorf("%s is %q", name, ours.header.Get(name))
		}
	}
	if ours.header.Get("User-Agent") != userAgent || theirs.header.Get("User-Agent") == "" {
		t.Errorf("the user agents are %q and %q", ours.header.Get("User-Agent"), theirs.header.Get("User-Agent"))
	}
	for _, h := range []http.Header{ours.header, theirs.header} {
		// These differ by nature; an answer is so small that compressing it is of no use.
		for _, name := range []string{"Connect-Timeout-Ms", "User-Agent", "Accept-Encoding"} {
			h.Del(name)
		}
	}
	if !maps.EqualFunc(ours.header, theirs.header, slices.Equal) {
		t.Errorf("the header is %v, and Connect's is %v", ours.header, theirs.header)
	}
}

// TestDeadlinesOfWrites are sent as the protocol has them; one that it cannot express is the client's alone.
func TestDeadlinesOfWrites(t *testing.T) {
	t.Parallel()
	e := &Endpoint{writeHeader: "POST / HTTP/1.1\r\n"}
	for name, test := range map[string]struct {
		after     time.Duration
		low, high int64 // 0: none is sent
	}{
		"an hour":       {time.Hour, time.Hour.Milliseconds() / 2, time.Hour.Milliseconds()},
		"200 years":     {200 * 365 * 24 * time.Hour, 0, 0},
		"already over":  {-time.Hour, 1, 1},
		"a nanosecond":  {time.Nanosecond, 1, 1},
		"the last sent": {9_000_000_000 * time.Millisecond, 8_999_000_000, 9_000_000_000},
	} {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(test.after))
		var b bytes.Buffer
		e.appendWriteHeader(&b, ctx, http.Header{"A": {"b", "c"}}, 17)
		cancel()
		_, rest, sent := strings.Cut(b.String(), "Connect-Timeout-Ms: ")
		var ms int64
		if sent {
			_, _ = fmt.Sscan(rest, &ms)
		}
		if ms < test.low || ms > test.high || !strings.HasPrefix(b.String(), e.writeHeader+"A: b\r\nA: c\r\n") ||
			!strings.HasSuffix(b.String(), "Content-Length: 17\r\n\r\n") {
			t.Errorf("%s: %q", name, b.String())
		}
	}
}

// TestAnswersToWrites are the same over the pool and by Connect's client: receipts, errors with their details and
// what the caller may conclude about the write.
func TestAnswersToWrites(t *testing.T) {
	t.Parallel()
	detail := must.Get(connect.NewErrorDetail(&seqledgerv1.WriteError{
		Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP, LastCommittedSequence: 3,
	}))(t)
	gap := connect.NewError(connect.CodeFailedPrecondition, errors.New("a gap"))
	gap.AddDetail(detail)
	type answer = func(*seqledgerv1.WriteRequest, http.Header) error
	set := func(name, value string) answer {
		return func(_ *seqledgerv1.WriteRequest, h http.Header) error { h.Set(name, value); return nil }
	}
	fail := func(err error) answer {
		return func(*seqledgerv1.WriteRequest, http.Header) error { return err }
	}
	for name, answer := range map[string]answer{
		"receipt": nil, "named": set("X-Request-Id", "1"), "leader": set(message.LeaderHeader, "l:1"),
		"unavailable": fail(connect.NewError(connect.CodeUnavailable, nil)), "details": fail(gap),
	} {
		for _, payload := range []int{0, 100, inlineBody - 100, inlineBody + 1} {
			t.Run(fmt.Sprint(name, payload), func(t *testing.T) {
				t.Parallel()
				s := &ledgerOf{answer: answer}
				e := s.serve(t, Options{}).Endpoint()
				named := ""
				e.moveTo = func(leader string) { named = leader }
				do := func(f func(context.Context, *connect.Request[seqledgerv1.WriteRequest]) (
					*connect.Response[seqledgerv1.WriteResponse], error)) (string, *Attempt) {
					a := new(Attempt)
					named = ""
					response, err := f(WithAttempt(t.Context(), a), connect.NewRequest(someWrite(payload)))
					if err != nil {
						return fmt.Sprintf("%+v %q %d", FromCall(err, a), named, a.status.Load()), a
					}
					height := response.Msg.GetReceipt().GetBlockHeight()
					return fmt.Sprintf("%v %q %d", height, named, a.status.Load()), a
				}
				ours, a := do(e.Write)
				theirs, b := do(e.LedgerServiceClient.Write)
				if ours != theirs || !a.sent() || !b.sent() {
					t.Errorf("got %s, sent %v; Connect's client %s, sent %v", ours, a.sent(), theirs, b.sent())
				}
				if (named != "") != (name == "leader") {
					t.Errorf("the leader is said to be at %q", named)
				}
			})
		}
	}
}

// TestWritesToAServerOfHTTP2Alone: the first one finds out, and what it has found out is remembered.
func TestWritesToAServerOfHTTP2Alone(t *testing.T) {
	t.Parallel()
	s := new(ledgerOf)
	server := httptest.NewUnstartedServer(s)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	c := must.Get(New(Options{Server: server.URL}))(t)
	t.Cleanup(func() { _ = c.Close() })
	e := c.Endpoint()
	for n := range 3 {
		a := new(Attempt)
		response, err := e.Write(WithAttempt(t.Context(), a), connect.NewRequest(someWrite(n)))
		if err != nil || response.Msg.GetReceipt().GetBlockHeight() != 7 || !a.sent() {
			t.Errorf("write %d: %v, %v", n, response, err)
		}
		if !e.isRefused(&e.noHTTP1) || e.isRefused(&e.noUpgrade) {
			t.Error("what the server does not speak is not remembered")
		}
	}
	check.Equal(t, len(s.arrivals), 3, "%d writes arrived")
	e.noHTTP1 = time.Now().Add(-time.Second) // the server was updated, perhaps
	check.Is(t, check.Err(e.Write(t.Context(), connect.NewRequest(someWrite(1)))), nil)
}

// TestAnAttemptThatWasNotSent is sealed: a transport that still holds the request can send nothing of it any more.
func TestAnAttemptThatWasNotSent(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]bool{"read": true, "not read": false} {
		a := new(Attempt)
		body := attemptBody{io.NopCloser(strings.NewReader("body")), a}
		if read {
			if n, err := body.Read(make([]byte, 2)); n != 2 || err != nil {
				t.Fatal(n, err)
			}
		}
		for range 2 {
			check.Equal(t, a.sent(), read, "%s: sent is %v", name)
			n, err := body.Read(make([]byte, 1))
			if read != (err == nil) || read != (n == 1) || !read && !errors.Is(err, errSealed) {
				t.Errorf("%s: a read after that: %d, %v", name, n, err)
			}
		}
	}
}

// TestARequestThatIsSentAgain by a transport is watched in its second body, too.
func TestARequestThatIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, second := range []bool{false, true} {
		a := new(Attempt)
		r, err := http.NewRequestWithContext(WithAttempt(t.Context(), a), http.MethodPost, "http://a/",
			bytes.NewReader([]byte("body")))
		must.Do(t, err)
		gone := errors.New("gone")
		_, err = attempts{endpoint: new(Endpoint), do: func(r *http.Request) (*http.Response, error) {
			if second {
				again := must.Get(r.GetBody())(t)
				_, _ = again.Read(make([]byte, 1))
			}
			return nil, gone
		}}.Do(r)
		if !errors.Is(err, gone) || a.sent() != second {
			t.Errorf("%v; sent %v, want %v", err, a.sent(), second)
		}
	}
}

// TestWhoDoesNotUpgrade is remembered if the answer was about upgrades, and asked again if it was about the caller or
// the moment.
func TestWhoDoesNotUpgrade(t *testing.T) {
	t.Parallel()
	for status, remembered := range map[int]bool{
		200: true, 400: true, 403: true, 404: true, 405: true, 415: true, 426: true, 501: true, 505: true,
		401: false, 429: false, 500: false, 502: false, 503: false, 504: false,
	} {
		c := must.Get(New(Options{Server: "127.0.0.1:1"}))(t)
		e := c.Endpoint()
		e.noteUpgrade(t.Context(), fmt.Errorf("dial: %w", &upgrade.RefusedError{Status: status}))
		if e.isRefused(&e.noUpgrade) != remembered || e.isRefused(&e.noHTTP1) {
			t.Errorf("status %d is remembered: %v, want %v", status, !remembered, remembered)
		}
		_ = c.Close()
	}
	c := must.Get(New(Options{Server: "127.0.0.1:1"}))(t)
	e := c.Endpoint()
	if e.noteUpgrade(t.Context(), io.ErrUnexpectedEOF); !e.isRefused(&e.noUpgrade) {
		t.Error("a server that hangs up is asked again")
	}
	_ = c.Close()
	if _, err := e.OpenStream(t.Context()); err != nil { // an ordinary stream dials with its first message
		t.Errorf("an ordinary stream: %v", err)
	}
}

// TestStreamsThatCannotBegin say whether the caller, the token or the server is the reason.
func TestStreamsThatCannotBegin(t *testing.T) {
	t.Parallel()
	broken := errors.New("the vault is closed")
	c, err := New(Options{Server: "127.0.0.1:1", Token: func(context.Context) (string, error) { return "", broken }})
	must.Do(t, err)
	check.Is(t, check.Err(c.Endpoint().OpenStream(t.Context())), broken, "without a token")
	_ = c.Close()
	if c, err = New(Options{Server: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	check.Is(t, check.Err(c.Endpoint().OpenStream(t.Context())), failure.ErrUnavailable, "nobody listens")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, check.Err(c.Endpoint().OpenStream(ctx)), context.Canceled, "the caller went away")
	if e := c.Endpoint(); e.isRefused(&e.noUpgrade) {
		t.Error("a server that was not reached is said not to upgrade")
	}
}
