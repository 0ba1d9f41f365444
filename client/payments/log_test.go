package payments

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The payment log refuses lines that it would not write itself.
func TestLogRefuses(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		"\n", "hello\n", "paid t-1 x\n", "intended t-1\n", "intended  5\n", "intended t-1 x\n",
		"intended t-1 1O0\n", "intended t-1 0x10\n",
		"intended t-1 1 2\n", "intended t-1  1\n", "intended t-1 01\n", "intended t-1 1\nintended t-1 2\n",
		"intended t-1 1\npaid t-1\n", "intended t-1 1\npaid t-1 x y\n", "intended t-1 1\nunsettled t-1 \n",
	} {
		path := filepath.Join(t.TempDir(), "log")
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
		if _, err := OpenLog(path, true); err == nil || !strings.Contains(err.Error(), "line") {
			t.Errorf("%q: want an error that names the line, got %v", content, err)
		}
	}
}

// FuzzLog: an accepted payment log means what its lines say, byte for byte, and keeps its whole lines.
func FuzzLog(f *testing.F) {
	f.Add(
		[]byte("intended t-1 100\nintended t-2 5\nunsettled t-1\npaid t-1 " +
			"01234567-89ab-8def-8000-000000000007\npaid t-2"))
	f.Add([]byte("intended t-1 1O0\n"))
	f.Add([]byte("intended t-1 -9223372036854775808\n"))
	f.Add([]byte("intended  \n\n"))
	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, content []byte) {
		must.Do(t, os.WriteFile(path, content, 0o600))
		l, err := OpenLog(path, true)
		if err != nil {
			return
		}
		defer func() { _ = l.Close() }()
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
			if at == len(l.payments) || fmt.Sprintf("intended %s %d\n", l.payments[at].Tag,
				l.payments[at].Cents) != line {
				t.Fatalf("%q is not read as it is written", line)
			}
			if paid := strings.Contains(whole, "\npaid "+l.payments[at].Tag+" "); paid != l.payments[at].Paid {
				t.Errorf("payment %q is paid: %v, the log says %v", l.payments[at].Tag, l.payments[at].Paid, paid)
			}
			at++
		}
		if at != len(l.payments) {
			t.Errorf("%d payments are intended, %d were read", at, len(l.payments))
		}
	})
}

// TestLog: an outcome is recorded once, and a line that a kill has cut counts as not written.
func TestLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	l, err := OpenLog(path, true)
	must.Do(t, err)
	must.Do(t, l.Intend(&Payment{Tag: "a/1", Cents: 10}, &Payment{Tag: "a/2", Cents: 20}))
	for range 2 {
		must.Do(t, l.Note(Outcome{"a/1", "tx-1"}))
	}
	if err := l.Note(Outcome{"b/1", "tx-2"}); err == nil {
		t.Error("want an error for a payment that is not in the log")
	}
	must.Do(t, l.Close())
	content, _ := os.ReadFile(path)
	if want := "intended a/1 10\nintended a/2 20\npaid a/1 tx-1\n"; string(content) != want {
		t.Errorf("want %q, got %q", want, content)
	}
	must.Do(t, os.WriteFile(path, append(content, "paid a/2 tx"...), 0o600))
	if l, err = OpenLog(path, true); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if open := l.Unpaid(); len(l.Payments()) != 2 || len(open) != 1 || *open[0] != (Payment{Tag: "a/2", Cents: 20}) {
		t.Errorf("want two payments, the second open, got %v, open %v", l.Payments(), open)
	}
	must.Do(t, l.Note(Outcome{"a/2", "tx-2"}))
	all, err := ReadLog(path)
	if err != nil || len(all) != 2 || !all[0].Paid || !all[1].Paid {
		t.Errorf("want both paid, got %v (%v)", all, err)
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	want := Payment{Tag: "client-1/17", Cents: 1234}
	if got, ok := Of([]*seqledgerv1.Operation{want.Operation()}); !ok || got != want {
		t.Errorf("want %v, got %v", want, got)
	}
	for _, operations := range [][]*seqledgerv1.Operation{
		nil, {{}}, {want.Operation(), want.Operation()}, {op.Set("balance/1", []byte("5"))},
		{op.Set("payment/1", []byte("five"))}, {op.Append([]byte("payment/1 5"))},
	} {
		if p, ok := Of(operations); ok {
			t.Errorf("want no payment in %v, got %v", operations, p)
		}
	}
}
