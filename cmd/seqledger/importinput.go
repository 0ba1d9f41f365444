package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// maxLineBytes bounds a line. It allows for the largest write, whose values are longer in
// base64 and with JSON escapes.
const maxLineBytes = 8 << 20

// The ways to read an input.
const (
	modeOperations = "operations" // a line of JSON is a write
	modeLines      = "lines"      // a line is a payload to append
)

// lineError is an error in one line of an input.
type lineError struct {
	Line uint64 // from 1
	Err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *lineError) Unwrap() error { return e.Err }

// inputReader reads a file line by line and keeps a digest of all its bytes.
type inputReader struct {
	r    *bufio.Reader
	hash hash.Hash
	size int64
	line uint64
	buf  []byte
}

func newInputReader(r io.Reader) *inputReader {
	// 256 KiB, so that a line rarely spans two reads.
	return &inputReader{r: bufio.NewReaderSize(r, 256<<10), hash: sha256.New()}
}

// next returns the next line without its newline, valid until the next call,
// and io.EOF after the last one. The last line needs no newline.
func (r *inputReader) next() ([]byte, error) {
	r.buf = r.buf[:0]
	for {
		part, err := r.r.ReadSlice('\n')
		r.hash.Write(part)
		r.size += int64(len(part))
		r.buf = append(r.buf, part...)
		switch {
		// A line is gathered only up to its bound, because a file without newlines may be any size.
		case errors.Is(err, bufio.ErrBufferFull) && len(r.buf) <= maxLineBytes:
			continue
		case errors.Is(err, bufio.ErrBufferFull), len(r.buf) > maxLineBytes+1:
			return nil, &lineError{r.line + 1, fmt.Errorf("has more than %d bytes", maxLineBytes)}
		case errors.Is(err, io.EOF) && len(r.buf) == 0:
			return nil, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		}
		r.line++
		return bytes.TrimSuffix(r.buf, []byte("\n")), nil
	}
}

// summary describes what was read so far, except for its mode.
func (r *inputReader) summary() inputSummary {
	return inputSummary{SHA256: hex.EncodeToString(r.hash.Sum(nil)), Size: r.size, Lines: r.line}
}

// inputSummary reports whether two inputs are the same.
type inputSummary struct {
	Mode   string `json:"mode"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"` // bytes
	Lines  uint64 `json:"lines"`
}

// surveyInput reads a whole input. Unless look is nil it also parses every line, to find a bad line
// before anything is written, and calls look with the operations.
func surveyInput(
	ctx context.Context, input io.Reader, mode string, look func(line uint64, operations []*seqledgerv1.Operation),
) (inputSummary, error) {
	r := newInputReader(input)
	for {
		line, err := r.next()
		if errors.Is(err, io.EOF) {
			summary := r.summary()
			summary.Mode = mode
			return summary, nil
		}
		if err != nil {
			return inputSummary{}, err
		}
		// Lines that were checked before are not checked again, because a newer version's
		// stricter check must not stop an import that is half done.
		if look != nil {
			operations, err := parseLine(mode, line)
			if err != nil {
				return inputSummary{}, &lineError{r.line, err}
			}
			look(r.line, operations)
		}
		if r.line%1024 == 0 && ctx.Err() != nil {
			return inputSummary{}, context.Cause(ctx)
		}
	}
}

// parseLine returns the operations of a line's write. It does not retain the line.
func parseLine(mode string, line []byte) ([]*seqledgerv1.Operation, error) {
	if mode == modeLines {
		if len(line) > machine.MaxValueBytes {
			return nil, fmt.Errorf("has %d bytes, at most %d can be appended", len(line), machine.MaxValueBytes)
		}
		return []*seqledgerv1.Operation{op.Append(bytes.Clone(line))}, nil
	}
	if len(bytes.TrimSpace(line)) == 0 {
		// It must not be skipped, because that would break the rule that line n is sequence base + n.
		return nil, errors.New("is blank, and every line must be a write")
	}
	return operation.Parse(line)
}
