package importing

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
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

// FuzzImportState: a state file that is taken is nothing but a state, and is the
// same state when it is saved and loaded again.
func FuzzImportState(f *testing.F) {
	f.Add([]byte("{}"))
	f.Add([]byte("null"))
	f.Add([]byte(`{"format":1,"sha256":"","size":-1,"lines":0,"attempt_id":"00112233445566778899AABBCCDDEEFF"}`))
	f.Add([]byte(`{"format":1,"base":7,"session":3,"done":true}{"format":1}`))
	f.Add([]byte(`{"format":1}]`))
	path := filepath.Join(f.TempDir(), "state")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		state, err := Load(path)
		if err != nil {
			if state != nil {
				t.Errorf("%q: both a state and %v", content, err)
			}
			return
		}
		if !json.Valid(content) {
			t.Errorf("%q was taken for a state", content)
		}
		saved, err := json.Marshal(state) // as save does, which also waits for the disk
		if err == nil {
			err = os.WriteFile(path, saved, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Load(path); err != nil || *again != *state {
			t.Errorf("%+v is saved and loaded as %+v, %v", state, again, err)
		}
	})
}
