package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// maxPlainAnswer is the size in bytes up to which write reads an answer itself.
const maxPlainAnswer = 64 << 10

// write is the Write procedure on one server. Most programs that do not use a Writer call it
// many thousand times a second, and half of the client's time went into Connect's general
// machinery. So write itself sends a request of ordinary size over the pool, in the same protocol,
// and reads the answer if it is a receipt. Everything else is left to Connect's client: other
// transports, large requests, and above all every error.
func (e *endpoint) write(
	ctx context.Context, request *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	if e.pool == nil || e.isRefused(&e.noHTTP1) {
		return e.ledger.Write(ctx, request)
	}
	if request.Msg.SizeVT() > inlineBody {
		return e.ledger.Write(ctx, request)
	}
	body := writeBodies.Get().(*writeBody) //nolint:forcetypeassert // The pool holds nothing else.
	defer writeBodies.Put(body)
	var err error
	if body.bytes, err = (message.Codec{}).MarshalAppend(body.bytes[:0], request.Msg); err != nil {
		return e.ledger.Write(ctx, request)
	}
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	answer, err := e.pool.do(ctx, postRequest, func(c *callConn) (chan error, error) {
		e.appendWriteHeader(&c.request, ctx, request.Header(), len(body.bytes))
		_, _ = c.request.Write(body.bytes)
		if a != nil {
			a.body.Store(bodyRead)
		}
		_, err := c.Conn.Write(c.request.Bytes())
		return nil, err
	})
	if errors.Is(err, errNotHTTP1) { // nothing was sent
		return e.writeWith(ctx, attempts{e.overHTTP2}, request)
	}
	if err == nil {
		if a != nil {
			a.status.Store(int32(answer.StatusCode))
		}
		if isPlainAnswer(answer) {
			receipt := new(seqledgerv1.WriteResponse)
			if err = body.read(answer); err == nil {
				if err = (message.Codec{}).Unmarshal(body.bytes, receipt); err == nil {
					return connect.NewResponse(receipt), nil
				}
				err = connect.NewError(connect.CodeInternal, err)
			}
			answer = nil
		}
	}
	// Connect's client reads the answer, or maps the error.
	return e.writeWith(ctx, answered{answer, err}, request)
}

// writeWith calls Connect's client on another transport.
func (e *endpoint) writeWith(
	ctx context.Context, transport connect.HTTPClient, request *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	return connect.NewClient[seqledgerv1.WriteRequest, seqledgerv1.WriteResponse](
		transport, e.base.String()+seqledgerv1connect.LedgerServiceWriteProcedure, connect.WithCodec(message.Codec{}),
	).CallUnary(ctx, request)
}

// postRequest is what net/http needs to know of a request to parse its answer.
var postRequest = &http.Request{Method: http.MethodPost}

// writeBody is the memory of a request's or an answer's body.
type writeBody struct{ bytes []byte }

var writeBodies = sync.Pool{New: func() any { return new(writeBody) }}

// read reads the body of an answer to its end, so that its connection can be used again.
func (b *writeBody) read(answer *http.Response) error {
	defer answer.Body.Close() //nolint:errcheck // At the end of the body it does nothing.
	n := int(answer.ContentLength)
	// One byte more, for the read that finds the end.
	if cap(b.bytes) <= n {
		b.bytes = make([]byte, n+1)
	}
	b.bytes = b.bytes[:n+1]
	got, err := io.ReadFull(answer.Body, b.bytes)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	if b.bytes = b.bytes[:got]; err == nil && got != n {
		err = fmt.Errorf("%w: the answer has %d bytes instead of %d", io.ErrUnexpectedEOF, got, n)
	}
	return err
}

// isPlainAnswer reports whether an answer is an encoded message, and nothing else.
func isPlainAnswer(answer *http.Response) bool {
	return answer.StatusCode == http.StatusOK && answer.Header.Get("Content-Type") == "application/proto" &&
		answer.Header.Get("Content-Encoding") == "" && 0 < answer.ContentLength &&
		answer.ContentLength <= maxPlainAnswer
}

// appendWriteHeader begins a request in Connect's protocol.
func (e *endpoint) appendWriteHeader(dst *bytes.Buffer, ctx context.Context, own http.Header, length int) {
	dst.Reset()
	dst.WriteString(e.writeHeader)
	for name, values := range own {
		for _, value := range values {
			for _, part := range []string{name, ": ", value, "\r\n"} {
				dst.WriteString(part)
			}
		}
	}
	// The protocol has no more than ten digits; a later deadline is this side's alone.
	const maxTimeout = 9_999_999_999
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline).Milliseconds() <= maxTimeout {
		dst.WriteString("Connect-Timeout-Ms: ")
		dst.Write(strconv.AppendInt(dst.AvailableBuffer(), max(1, time.Until(deadline).Milliseconds()), 10))
		dst.WriteString("\r\n")
	}
	dst.WriteString("Content-Length: ")
	dst.Write(strconv.AppendInt(dst.AvailableBuffer(), int64(length), 10))
	dst.WriteString("\r\n\r\n")
}

// newWriteHeader returns the part of a request's header that is the same for every write.
func (e *endpoint) newWriteHeader() string {
	return fmt.Sprintf("POST %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nContent-Type: application/proto\r\n"+
		"Connect-Protocol-Version: 1\r\n",
		e.base.EscapedPath(), seqledgerv1connect.LedgerServiceWriteProcedure, e.base.Host, userAgent)
}

// answered is a connect.HTTPClient with the outcome of a call that was made already.
type answered struct {
	answer *http.Response
	err    error
}

// Do implements connect.HTTPClient.
func (a answered) Do(*http.Request) (*http.Response, error) { return a.answer, a.err }
