package main

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// FuzzInputReader: the lines of any input are what it splits into at its
// newlines, in whatever pieces it comes.
func FuzzInputReader(f *testing.F) {
	for _, text := range []string{"", "\n", "a\nb", "a\r\n\n", "\x00\n\xff"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		want := bytes.SplitAfter(input, []byte("\n"))
		if last := len(want) - 1; len(want[last]) == 0 {
			want = want[:last]
		}
		for _, source := range []io.Reader{bytes.NewReader(input), iotest.OneByteReader(bytes.NewReader(input))} {
			r := newInputReader(source)
			for i, line := range want {
				got, err := r.next()
				if err != nil || !bytes.Equal(got, bytes.TrimSuffix(line, []byte("\n"))) {
					t.Fatalf("line %d of %q is %q, %v", i+1, input, got, err)
				}
			}
			if _, err := r.next(); !errors.Is(err, io.EOF) || r.summary().Size != int64(len(input)) {
				t.Fatalf("%q ends with %v and %+v", input, err, r.summary())
			}
		}
	})
}
