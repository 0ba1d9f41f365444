package writer_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// serveExample starts a ledger for an example and returns its address.
func serveExample() (address string, stop func()) {
	s := &fakeServer{ledger: newFakeLedger()}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return listener.Addr().String(), s.serve(listener)
}

// A Writer numbers writes, and every error says what may be concluded.
func Example() {
	address, stop := serveExample()
	defer stop()
	ctx := context.Background()

	c, err := client.New(client.Options{Server: address})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	scope := &seqledgerv1.Scope{Organization: "acme"}
	w, err := writer.Open(ctx, c, writer.Options{Scope: scope, ClientID: "billing-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	receipt, err := w.Write(ctx, op.Set("invoice-7", []byte("100"), op.IfAbsent()))
	fmt.Println("committed as", receipt.GetSequence(), err)

	_, err = w.Write(ctx, op.Set("invoice-7", []byte("200"), op.IfAbsent()))
	fmt.Println("again:", err)
	fmt.Println("safe to submit anew:", errors.Is(err, failure.ErrNotExecuted))

	receipt, err = w.Write(ctx, op.Set("invoice-8", []byte("200"), op.IfAbsent()))
	fmt.Println("committed as", receipt.GetSequence(), err)
	fmt.Println("close:", w.Close(ctx))
	// Output:
	// committed as 1 <nil>
	// again: write 2 not executed: KEY_EXISTS
	// safe to submit anew: true
	// committed as 2 <nil>
	// close: <nil>
}

// Submit pipelines: many writes are on their way at once, in order.
func ExampleWriter_Submit() {
	address, stop := serveExample()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Options{Server: address})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	w, err := writer.Open(ctx, c, writer.Options{Scope: &seqledgerv1.Scope{Organization: "acme"},
		ClientID: "import"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 1000 {
		if _, err := w.Submit(ctx, op.Append(fmt.Append(nil, "row ", i))); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("flush:", w.Flush(ctx))
	fmt.Println("next number:", w.State().NextSequence)
	// Output:
	// flush: <nil>
	// next number: 1001
}

// After a refusal of a write that was submitted without waiting, the Writer stops until
// the application has looked: what follows was submitted in the belief that it commits.
func ExampleWriter_Resume() {
	address, stop := serveExample()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Options{Server: address})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	w, err := writer.Open(ctx, c, writer.Options{Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientID: "stock"})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := w.Submit(ctx, op.Set("stock/1", []byte("5"), op.IfPresent()))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = p.Wait(ctx)
	fmt.Println(err)
	_, err = w.Submit(ctx, op.Append([]byte("stock/1 is 5")))
	fmt.Println("stopped:", errors.Is(err, writer.ErrStopped))
	fmt.Println("resume:", w.Resume(ctx))
	receipt, err := w.Write(ctx, op.Set("stock/1", []byte("5")))
	fmt.Println("committed as", receipt.GetSequence(), err)
	// Output:
	// write 1 not executed: KEY_NOT_FOUND
	// stopped: true
	// resume: <nil>
	// committed as 1 <nil>
}

// When the context of a Write ends first, the error has the write to wait on further: the
// Writer still settles it.
func ExampleOutcomeUnknownError() {
	address, stop := serveExample()
	defer stop()
	c, err := client.New(client.Options{Server: address})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	w, err := writer.Open(context.Background(),
		c, writer.Options{Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientID: "web"})
	if err != nil {
		fmt.Println(err)
		return
	}
	write := func(ctx context.Context) (*seqledgerv1.Receipt, error) {
		receipt, err := w.Write(ctx, op.Append([]byte("order 7")))
		if open, ok := errors.AsType[*failure.OutcomeUnknownError](err); ok && open.Pending != nil {
			return open.Pending.Wait(context.WithoutCancel(ctx)) // for as long as it takes
		}
		return receipt, err
	}
	receipt, err := write(context.Background())
	fmt.Println("committed as", receipt.GetSequence(), err)
	// Output:
	// committed as 1 <nil>
}

// A write that the caller numbers itself is repeated safely with the same
// sequence and key.
func ExampleClient_Write() {
	address, stop := serveExample()
	defer stop()
	c, err := client.New(client.Options{Server: address})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	request := &seqledgerv1.WriteRequest{
		Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientId: "cron", Sequence: 1,
		IdempotencyKey: "0197e1c0-0000-7000-8000-000000000001",
		Operations:     []*seqledgerv1.Operation{op.Append([]byte("nightly run"))},
	}
	for range 2 {
		receipt, err := c.Write(context.Background(), request)
		fmt.Println(receipt.GetTxId(), "replayed:", receipt.GetReplayed(), err)
	}
	// Output:
	// 01234567-89ab-8cde-bc00-000000000002 replayed: false <nil>
	// 01234567-89ab-8cde-bc00-000000000002 replayed: true <nil>
}

// A program that was killed continues with its journal: it first asks for the outcomes of the
// writes that were under way.
func ExampleWriter_SubmitTagged() {
	address, stop := serveExample()
	defer stop()
	dir, err := os.MkdirTemp("", "example-*")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	for _, life := range []string{"first", "second"} {
		err := payRent(address, filepath.Join(dir, "journal"), life)
		fmt.Println(life, "life ends:", err)
	}
	// Output:
	// first life: rent-11 is committed as 1
	// first life ends: <nil>
	// second life: recovered rent-11, committed as 1
	// second life: rent-12 is committed as 2
	// second life ends: <nil>
}

// payRent is one life of a program that pays the rent of a month.
func payRent(address, path, life string) error {
	ctx := context.Background()
	j, err := journal.Open(path, journal.Options{})
	if err != nil {
		return err
	}
	defer j.Close()
	c, err := client.New(client.Options{Server: address})
	if err != nil {
		return err
	}
	defer c.Close()
	w, err := writer.Open(ctx,
		c, writer.Options{Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientID: "rent", Journal: j})
	if err != nil {
		return err // an UnsettledError lists the writes that the application must settle
	}
	noted := make(map[string]bool) // stands for the program's own database
	for _, p := range w.Recovered() {
		receipt, err := p.Wait(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%s life: recovered %s, committed as %d\n", life, p.Tag(), receipt.GetSequence())
		noted[p.Tag()] = true
		if err := p.Acknowledge(); err != nil {
			return err
		}
	}
	month := "rent-11"
	if noted[month] {
		month = "rent-12"
	}
	p, err := w.SubmitTagged(ctx, month, op.Append([]byte("pay "+month)))
	if err != nil {
		return err
	}
	receipt, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s life: %s is committed as %d\n", life, month, receipt.GetSequence())
	// The first life ends here, before it has noted the outcome.
	return nil
}
