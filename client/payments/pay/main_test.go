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

	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A name that the payment log cannot store is refused before the log is created.
func TestNameIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", " ", "front desk", "till ", " till", "till\t1", "till\n", "till\u00a01", "k\u00e4sse", "\xff",
		"\x7f", strings.Repeat("x", maxName+1),
	} {
		dir := t.TempDir()
		// The context has ended: an accepted name creates the log and then fails with another error.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := run(ctx, "127.0.0.1:0", dir, name, 1)
		if err == nil || !strings.Contains(err.Error(), "--name") {
			t.Errorf("%q: want an error that names the flag, got %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, logName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: there is a payment log (%v)", name, err)
		}
	}
}

// The log reads back the tags of every accepted name unchanged.
func TestNamesThatAreTakenCanBeReadBack(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	for c := '!'; c <= '~'; c++ {
		all.WriteRune(c)
	}
	for _, name := range []string{"till", "front-desk", "-", "intended", all.String(), strings.Repeat("x", maxName)} {
		must.Do(t, checkName(name))
		path, tag := filepath.Join(t.TempDir(), logName), fmt.Sprintf("%s-%d", name, 1)
		for round := range 3 {
			l, err := payments.OpenLog(path, true)
			if err != nil {
				t.Fatalf("%q, round %d: %v", name, round, err)
			}
			switch round {
			case 0:
				err = l.Intend(&payments.Payment{Tag: tag, Cents: 5})
			case 1:
				err = l.Note(payments.Outcome{Tag: tag}, payments.Outcome{Tag: tag, TxID: "tx"})
			}
			must.Do(t, errors.Join(err, l.Close()), "%q, round %d", name, round)
			all := l.Payments()
			if len(all) != 1 || all[0].Tag != tag || all[0].Paid != (round > 0) {
				t.Errorf("%q, round %d: the log has %+v", name, round, all)
			}
		}
	}
}
