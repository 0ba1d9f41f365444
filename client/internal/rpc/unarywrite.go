package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// write is the Write procedure on one server. Most programs that do not use a Writer call it
// many thousand times a second, and half of the client's time went into Connect's general
// machinery. So write itself sends a request of ordinary size over the pool, in the same protocol,
// and reads the answer if it is a receipt in its usual form. Everything else is left to Connect's client: other
// transports, large requests, and above all every error.
func (e *Endpoint) write(
	ctx context.Context, request *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	if e.pool == nil || e.isRefused(&e.noHTTP1) {
		return e.Ledger.Write(ctx, request)
	}
	if request.Msg.SizeVT() > inlineBody || !e.identity.isKnown() {
		return e.Ledger.Write(ctx, request)
	}
	e.identity.introduce(request.Header())
	w := unaryWrites.Get().(*unaryWrite) //nolint:forcetypeassert // The pool holds nothing else.
	defer w.free()
	var err error
	if w.body, err = (message.Codec{}).MarshalAppend(w.body[:0], request.Msg); err != nil {
		return e.Ledger.Write(ctx, request)
	}
	w.endpoint, w.ctx, w.header = e, ctx, request.Header()
	w.attempt, _ = ctx.Value(attemptKey{}).(*Attempt)
	answer, err := e.pool.do(ctx, postRequest, w) // Connect's client closes the body
	if errors.Is(err, errNotHTTP1) {              // nothing was sent
		return e.writeWith(ctx, attempts{e.overHTTP2, e}, request)
	}
	if err == nil && answer == nil {
		return connect.NewResponse(w.receipt), nil
	}
	if err == nil {
		if err = e.learn(answer.Header); err != nil {
			_ = answer.Body.Close()
			answer = nil
		} else if w.attempt != nil {
			w.attempt.status.Store(int32(answer.StatusCode))
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

// unaryWrite is one write on a connection of the pool.
type unaryWrite struct {
	endpoint *Endpoint
	ctx      context.Context //nolint:containedctx // It is that of one call, which the object lasts for.
	header   http.Header     // the request's own
	attempt  *Attempt        // nil: the caller does not ask
	body     []byte          // the encoded request; its memory is used again
	receipt  *seqledgerv1.WriteResponse
}

var unaryWrites = sync.Pool{New: func() any { return new(unaryWrite) }}

// free keeps the memory of the body for another write.
func (w *unaryWrite) free() {
	*w = unaryWrite{body: w.body}
	unaryWrites.Put(w)
}

// send implements exchanger.
func (w *unaryWrite) send(c *callConn) (written chan error, err error) {
	w.endpoint.appendWriteHeader(&c.request, w.ctx, w.header, len(w.body))
	_, _ = c.request.Write(w.body)
	if w.attempt != nil {
		w.attempt.body.Store(bodyRead)
	}
	_, err = c.Conn.Write(c.request.Bytes())
	return nil, err
}

// take implements exchanger: it takes an answer that is a receipt, has come in one piece, and
// has nothing unusual about it.
func (w *unaryWrite) take(c *callConn) bool {
	if _, err := c.reader.Peek(1); err != nil {
		return false
	}
	data, err := c.reader.Peek(c.reader.Buffered())
	if err != nil {
		return false
	}
	body, size := plainAnswer(data)
	receipt := new(seqledgerv1.WriteResponse)
	if size == 0 || (message.Codec{}).Unmarshal(body, receipt) != nil {
		return false
	}
	if _, err := c.reader.Discard(size); err != nil {
		return false
	}
	if w.receipt = receipt; w.attempt != nil {
		w.attempt.status.Store(http.StatusOK)
	}
	return true
}

// plainAnswer returns the body of the answer that data begins with, and the size of the whole
// answer: if it is an encoded message with status 200 and a length, complete, and if no field of its
// header changes how it is read or whether another answer can follow. Else it returns 0, and
// net/http decides what the data is.
func plainAnswer(data []byte) (body []byte, size int) {
	rest, ok := bytes.CutPrefix(data, []byte("HTTP/1.1 200 "))
	if !ok {
		return nil, 0
	}
	length, typed := 0, false
	for first := true; ; first = false {
		end := bytes.IndexByte(rest, '\n')
		if end < 1 || rest[end-1] != '\r' || slices.ContainsFunc(rest[:end-1], isUnusual) {
			return nil, 0
		}
		line := rest[:end-1]
		rest = rest[end+1:]
		if first {
			continue
		}
		if len(line) == 0 {
			break
		}
		switch name, value := cutField(line); {
		case name == nil:
			return nil, 0
		case len(name) == len(contentLength) && strings.EqualFold(string(name), contentLength):
			if length != 0 {
				return nil, 0
			}
			if length = smallNumber(value); length == 0 {
				return nil, 0
			}
		case len(name) == len(contentType) && strings.EqualFold(string(name), contentType):
			if typed || string(value) != "application/proto" {
				return nil, 0
			}
			typed = true
		case !isHarmless(name):
			return nil, 0
		}
	}
	if !typed || length == 0 || length > len(rest) {
		return nil, 0
	}
	return rest[:length], len(data) - len(rest) + length
}

const (
	contentLength = "Content-Length"
	contentType   = "Content-Type"
)

// isUnusual reports whether a byte is not a visible ASCII character or a space.
func isUnusual(c byte) bool { return c < ' ' || c > '~' }

// cutField returns the name and the value of a header's field. The name is nil if it is not one.
func cutField(line []byte) (name, value []byte) {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 || slices.ContainsFunc(name, func(c byte) bool {
		return c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) {
		return nil, nil
	}
	return name, bytes.Trim(value, " ")
}

// isHarmless reports whether a field says nothing about the form of an answer, about its
// connection, or about the leader. All fields that do are in the list.
func isHarmless(name []byte) bool {
	for _, other := range []string{
		"Connection", "Content-Encoding", "Trailer", "Transfer-Encoding", "Upgrade", message.LeaderHeader,
	} {
		if len(name) == len(other) && strings.EqualFold(string(name), other) {
			return false
		}
	}
	return true
}

// smallNumber returns a number of up to six digits; 0 if it is none.
func smallNumber(text []byte) (n int) {
	if len(text) > 6 {
		return 0
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + int(c-'0')
	}
	return n
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

// newWriteHeader returns the part of a request's header that is the same for every write.
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
