package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// ignore looks at no line.
func ignore(uint64, []*seqledgerv1.Operation) {}

func TestInputReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 700<<10) // longer than the reader's buffer
	for _, test := range []struct {
		input string
		want  []string
	}{
		{"", nil},
		{"\n", []string{""}},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"a\nb", []string{"a", "b"}},
		{"a\n\nb\r\n", []string{"a", "", "b\r"}},
		{long + "\n" + long, []string{long, long}},
	} {
		for _, source := range []io.Reader{strings.NewReader(test.input),
			iotest.HalfReader(strings.NewReader(test.input))} {
			r := newInputReader(source)
			var got []string
			line, err := r.next()
			for ; err == nil; line, err = r.next() {
				got = append(got, string(line))
			}
			digest := sha256.Sum256([]byte(test.input))
			want := inputSummary{SHA256: hex.EncodeToString(digest[:]),
				Size: int64(len(test.input)), Lines: uint64(len(test.want))}
			if !errors.Is(err, io.EOF) || !slices.Equal(got, test.want) || r.summary() != want {
				t.Errorf("%.20q: want %d lines and %+v, got %d lines, %+v, %v", test.input,
					len(test.want), want, len(got), r.summary(), err)
			}
		}
	}
}

func TestInputReaderErrors(t *testing.T) {
	t.Parallel()
	tooLong := io.MultiReader(strings.NewReader("first\n"), bytes.NewReader(make([]byte, maxLineBytes+2)))
	_, err := surveyInput(t.Context(), tooLong, modeLines, nil)
	if bad, ok := errors.AsType[*lineError](err); !ok || bad.Line != 2 {
		t.Errorf("want an error about line 2, got %v", err)
	}
	broken := errors.New("the disk is gone")
	if _, err := surveyInput(t.Context(), iotest.ErrReader(broken), modeLines, ignore); !errors.Is(err, broken) {
		t.Errorf("want the reader's error, got %v", err)
	}
}

// TestParseLineKeepsNothing expects the payload of a line to be a copy: the
// reader uses its buffer for the next line while this one is being sent.
func TestParseLineKeepsNothing(t *testing.T) {
	t.Parallel()
	for mode, line := range map[string]string{modeLines: "abc", modeOperations: `{"append": "abc"}`} {
		buffer := []byte(line)
		operations := must.Get(parseLine(mode, buffer))(t)
		clear(buffer)
		check.Equal(t, string(operations[0].GetAppend().GetPayload()), "abc",
			"%s: want abc after the buffer was used again, got %q", mode)
	}
}

// TestProgressLines: without a terminal there is a line seldom, and nothing at all with --json.
func TestProgressLines(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	p := newProgress(&environment{stderr: &stderr}, "importing", "lines", 100, 1000)
	p.to(200)
	check.Equal(t, stderr.String(), "", "want nothing at first: got %q")
	p.began = p.began.Add(-10 * time.Second)
	p.told = p.told.Add(-2 * progressEvery)
	p.to(600)
	p.to(601)
	out := stderr.String()
	if strings.Count(out, "\n") != 1 || !strings.Contains(out, "importing: 600 of 1000 lines, 50 a second, 8s left") {
		t.Errorf("want one line about 600 lines and the time left, got %q", out)
	}
	p.end()
	quiet := newProgress(&environment{stderr: &stderr, json: true}, "importing", "lines", 0, 1000)
	quiet.to(600)
	quiet.end()
	check.Equal(t, stderr.String(), out, "want silence: got %q")
}

// TestSurveyNamesTheLine: a bad line is found before anything is written, and a survey that is
// interrupted says why.
func TestSurveyNamesTheLine(t *testing.T) {
	t.Parallel()
	for content, line := range map[string]uint64{
		"{\"append\":\"a\"}\n\n": 2, "[]\n": 1, "{\"append\":\"a\"}\n{\"append\":\"a\"}\n{}": 3,
	} {
		_, err := surveyInput(t.Context(), strings.NewReader(content), modeOperations, ignore)
		bad, ok := errors.AsType[*lineError](err)
		if !ok || bad.Line != line || !strings.HasPrefix(err.Error(), fmt.Sprintf("line %d: ", line)) {
			t.Errorf("%q: got %v, want line %d", content, err, line)
		}
		// Lines that an earlier run has checked are not checked again.
		must.Do(t, check.Err(surveyInput(t.Context(), strings.NewReader(content), modeOperations, nil)),
			"%q: unchecked", content)
	}
	_, err := surveyInput(t.Context(), strings.NewReader(strings.Repeat("x", 1<<20+1)), modeLines, ignore)
	if bad, ok := errors.AsType[*lineError](err); !ok || bad.Line != 1 {
		t.Errorf("a line that is larger than a value: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupt := errors.New("an operator")
	cancel(interrupt)
	_, err = surveyInput(ctx, strings.NewReader(strings.Repeat("x\n", 2048)), modeLines, ignore)
	check.Is(t, err, interrupt, "interrupted")
}
