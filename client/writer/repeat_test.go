package writer_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// documentedCodes reads the table in doc.go: whether a code without a WriteError is repeated.
// "once" needs a new token, so it counts as no here.
func documentedCodes(t *testing.T) map[connect.Code]bool {
	t.Helper()
	doc := must.Get(os.ReadFile("../doc.go"))(t)
	_, table, _ := strings.Cut(string(doc), "//\tcode                 repeated  why\n")
	table, _, _ = strings.Cut(table, "\n//\n")
	codes := make(map[connect.Code]bool)
	var unanswered []connect.Code // of a line that has only codes
	for line := range strings.Lines(table) {
		answer := ""
		for word := range strings.FieldsSeq(strings.TrimPrefix(line, "//")) {
			word = strings.TrimSuffix(word, ",")
			var code connect.Code
			if code.UnmarshalText([]byte(word)) == nil {
				unanswered = append(unanswered, code)
				continue
			}
			answer = word
			break
		}
		if answer == "" {
			continue
		}
		for _, code := range unanswered {
			codes[code] = answer == "yes"
		}
		unanswered = nil
	}
	return codes
}

// codesIn returns the Connect codes in a text.
func codesIn(text string) (codes []connect.Code) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		var code connect.Code
		if code.UnmarshalText([]byte(word)) == nil {
			codes = append(codes, code)
		}
	}
	return codes
}

// TestTheDocumentsAgree on which codes without a WriteError are repeated at once: the
// page on clients, the API's definition and this package's documentation, which the test below
// compares with the code. The page's table has every code in one row.
func TestTheDocumentsAgree(t *testing.T) {
	t.Parallel()
	var want []connect.Code
	for code, repeated := range documentedCodes(t) {
		if repeated {
			want = append(want, code)
		}
	}
	slices.Sort(want)
	page := must.Get(os.ReadFile("../../docs/clients.md"))(t)
	_, table, _ := strings.Cut(string(page), "| without a `WriteError` |")
	table, _, _ = strings.Cut(table, "\n\n")
	var all, repeated []connect.Code
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		codes := codesIn(cells[1])
		all = append(all, codes...)
		if strings.HasPrefix(strings.TrimSpace(cells[3]), "the same request again") {
			repeated = append(repeated, codes...)
		}
	}
	slices.Sort(all)
	slices.Sort(repeated)
	if len(all) != int(connect.CodeUnauthenticated) || len(slices.Compact(all)) != len(all) {
		t.Errorf("docs/clients.md has these codes: %v, want each of the %d once", all, connect.CodeUnauthenticated)
	}
	if !slices.Equal(repeated, want) {
		t.Errorf("docs/clients.md has these codes repeated at once: %v, doc.go %v", repeated, want)
	}
	definition := must.Get(os.ReadFile("../../proto/seqledger/v1/types.proto"))(t)
	_, list, _ := strings.Cut(string(definition), "once for the codes ")
	list, _, _ = strings.Cut(list, "after a correction")
	if codes := codesIn(list); !slices.Equal(slices.Sorted(slices.Values(codes)), want) {
		t.Errorf("types.proto has these codes repeated at once: %v, doc.go %v", codes, want)
	}
}

// TestWhichCodesAreRepeated: the table of the package's documentation is complete and true
// of answers in Connect's form that carry no WriteError.
func TestWhichCodesAreRepeated(t *testing.T) {
	t.Parallel()
	repeated := documentedCodes(t)
	if len(repeated) != int(connect.CodeUnauthenticated) {
		t.Fatalf("the table has %d codes, there are %d", len(repeated), connect.CodeUnauthenticated)
	}
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		check.Equal(t, failure.FromConnect(connect.NewWireError(code, nil), 0).IsTemporary(), repeated[code],
			"%v is repeated: %v", code)
	}
}

