package ledger_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

func openExample() (l *ledger.Ledger, done func()) {
	dir, err := os.MkdirTemp("", "seqledger-example-*")
	if err != nil {
		log.Fatal(err)
	}
	l, err = ledger.Open(context.Background(), ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	return l, func() {
		if err := l.Close(); err != nil {
			log.Fatal(err)
		}
		_ = os.RemoveAll(dir)
	}
}

// A write that is sent twice happens once, and both answers are the same.
func ExampleLedger_Write() {
	l, done := openExample()
	defer done()
	payment := &machine.Write{
		Scope:    machine.Scope{Organization: "acme", Vault: "main"},
		ClientID: "till-7",
		Actor:    "system:example",
		Sequence: 1,
		Operations: []machine.Operation{
			{Kind: machine.OpSetEntity, Key: []byte("balance/42"), Value: []byte("100")},
		},
	}
	for range 2 {
		out, err := l.Write(context.Background(), payment)
		if err != nil {
			log.Fatal(err) // the outcome is unknown: send the same write again
		}
		fmt.Println(out.Code, "at index", out.Receipt.Index)
	}
	// Output:
	// COMMITTED at index 2
	// REPLAYED at index 2
}

// A client that has lost its place asks where to go on.
func ExampleLedger_View() {
	l, done := openExample()
	defer done()
	scope := machine.Scope{Organization: "acme"}
	for sequence := uint64(1); sequence <= 3; sequence++ {
		_, err := l.Write(context.Background(), &machine.Write{
			Scope: scope, ClientID: "till-7", Actor: "system:example", Sequence: sequence,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("sold one")}},
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	err := l.View(context.Background(), func(v machine.View) error {
		state, _, err := v.Stream(scope, "till-7")
		fmt.Println("next sequence:", state.Last+1)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: next sequence: 4
}

// A new session fences every older one.
func ExampleLedger_OpenSession() {
	l, done := openExample()
	defer done()
	scope := machine.Scope{Organization: "acme", Vault: "main"}
	open := func(attempt byte) uint64 {
		out, err := l.OpenSession(context.Background(), &machine.OpenSession{
			Scope: scope, ClientID: "till-7", Actor: "system:example", AttemptID: [16]byte{attempt},
		})
		if err != nil {
			log.Fatal(err)
		}
		return out.Session
	}
	first, second := open(1), open(2)
	for _, session := range []uint64{first, second} {
		out, err := l.Write(context.Background(), &machine.Write{
			Scope: scope, ClientID: "till-7", Actor: "system:example", Session: session, Sequence: 1,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("sold one")}},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(out.Code)
	}
	// Output:
	// SESSION_FENCED
	// COMMITTED
}
