// Command pay is the example program of package payments.
//
//	go run ./client/payments/pay --server 127.0.0.1:7450 --dir ./pay --payments 100
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/payments"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func main() {
	server := flag.String("server", "127.0.0.1:7450", "address of the ledger")
	dir := flag.String("dir", ".", "directory of the payment log and the journal")
	name := flag.String("name", "till", "client id, without spaces")
	count := flag.Int("payments", 10, "how many new payments to make")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *dir, *name, *count); err != nil {
		fmt.Fprintln(os.Stderr, "pay:", err)
		os.Exit(1)
	}
}

// logName is the name of the payment log's file.
const logName = "book"

// maxName bounds the name, because a tag has at most 256 bytes and appends a number to it.
const maxName = 200

// checkName refuses a name that the payment log could not store: the name is part of every tag, and the log separates
// words with spaces. It runs before the first intention is recorded, because the log never removes an entry.
func checkName(name string) error {
	outside := func(r rune) bool { return r <= ' ' || r > '~' }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, outside) {
		return fmt.Errorf(
			"--name %q: a name is 1 to %d printable ASCII characters without spaces; use a dash, as in "+
				"front-desk", name, maxName)
	}
	return nil
}

func run(ctx context.Context, server, dir, name string, count int) (err error) {
	if err := checkName(name); err != nil {
		return err
	}
	log, err := payments.OpenLog(filepath.Join(dir, logName), true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	c, err := client.New(client.Options{Server: server})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	payer, err := payments.Open(ctx, payments.Options{
		Client: c, Dir: dir, Scope: scope(), ClientID: name, Log: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, payer.Close(ctx)) }()

	// What is intended and not paid was never sent.
	if err := payer.Post(ctx, log.Unpaid()); err != nil {
		return err
	}
	for count > 0 {
		var due []*payments.Payment
		for range min(payments.Batch, count) {
			number := len(log.Payments()) + len(due) + 1
			due = append(due, &payments.Payment{Tag: fmt.Sprintf("%s-%d", name, number),
				Cents: 1 + rand.Int64N(10_000)})
		}
		count -= len(due)
		if err := log.Intend(due...); err != nil {
			return err
		}
		if err := payer.Post(ctx, due); err != nil {
			return err
		}
	}
	return nil
}

func scope() *seqledgerv1.Scope {
	return &seqledgerv1.Scope{Organization: "shop", Vault: "payments"}
}
