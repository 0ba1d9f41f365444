package server

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// directWrite is the handler of the Write procedure. Programs without a stream call it many thousand times a second,
// and Connect's general machinery took more of the processor than the write. So a request in its usual form (binary,
// not compressed, of a known small size) is read, observed and answered here, in the same protocol and with the same
// bytes. Connect's handler gets everything else, above all what cannot be read.
type directWrite struct {
	server  *Server
	general http.Handler // Connect's
	observe *observer
	errors  *connect.ErrorWriter
}

// directMessage is the type of a request's message.
type directMessage = wire.Request[seqledgerv1.WriteRequest, *seqledgerv1.WriteRequest]

const (
	// maxDirectBytes is the size of a request up to which directWrite reads it.
	maxDirectBytes = 64 << 10
	binaryType     = "application/proto"
)

// The values of header fields that are the same in every answer. They are only read.
var (
	acceptsGzip = []string{"gzip"}
	isBinary    = []string{binaryType}
)

// directBody is the memory of a request's body, and then of the answer.
type directBody struct{ bytes []byte }

var directBodies = sync.Pool{New: func() any { return new(directBody) }}

// isDirect reports whether a request has the usual form.
func isDirect(r *http.Request) bool {
	version := r.Header.Get("Connect-Protocol-Version")
	return r.Method == http.MethodPost && 0 < r.ContentLength && r.ContentLength <= maxDirectBytes &&
		r.Header.Get("Content-Type") == binaryType && r.Header.Get("Content-Encoding") == "" &&
		(version == "" || version == "1")
}

// ServeHTTP implements http.Handler.
func (d *directWrite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isDirect(r) {
		d.general.ServeHTTP(w, r)
		return
	}
	ctx := r.Context()
	if timeout := r.Header.Get("Connect-Timeout-Ms"); timeout != "" {
		ms, err := strconv.ParseInt(timeout, 10, 64)
		if err != nil {
			d.general.ServeHTTP(w, r)
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
	}
	body := directBodies.Get().(*directBody) //nolint:forcetypeassert // The pool holds nothing else.
	defer directBodies.Put(body)
	message := new(directMessage)
	complete, err := body.read(r)
	if complete {
		err = wire.BinaryCodec{}.Unmarshal(body.bytes, message)
	}
	if !complete || err != nil || mayBeCompressed(r, message) {
		r.Body = &replayedBody{bytes.NewReader(body.bytes), err, r.Body}
		d.general.ServeHTTP(w, r)
		return
	}
	d.answer(ctx, w, r, message, body)
}

// answer commits the write and answers.
func (d *directWrite) answer(
	ctx context.Context, w http.ResponseWriter, r *http.Request, message *directMessage, body *directBody,
) {
	const procedure = seqledgerv1connect.LedgerServiceWriteProcedure
	var answer *seqledgerv1.WriteResponse
	err := d.observe.unary(ctx, procedure, func() (err error) {
		if err := ctx.Err(); err != nil {
			return err
		}
		answer, err = answerUnary(ctx, d.server, procedure, message, d.server.write)
		return err
	})
	if err == nil {
		body.bytes, err = wire.BinaryCodec{}.MarshalAppend(body.bytes[:0], answer)
	}
	_ = r.Body.Close() // or net/http would try to read more of it
	header := w.Header()
	header["Accept-Encoding"] = acceptsGzip
	if err != nil {
		_ = d.errors.Write(w, r, err)
		return
	}
	header["Content-Type"] = isBinary
	_, _ = w.Write(body.bytes) // a client that is gone repeats the write
}

// mayBeCompressed reports whether Connect might compress the answer to a write.
func mayBeCompressed(r *http.Request, message *directMessage) bool {
	if r.Header.Get("Accept-Encoding") == "" {
		return false
	}
	m, err := message.Get()
	return err == nil && (m.IncludeProof || receiptBytes+resultBytes*len(m.Operations) >= compressMinBytes)
}

// read reads the body and reports whether it is complete. If it is not, bytes has what was read.
func (b *directBody) read(r *http.Request) (complete bool, err error) {
	n := int(r.ContentLength)
	// One byte more, for a read that finds the end.
	if cap(b.bytes) <= n {
		b.bytes = make([]byte, n+1)
	}
	got := 0
	for err == nil && got <= n {
		var more int
		more, err = r.Body.Read(b.bytes[got : n+1])
		got += more
	}
	if b.bytes = b.bytes[:got]; err == io.EOF && got == n {
		return true, nil
	}
	return false, err
}

// replayedBody is a body whose beginning was read already. The error of that read follows, or else the rest of the
// body.
type replayedBody struct {
	beginning *bytes.Reader
	err       error
	io.ReadCloser
}

// Read implements io.Reader.
func (b *replayedBody) Read(p []byte) (int, error) {
	switch {
	case b.beginning.Len() > 0:
		return b.beginning.Read(p)
	case b.err != nil:
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}
