// Command gopayer does the same as client/typescript/test/payer.ts, with the Go client: in the test of the file
// journal, one resumes where the other was killed.
//
//	gopayer ADDRESS JOURNAL DONE COUNT
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// window is the number of payments in flight at once.
const window = 8

func main() {
	if err := pay(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "gopayer:", err)
		os.Exit(1)
	}
}

// pay makes the payments that are not noted as done.
func pay(address, path, donePath, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	done, note, err := openDone(donePath)
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := client.New(client.Options{Server: address})
	if err != nil {
		return err
	}
	j, err := journal.Open(path, journal.Options{})
	if err != nil {
		return err
	}
	w, err := writer.Open(ctx, c, writer.Options{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientID: "till-1", Journal: j,
	})
	if err != nil {
		return err
	}
	settle := func(all []*writer.Pending) error {
		for _, p := range all {
			if _, err := p.Wait(ctx); err != nil {
				return err
			}
			if err := note(p.Tag()); err != nil {
				return err
			}
			if err := p.Acknowledge(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := settle(w.Recovered()); err != nil {
		return err
	}
	var batch []*writer.Pending
	for i := range n {
		tag := fmt.Sprintf("pay-%d", i)
		if done[tag] {
			continue
		}
		p, err := w.SubmitTagged(ctx, tag, op.Append([]byte(tag)))
		if err != nil {
			return err
		}
		if batch = append(batch, p); len(batch) == window {
			if err := settle(batch); err != nil {
				return err
			}
			batch = nil
		}
	}
	if err := settle(batch); err != nil {
		return err
	}
	if err := w.Close(ctx); err != nil {
		return err
	}
	return j.Close()
}

// openDone reads the completed payments, and returns the function that durably notes more.
func openDone(path string) (map[string]bool, func(string) error, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	done := make(map[string]bool)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		done[lines.Text()] = true
	}
	return done, func(tag string) error {
		done[tag] = true
		if _, err := file.WriteString(tag + "\n"); err != nil {
			return err
		}
		return file.Sync()
	}, nil
}
