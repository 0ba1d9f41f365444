package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The book refuses what it has not written itself.
func TestBookRefuses(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		"\n", "hello\n", "paid t-1 x\n", "intended t-1\n", "intended  5\n", "intended t-1 x\n",
		"intended t-1 1O0\n", "intended t-1 0x10\n",
		"intended t-1 1 2\n", "intended t-1  1\n", "intended t-1 01\n", "intended t-1 1\nintended t-1 2\n",
		"intended t-1 1\npaid t-1\n", "intended t-1 1\npaid t-1 x y\n", "intended t-1 1\nunsettled t-1 \n",
	} {
		path := filepath.Join(t.TempDir(), "book")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openBook(path); err == nil || !strings.Contains(err.Error(), "line") {
			t.Errorf("%q: want an error that names the line, got %v", content, err)
		}
	}
}

// FuzzBook: a book that is taken says what its lines say, to the byte, and keeps
// its whole lines.
func FuzzBook(f *testing.F) {
	f.Add(
		[]byte("intended t-1 100\nintended t-2 5\nunsettled t-1\npaid t-1 01234567-89ab-8def-8000-000000000007\npaid t-2"))
	f.Add([]byte("intended t-1 1O0\n"))
	f.Add([]byte("intended t-1 -9223372036854775808\n"))
	f.Add([]byte("intended  \n\n"))
	path := filepath.Join(f.TempDir(), "book")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := openBook(path)
		if err != nil {
			return
		}
		defer func() { _ = b.close() }()
		whole := string(content[:strings.LastIndexByte(string(content), '\n')+1])
		kept, err := os.ReadFile(path)
		if err != nil || string(kept) != whole {
			t.Errorf("%q became %q, %v", whole, kept, err)
		}
		intended, at := "", 0
		for line := range strings.Lines(whole) {
			if !strings.HasPrefix(line, "intended ") {
				continue
			}
			intended += line
			if at == len(b.payments) || fmt.Sprintf("intended %s %d\n", b.payments[at].tag, b.payments[at].cents) != line {
				t.Fatalf("%q is not read as it is written", line)
			}
			if paid := strings.Contains(whole, "\npaid "+b.payments[at].tag+" "); paid != b.payments[at].paid {
				t.Errorf("payment %q is paid: %v, the book says %v", b.payments[at].tag, b.payments[at].paid, paid)
			}
			at++
		}
		if at != len(b.payments) {
			t.Errorf("%d payments are intended, %d were read", at, len(b.payments))
		}
	})
}
