package writer_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// receiptOf returns an encoded answer to a write.
func receiptOf(t *testing.T, txID string) []byte {
	t.Helper()
	body := must.Get(proto.Marshal(&seqledgerv1.WriteResponse{Receipt: &seqledgerv1.Receipt{Sequence: 1,
		TxId: txID}}))(t)
	return body
}

// Whatever form the answer to a write has, it is read, or the outcome is unknown.
func TestUnaryWriteAnswers(t *testing.T) {
	t.Parallel()
	plain, bare := receiptOf(t, "a"), receiptOf(t, "")
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
		{name: "no tx_id", answer: head + length(len(bare)) + string(bare), is: failure.ErrProtocol},
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