// TestAConnectionThatIsRefused: nothing was sent, so nothing was executed, however the call
// ends.
func TestAConnectionThatIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*client.Options){
		"HTTP/1.1": func(*client.Options) {}, "HTTP/2": func(o *client.Options) { o.HTTP2 = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := freeport.Unreachable(t)
			c := dial(t, &fakeServer{address: address}, change)
			var err error
			// On a busy machine the time may be over before the first attempt is refused.
			withMoreTime(t, func(ctx context.Context) bool {
				_, err = c.Write(ctx, numbered(1))
				return errors.Is(err, failure.ErrUnavailable)
			})
			if !errors.Is(err, failure.ErrNotExecuted) || errors.Is(err, failure.ErrOutcomeUnknown) ||
				!errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, failure.ErrUnavailable) {
				t.Errorf("want not executed, because of the time and the server, got %v", err)
			}
		})
	}
}

// withMoreTime calls do, which gives up when its context ends, with more time each time until it
// reports true: what is to happen within that time takes longer on a busy machine.
func withMoreTime(t *testing.T, do func(ctx context.Context) bool) {
	t.Helper()
	for limit := 50 * time.Millisecond; limit < time.Minute; limit *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		done := do(ctx)
		cancel()
		if done {
			return
		}
	}
}

// TestAServerThatTakesConnectionsAndNothingElse: a call whose time ends while it waits for
// the first byte of a connection was not sent; one whose request is under way was.
func TestAServerThatTakesConnectionsAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*client.Options)
		sent   bool
	}{
		// The question whether it speaks HTTP/1.1 comes before any call.
		"HTTP/1.1": {func(*client.Options) {}, false},
		"TLS":      {func(o *client.Options) { o.Server = "https://" + o.Server }, false},
		"HTTP/2":   {func(o *client.Options) { o.HTTP2 = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			must.Do(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			c := dial(t, &fakeServer{address: listener.Addr().String()}, test.change)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if test.sent {
				var sent context.CancelFunc
				ctx, sent = context.WithCancel(t.Context())
				// Ends when the request has arrived, or with the listener.
				go func() { awaitKey(listener); sent() }()
			}
			_, err = c.Write(ctx, numbered(1))
			if errors.Is(err, failure.ErrOutcomeUnknown) != test.sent ||
				errors.Is(err, failure.ErrNotExecuted) == test.sent {
				t.Errorf("something was sent: %v, and the outcome is told as %v", test.sent, err)
			}
		})
	}
}

// awaitKey takes a connection and reads from it until the write's key has arrived.
func awaitKey(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	var got []byte
	for part := make([]byte, 4<<10); !bytes.Contains(got, []byte(aKey)); {
		n, err := conn.Read(part)
		if got = append(got, part[:n]...); err != nil {
			return
		}
	}
}

// TestALostAnswerAndThenNoConnection: the first copy was sent, so nothing that comes later
// makes the outcome certain.
func TestALostAnswerAndThenNoConnection(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	listener, err := freeport.Listen(t.Context(), "") // its address stays free once it is closed
	must.Do(t, err)
	second := &fakeServer{ledger: s.ledger, address: listener.Addr().String()}
	stop, stopped := second.serve(listener), make(chan struct{})
	var once atomic.Bool
	second.set(func(s *fakeServer) {
		s.afterUnary = func(*seqledgerv1.WriteRequest) error {
			if once.CompareAndSwap(false, true) {
				// Ends with the server, from when on nothing listens; joined below.
				go func() { defer close(stopped); stop() }()
			}
			return errLost
		}
	})
	c := dial(t, second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan error, 1)
	// Ends with ctx; received below.
	go func() {
		_, err := c.Write(ctx, numbered(1))
		told <- err
	}()
	<-stopped
	before := c.Counters().CallRepeats
	eventually(t, "connections that are refused", func() bool { return c.Counters().CallRepeats >= before+2 })
	cancel()
	err = <-told
	if !errors.Is(err, failure.ErrOutcomeUnknown) || errors.Is(err, failure.ErrNotExecuted) {
		t.Errorf("the write is committed, and told as %v", err)
	}
}
