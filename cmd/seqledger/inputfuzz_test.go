package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// FuzzConfigFile: no file makes a panic, and an error names the file.
func FuzzConfigFile(f *testing.F) {
	for _, text := range []string{
		"", "listen: 127.0.0.1:1\n", "a: 1\na: 2\n", "- a\n", "a: &x b\nc: *x\n", "? {a: b}\n: c\n", "a: !!null\n", "a: &x [*x]\n",
	} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "c.yaml")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s := new(configSource)
		if err := s.load(path); err != nil && !strings.Contains(err.Error(), "c.yaml") {
			t.Errorf("%q: the error does not name the file: %v", content, err)
		}
	})
}

// FuzzImportState: no state file makes a panic.
func FuzzImportState(f *testing.F) {
	f.Add([]byte("{}"))
	f.Add([]byte("null"))
	f.Add([]byte(`{"version":1,"input":{"sha256":"","size":-1,"lines":0}}`))
	path := filepath.Join(f.TempDir(), "state")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if state, err := loadImportState(path); err != nil && state != nil {
			t.Errorf("%q: both a state and %v", content, err)
		}
	})
}
