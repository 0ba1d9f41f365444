package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// A second call with the key gets the result of the first.
func ExampleDo() {
	store := idempotency.Memory()
	key := idempotency.RecordKey{Namespace: "invoices", Key: "invoice-7"}
	send := func(context.Context, *idempotency.Owner) ([]byte, error) {
		fmt.Println("sending invoice 7")
		return []byte("message 31"), nil
	}
	for range 2 {
		done, err := idempotency.Do(context.Background(), store, key, send)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, replayed %v\n", done.Response, done.Replayed)
	}
	// Output:
	// sending invoice 7
	// message 31, replayed false
	// message 31, replayed true
}

// Work that may run again, because its resource compares fencing tokens, goes to the next caller
// when its owner does not come back.
func ExampleDoOptions_Do() {
	options := idempotency.DoOptions{Settings: idempotency.Settings{
		Lease: 10 * time.Second, OnLeaseExpired: idempotency.TakeOver,
	}}
	key := idempotency.RecordKey{Namespace: "exports", Key: "2026-11"}
	done, err := options.Do(context.Background(), idempotency.Memory(), key,
		func(ctx context.Context, owner *idempotency.Owner) ([]byte, error) {
			from := string(owner.LastCheckpoint()) // empty for the first owner
			if err := owner.Checkpoint(ctx, []byte("row 5000")); err != nil {
				return nil, err
			}
			return fmt.Appendf(nil, "from %q under token %d", from, owner.Token()), nil
		})
	fmt.Println(string(done.Response), err)
	// Output:
	// from "" under token 1 <nil>
}

// A handler runs once for each key.
func ExampleMiddleware() {
	charges := 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		fmt.Fprintf(w, "charge %d", charges)
	})
	server := httptest.NewServer(idempotency.Middleware(idempotency.Memory(), idempotency.Options{})(handler))
	defer server.Close()
	for range 2 {
		request, err := http.NewRequest(http.MethodPost, server.URL+"/charge", strings.NewReader(`{"amount":5}`))
		if err != nil {
			log.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer demo")
		request.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(body), answer.Header.Get("Idempotent-Replayed"))
		_ = answer.Body.Close()
	}
	// Output:
	// charge 1 false
	// charge 1 true
}

// Records are in a ledger, and results that it cannot take at once wait in a journal.
func ExampleLedger() {
	c, err := client.New(client.Options{Server: "127.0.0.1:7450"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	store := idempotency.Ledger(c)
	journal, err := idempotency.OpenJournal("/var/lib/shop/results", store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer journal.Close()
	guarded := idempotency.Middleware(store, idempotency.Options{
		Settings:    idempotency.Settings{Journal: journal},
		Scope:       idempotency.Scope{Organization: "shop"},
		Required:    true,
		Fingerprint: idempotency.FingerprintJCS,
	})
	log.Fatal(http.ListenAndServe(":8080", guarded(http.DefaultServeMux)))
}

// A Connect, gRPC and gRPC-Web handler with keys.
func ExampleInterceptor() {
	once := idempotency.Interceptor(idempotency.Memory(), idempotency.Options{})
	mux := http.NewServeMux()
	mux.Handle(seqledgerv1connect.NewLedgerServiceHandler(
		seqledgerv1connect.UnimplementedLedgerServiceHandler{}, connect.WithInterceptors(once)))
}

// A key with the number of a client's request in it.
func ExampleNewKey() {
	key := idempotency.NewKey("device:17", 42)
	clientID, sequence, nonce, err := idempotency.ParseKey(key)
	fmt.Println(clientID, sequence, len(nonce), err)
	// Output: device:17 42 16 <nil>
}
