package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A name that would make a book which cannot be read again is refused before
// there is a book.
func TestNameIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", " ", "front desk", "till ", " till", "till\t1", "till\n", "till\u00a01", "k\u00e4sse", "\xff",
		"\x7f", strings.Repeat("x", maxName+1),
	} {
		dir := t.TempDir()
		// The context has ended, so that a name which passes leads to a book and
		// then to another error.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := run(ctx, "127.0.0.1:0", dir, name, 1)
		if err == nil || !strings.Contains(err.Error(), "--name") {
			t.Errorf("%q: want an error that names the flag, got %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "book")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: there is a book (%v)", name, err)
		}
	}
}

// The tags of every name that is taken come back out of the book as they went in.
func TestNamesThatAreTakenCanBeReadBack(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	for c := '!'; c <= '~'; c++ {
		all.WriteRune(c)
	}
	for _, name := range []string{"till", "front-desk", "-", "intended", all.String(), strings.Repeat("x", maxName)} {
		if err := checkName(name); err != nil {
			t.Fatal(err)
		}
		path, tag := filepath.Join(t.TempDir(), "book"), fmt.Sprintf("%s-%d", name, 1)
		for round := range 3 {
			b, err := openBook(path)
			if err != nil {
				t.Fatalf("%q, round %d: %v", name, round, err)
			}
			switch round {
			case 0:
				err = b.intend(&payment{tag: tag, cents: 5})
			case 1:
				err = b.note(outcome{tag: tag}, outcome{tag, "tx"})
			}
			if err := errors.Join(err, b.close()); err != nil {
				t.Fatalf("%q, round %d: %v", name, round, err)
			}
			if len(b.payments) != 1 || b.payments[0].tag != tag || b.payments[0].paid != (round > 0) {
				t.Errorf("%q, round %d: the book has %+v", name, round, b.payments)
			}
		}
	}
}
