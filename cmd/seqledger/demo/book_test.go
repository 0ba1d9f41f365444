package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func TestBook(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "book")
	b, err := openBook(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.intend([]*payment{{tag: "a/1", cents: 10}, {tag: "a/2", cents: 20}}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time says nothing new
		if err := b.note("a/1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.note("b/1"); err == nil {
		t.Error("want an error for a payment that is not in the book")
	}
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	content, _ := os.ReadFile(path)
	if want := "intended a/1 10\nintended a/2 20\npaid a/1\n"; string(content) != want {
		t.Errorf("want %q, got %q", want, content)
	}
	// Killed in the middle of a line: it was never written.
	if err := os.WriteFile(path, append(content, "paid a/2"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err = openBook(path); err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if open := b.unpaid(); len(b.payments) != 2 || len(open) != 1 || *open[0] != (payment{tag: "a/2", cents: 20}) {
		t.Errorf("want two payments, the second open, got %v, open %v", b.payments, open)
	}
	if err := b.note("a/2"); err != nil {
		t.Fatal(err)
	}
	again, _, err := readBook(path)
	if err != nil || len(again.unpaid()) != 0 {
		t.Errorf("want nothing open, got %v (%v)", again.unpaid(), err)
	}
}

func TestBookRefuses(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		"hello\n", "paid a/1\n", "intended a/1 x\n", "intended a/1 1\nintended a/1 2\n",
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

func TestPaymentOf(t *testing.T) {
	t.Parallel()
	want := payment{tag: "client-1/17", cents: 1234}
	got, ok := paymentOf([]*seqledgerv1.Operation{want.operation()})
	if !ok || got != want {
		t.Errorf("want %v, got %v", want, got)
	}
	for _, operations := range [][]*seqledgerv1.Operation{nil, {{}}, {want.operation(), want.operation()}} {
		if p, ok := paymentOf(operations); ok {
			t.Errorf("want no payment in %v, got %v", operations, p)
		}
	}
}
