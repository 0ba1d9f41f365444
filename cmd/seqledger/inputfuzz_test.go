package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// FuzzConfigFile: no file makes a panic, and an error names the file.
func FuzzConfigFile(f *testing.F) {
	for _, text := range []string{
		"", "listen: 127.0.0.1:1\n", "a: 1\na: 2\n", "- a\n", "a: &x b\nc: *x\n",
		"? {a: b}\n: c\n", "a: !!null\n", "a: &x [*x]\n",
	} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "c.yaml")
	f.Fuzz(func(t *testing.T, content []byte) {
		must.Do(t, os.WriteFile(path, content, 0o600))
		s := new(configSource)
		if err := s.load(path); err != nil && !strings.Contains(err.Error(), "c.yaml") {
			t.Errorf("%q: the error does not name the file: %v", content, err)
		}
	})
}
