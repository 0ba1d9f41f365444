package faultproxy

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Message is what a client sends: a call, or a message of a stream.
type Message struct {
	// Procedure is the last part of the path, such as Write.
	Procedure string
	// Protocol is that of the connection, such as HTTP/1.1.
	Protocol string
	// Writes are those of a Write, WriteBatch or WriteStream. Err is why they could not be read.
	Writes []*seqledgerv1.WriteRequest
	Err    error
}

// IsWrite reports whether the messages of the procedure contain writes.
func (m *Message) IsWrite() bool {
	return m.Procedure == "Write" || m.Procedure == "WriteBatch" || m.Procedure == "WriteStream"
}

// newMessage reads the body of a call, or the contents of an envelope. compressed means that it is gzip.
func newMessage(r *http.Request, compressed bool, body []byte) *Message {
	m := &Message{Procedure: path.Base(r.URL.Path), Protocol: r.Proto}
	if !m.IsWrite() {
		return m
	}
	if compressed {
		if body, m.Err = decompress(body); m.Err != nil {
			return m
		}
	}
	switch m.Procedure {
	case "Write":
		w := new(seqledgerv1.WriteRequest)
		m.Err = decode(r, body, w)
		m.Writes = []*seqledgerv1.WriteRequest{w}
	case "WriteBatch":
		batch := new(seqledgerv1.WriteBatchRequest)
		m.Err = decode(r, body, batch)
		m.Writes = batch.GetWrites()
	default:
		frame := new(seqledgerv1.WriteStreamRequest)
		m.Err = decode(r, body, frame)
		m.Writes = frame.GetWrites()
	}
	return m
}

func decode(r *http.Request, body []byte, m proto.Message) error {
	if strings.Contains(r.Header.Get("Content-Type"), "json") {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, m)
	}
	return proto.Unmarshal(body, m)
}

func decompress(body []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	whole, err := io.ReadAll(io.LimitReader(r, MaxMessageBytes+1))
	if err == nil && len(whole) > MaxMessageBytes {
		err = errors.New("it is too large")
	}
	return whole, err
}

// receiptsOf returns the receipts in an answer to a Write, or in a message of the answer to a WriteStream. One that
// cannot be read has none.
func receiptsOf(r *http.Request, body []byte) (receipts []*seqledgerv1.Receipt) {
	switch path.Base(r.URL.Path) {
	case "Write":
		answer := new(seqledgerv1.WriteResponse)
		if decode(r, body, answer) == nil && answer.GetReceipt() != nil {
			receipts = append(receipts, answer.GetReceipt())
		}
	case "WriteStream":
		answer := new(seqledgerv1.WriteStreamResponse)
		if decode(r, body, answer) != nil {
			return nil
		}
		for _, result := range answer.GetResults() {
			if result.GetReceipt() != nil {
				receipts = append(receipts, result.GetReceipt())
			}
		}
	}
	return receipts
}

// resultsOf returns how many writes a message of the answer to a WriteStream is about; 0 if it cannot be read.
func resultsOf(r *http.Request, compressed bool, body []byte) int {
	answer := new(seqledgerv1.WriteStreamResponse)
	if compressed {
		body, _ = decompress(body)
	}
	_ = decode(r, body, answer)
	return len(answer.GetResults())
}
