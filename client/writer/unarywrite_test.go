package writer_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// receiptOf returns an encoded answer to a write.
func receiptOf(t *testing.T, sequence uint64) []byte {
	t.Helper()
	body, err := proto.Marshal(&seqledgerv1.WriteResponse{Receipt: &seqledgerv1.Receipt{Sequence: sequence, TxId: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// An answer that has no receipt of a ledger leaves the outcome open.
func TestUnaryWriteWithoutAReceipt(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]*seqledgerv1.WriteResponse{
		"nothing": {}, "a receipt without tx_id": {Receipt: &seqledgerv1.Receipt{Sequence: 1}},
	} {
		body, err := proto.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		s := oneByOne(t, func(conn net.Conn, _ int, _ *http.Request) bool {
			_, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\n"+
				"Content-Length: %d\r\n\r\n%s", len(body), body)
			return err == nil
		})
		receipt, err := dial(t, s).Write(t.Context(), numbered(1))
		unknown, open := errors.AsType[*failure.OutcomeUnknownError](err)
		if !open || unknown.Sequence != 1 || !errors.Is(err, failure.ErrProtocol) || receipt != nil {
			t.Errorf("%s: %v, %v", name, receipt, err)
		}
	}
}

// A write is sent as Connect's protocol says: path, headers, deadline and body.
func TestUnaryWriteRequest(t *testing.T) {
	t.Parallel()
	type sent struct {
		path, host string
		header     http.Header
		write      *seqledgerv1.WriteRequest
	}
	requests := make(chan sent, 3)
	s := oneByOne(t, func(conn net.Conn, _ int, r *http.Request) bool {
		body, err := io.ReadAll(r.Body)
		w := new(seqledgerv1.WriteRequest)
		if err := errors.Join(err, proto.Unmarshal(body, w)); err != nil {
			t.Error(err)
		}
		requests <- sent{r.Method + " " + r.URL.Path, r.Host, r.Header, w}
		answer := receiptOf(t, w.GetSequence())
		_, err = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n\r\n%s",
			len(answer), answer)
		return err == nil
	})
	c := dial(t, s, func(o *client.Options) {
		o.Server += "/behind/a%20proxy"
		o.Token = client.StaticToken("secret")
	})
	first := numbered(1)
	if r, err := c.Write(t.Context(), first); err != nil || r.GetSequence() != 1 {
		t.Fatal(r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := c.Write(ctx, numbered(2)); err != nil {
		t.Fatal(err)
	}
	late, stop := context.WithTimeout(t.Context(), 365*24*time.Hour)
	defer stop()
	if _, err := c.Write(late, numbered(3)); err != nil {
		t.Fatal(err)
	}
	for i, got := range []sent{<-requests, <-requests, <-requests} {
		if got.path != "POST /behind/a proxy"+seqledgerv1connect.LedgerServiceWriteProcedure || got.host != s.address {
			t.Errorf("%s to %s", got.path, got.host)
		}
		for name, want := range map[string]string{
			"Authorization": "Bearer secret", "Content-Type": "application/proto", "Connect-Protocol-Version": "1",
			"User-Agent": "seqledger-go", "Accept-Encoding": "",
		} {
			if value := got.header.Get(name); value != want {
				t.Errorf("%s: %q, want %q", name, value, want)
			}
		}
		timeout := got.header.Get("Connect-Timeout-Ms")
		if ms, err := strconv.Atoi(timeout); (timeout != "") != (i == 1) || i == 1 &&
			(err != nil || ms <= 3_500_000 || ms > 3_600_000) {
			t.Errorf("write %d has the deadline %q", i, timeout)
		}
		if i == 0 && !proto.Equal(got.write, first) {
			t.Errorf("sent %v, want %v", got.write, first)
		}
	}
}

// Whatever form the answer to a write has, it is read, or the outcome is unknown.
func TestUnaryWriteAnswers(t *testing.T) {
	t.Parallel()
	plain := receiptOf(t, 1)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(plain); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\n"
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n", n) }
	for _, test := range []struct {
		name, answer string
		committed    bool
		is           error // in any other case
	}{
		{name: "plain", answer: head + length(len(plain)) + string(plain), committed: true},
		{name: "compressed", answer: head + "Content-Encoding: gzip\r\n" + length(zipped.Len()) + zipped.String(),
			committed: true},
		{
			name:      "in chunks",
			answer:    head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(plain), plain),
			committed: true,
		},
		{name: "cut off", answer: head + length(len(plain)) + string(plain[:3]), is: failure.ErrOutcomeUnknown},
		{name: "no message", answer: head + length(3) + "\xff\xff\xff", is: failure.ErrOutcomeUnknown},
		{name: "no receipt", answer: head + length(0), is: failure.ErrOutcomeUnknown},
		{name: "too long for its header", answer: head + length(2_000_000) + string(plain),
			is: failure.ErrOutcomeUnknown},
		{
			name: "another type", answer: "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + length(2) + "no",
			is: failure.ErrOutcomeUnknown,
		},
		{
			name: "a gateway's error", answer: "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n" + length(2) +
				"no",
			is: failure.ErrOutcomeUnknown,
		},
		{
			name: "a refusal", answer: "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\n" +
				length(len(unauthenticatedAnswer)) + unauthenticatedAnswer,
			is: failure.ErrUnauthenticated,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := oneByOne(t, func(conn net.Conn, _ int, r *http.Request) bool {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(conn, test.answer)
				return false
			})
			c := dial(t, s, func(o *client.Options) { o.MaxAttempts = 1 })
			receipt, err := c.Write(t.Context(), numbered(1))
			switch {
			case test.committed && (err != nil || receipt.GetSequence() != 1 || receipt.GetTxId() != "a"):
				t.Errorf("got %v, %v", receipt, err)
			case !test.committed && !errors.Is(err, test.is):
				t.Errorf("got %v, %v, want %v", receipt, err, test.is)
			}
			if errors.Is(test.is, failure.ErrUnauthenticated) && errors.Is(err, failure.ErrOutcomeUnknown) {
				t.Error("the ledger's own refusal is final")
			}
		})
	}
}

// unauthenticatedAnswer is an error in Connect's form without details, from before the request was looked at.
const unauthenticatedAnswer = `{"code":"unauthenticated","message":"no key"}`
