package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
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

// This work may run again, because its resource compares fencing tokens. When its owner does not come back, the next
// caller takes over.
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

// A ledger keeps the records. Results that it cannot take at once wait in a journal.
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

// A refusal is a result, too: retries get it without another attempt.
func ExampleRejectedError() {
	store := idempotency.Memory()
	key := idempotency.RecordKey{Namespace: "cards", Key: "order-9"}
	charge := func(context.Context, *idempotency.Owner) ([]byte, error) {
		fmt.Println("asking the bank")
		return nil, &idempotency.RejectedError{Response: []byte("card declined")}
	}
	for range 2 {
		_, err := idempotency.Do(context.Background(), store, key, charge)
		if rejected, ok := errors.AsType[*idempotency.RejectedError](err); ok {
			fmt.Println(string(rejected.Response))
		}
	}
	// Output:
	// asking the bank
	// card declined
	// card declined
}

// Reserve, work and complete by hand, for work that fits into no function or handler: for example, when one process
// starts the work and another finishes it.
func ExampleStore() {
	ctx, store := context.Background(), idempotency.Memory()
	request := &idempotency.ReserveRequest{
		Key:       idempotency.RecordKey{Namespace: "shipments", Key: "order-4711"},
		AttemptID: idempotency.NewAttemptID(),
	}
	reservation, err := store.Reserve(ctx, request)
	if err != nil {
		log.Fatal(err) // nothing is decided: send the same request again
	}
	if reservation.Outcome == idempotency.Acquired {
		owner := &idempotency.Ownership{Key: request.Key, Token: reservation.Token, AttemptID: request.AttemptID}
		// Do the work here.
		done, err := store.Complete(ctx, owner, idempotency.Result{Response: []byte("parcel 12")})
		if err != nil {
			log.Fatal(err) // as above
		}
		fmt.Println(done.Outcome)
	}
	again := *request
	again.AttemptID = idempotency.NewAttemptID()
	if reservation, err = store.Reserve(ctx, &again); err != nil {
		log.Fatal(err)
	}
	fmt.Println(reservation.Outcome, string(reservation.Record.Response))
	// Output:
	// OK
	// REPLAY parcel 12
}

// A handler knows the effects of its work better than its status can tell.
func ExampleFromContext() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner := idempotency.FromContext(r.Context()) // nil without a key
		if r.Header.Get("X-Simulate") == "no stock" {
			if owner != nil {
				owner.Leave(idempotency.ReleaseKey) // nothing was executed: the same key may be tried again
			}
			http.Error(w, "come back later", http.StatusServiceUnavailable)
			return
		}
		if owner == nil {
			fmt.Fprintln(w, "reserved, without protection")
			return
		}
		fmt.Fprintln(w, "reserved in attempt", owner.Attempt())
	})
	guarded := idempotency.Middleware(idempotency.Memory(), idempotency.Options{})(handler)
	for _, headers := range []map[string]string{
		{"Idempotency-Key": `"order-12"`, "X-Simulate": "no stock"}, {"Idempotency-Key": `"order-12"`}, {},
	} {
		request := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
		request.Header.Set("Authorization", "Bearer demo")
		for name, value := range headers {
			request.Header.Set(name, value)
		}
		answer := httptest.NewRecorder()
		guarded.ServeHTTP(answer, request)
		fmt.Print(answer.Code, " ", answer.Body)
	}
	// Output:
	// 503 come back later
	// 200 reserved in attempt 1
	// 200 reserved, without protection
}

// Two encodings of one request have the same fingerprint.
func ExampleNewFingerprint() {
	ctx := context.Background()
	of := func(body string) idempotency.Fingerprint {
		f, err := idempotency.NewFingerprint(ctx, idempotency.FingerprintJCS, nil, &idempotency.Request{
			Method: http.MethodPost, Namespace: "charges", MediaType: "application/json", Body: []byte(body),
		})
		if err != nil {
			log.Fatal(err)
		}
		return f
	}
	fmt.Println(of(`{"amount":5,"to":"a"}`) == of(`{ "to": "a", "amount": 5.0 }`))
	fmt.Println(of(`{"amount":5,"to":"a"}`) == of(`{"amount":6,"to":"a"}`))
	// Output:
	// true
	// false
}

// table is a database with the two methods that a store needs. For a real one they are a few lines of SQL: SELECT
// value, version, now(), and UPDATE … WHERE version = ….
type table struct {
	mu   sync.Mutex
	rows map[string]row
}

type row struct {
	value   []byte
	version int
}

func (t *table) Load(
	_ context.Context, key idempotency.Key,
) (value []byte, version string, now time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, ok := t.rows[key.Name]; ok {
		return r.value, strconv.Itoa(r.version), time.Now(), nil
	}
	return nil, "", time.Now(), nil
}

func (t *table) CompareAndSwap(
	_ context.Context, key idempotency.Key, version string, value []byte, _, _ time.Time,
) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.rows[key.Name]
	if ok && strconv.Itoa(r.version) != version || !ok && version != "" {
		return false, nil
	}
	t.rows[key.Name] = row{value, r.version + 1}
	return true, nil
}

// Any database with a compare-and-swap can back a store. Test yours with package storetest.
func ExampleNewStore() {
	store := idempotency.NewStore(&table{rows: map[string]row{}})
	key := idempotency.RecordKey{Namespace: "invoices", Key: "invoice-7"}
	for range 2 {
		done, err := idempotency.Do(context.Background(), store, key,
			func(context.Context, *idempotency.Owner) ([]byte, error) { return []byte("sent"), nil })
		fmt.Println(string(done.Response), done.Replayed, err)
	}
	// Output:
	// sent false <nil>
	// sent true <nil>
}

// A key can contain the number of a client's request.
func ExampleNewKey() {
	key := idempotency.NewKey("device:17", 42)
	clientID, sequence, nonce, err := idempotency.ParseKey(key)
	fmt.Println(clientID, sequence, len(nonce), err)
	// Output: device:17 42 16 <nil>
}
