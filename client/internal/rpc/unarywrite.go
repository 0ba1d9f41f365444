package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// Write is the Write procedure. A program without a Writer may call it many thousand times a second, and
// Connect's client took half of the client's time. So Write sends a request of ordinary size over the pool itself, in
// the same protocol, and reads the receipt. Connect's client gets everything else: other transports, large requests,
// and every error.
func (e *Endpoint) Write(
	ctx context.Context, request *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	if e.pool == nil || e.isRefused(&e.noHTTP1) || request.Msg.SizeVT() > inlineBody {
		return e.LedgerServiceClient.Write(ctx, request)
	}
	buffer := writeBuffers.Get().(*writeBuffer) //nolint:forcetypeassert // The pool holds nothing else.
	defer writeBuffers.Put(buffer)
	var err error
	if buffer.bytes, err = (message.Codec{}).MarshalAppend(buffer.bytes[:0], request.Msg); err != nil {
		return e.LedgerServiceClient.Write(ctx, request)
	}
	e.identity.introduce(request.Header())
	attempt, _ := ctx.Value(attemptKey{}).(*Attempt) // nil: the caller does not ask
	answer, err := e.pool.do(ctx, postRequest, func(c *callConn) (written chan error, err error) {
		e.appendWriteHeader(&c.request, ctx, request.Header(), len(buffer.bytes))
		_, _ = c.request.Write(buffer.bytes)
		if attempt != nil {
			attempt.body.Store(bodyRead)
		}
		_, err = c.Conn.Write(c.request.Bytes())
		return nil, err
	})
	if errors.Is(err, errNotHTTP1) { // nothing was sent
		return e.writeWith(ctx, attempts{e.overHTTP2, e}, request)
	}
	if err == nil {
		if err = e.learn(answer.Header); err != nil {
			_ = answer.Body.Close()
			answer = nil
		}
	}
	if err == nil {
		if attempt != nil {
			attempt.status.Store(int32(answer.StatusCode))
		}
		var receipt *seqledgerv1.WriteResponse
		if receipt, err = buffer.read(answer); receipt != nil {
			return connect.NewResponse(receipt), nil
		}
	}
	// Connect's client reads the answer, or maps the error.
	return e.writeWith(ctx, answered{answer, err}, request)
}

// writeWith calls Connect's client on another transport.
func (e *Endpoint) writeWith(
	ctx context.Context, transport connect.HTTPClient, request *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	return connect.NewClient[seqledgerv1.WriteRequest, seqledgerv1.WriteResponse](
		transport, e.base.String()+seqledgerv1connect.LedgerServiceWriteProcedure, connect.WithCodec(message.Codec{}),
	).CallUnary(ctx, request)
}

// postRequest is what net/http needs to know of a request to parse its answer.
var postRequest = &http.Request{Method: http.MethodPost}

// writeBuffer is the memory of an encoded write, and then of its answer.
type writeBuffer struct{ bytes []byte }

var writeBuffers = sync.Pool{New: func() any { return new(writeBuffer) }}

// read reads an answer that is a receipt of a known size. It returns nil for any other, with the body still to be read.
func (b *writeBuffer) read(answer *http.Response) (*seqledgerv1.WriteResponse, error) {
	if answer.StatusCode != http.StatusOK || answer.ContentLength < 1 || answer.ContentLength > inlineBody ||
		answer.Header.Get("Content-Type") != "application/proto" || answer.Header.Get("Content-Encoding") != "" {
		return nil, nil //nolint:nilnil // Connect's client reads it.
	}
	b.bytes = slices.Grow(b.bytes[:0], int(answer.ContentLength))[:answer.ContentLength]
	_, err := io.ReadFull(answer.Body, b.bytes)
	_ = answer.Body.Close()
	if err != nil {
		return nil, err
	}
	receipt := new(seqledgerv1.WriteResponse)
	if (message.Codec{}).Unmarshal(b.bytes, receipt) != nil {
		answer.Body = io.NopCloser(bytes.NewReader(bytes.Clone(b.bytes)))
		return nil, nil //nolint:nilnil // Connect's client names the error.
	}
	return receipt, nil
}

// appendWriteHeader begins a request in Connect's protocol.
func (e *Endpoint) appendWriteHeader(dst *bytes.Buffer, ctx context.Context, own http.Header, length int) {
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

// newWriteHeader returns the part of a header that all writes share.
func (e *Endpoint) newWriteHeader() string {
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
