package examples_test

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
)

// The example forms is a form intake that requires a key for each form, and accepts each form once.
//
//	GET  /intake/contact       # returns an empty form: {"key":"KEY","proof":"PROOF"}
//	POST /intake/contact       # with Idempotency-Key: "KEY" and Intake-Proof: PROOF
//
// A key is unique within an intake and a party. For a user, the party is the user. An anonymous visitor has no
// identity, so a form handed to a visitor carries a proof, which only that visitor has: a caller that sends the proof
// counts as that visitor. When the visitor signs in before the answer has arrived, the page sends the form again, with
// the proof and the user's credential (try 'Authorization: Bearer alice-secret'), and gets the answer that the visitor
// would have got. The proof then belongs to that user: if another user sends it, it is ignored.
func formsMain() {
	listen := flag.String("listen", "127.0.0.1:8082", "address to listen on")
	ledger := flag.String("server", "127.0.0.1:7450", "address of the ledger")
	secret := flag.String("secret", rand.Text(), "what proofs are signed with; random: they end with this process")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serveForms(ctx, *listen, *ledger, []byte(*secret)); err != nil {
		fmt.Fprintln(os.Stderr, "forms:", err)
		os.Exit(1)
	}
}

func serveForms(ctx context.Context, listen, ledger string, secret []byte) (err error) {
	c, err := client.New(client.Options{Server: ledger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("forms on http://%s\n", listener.Addr())
	i := &intake{store: idempotency.Ledger(c), secret: secret}
	server := &http.Server{Handler: i.handler(), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// users are the demo's credentials. A real program uses its session store.
var users = map[string]string{"Bearer alice-secret": "alice", "Bearer bob-secret": "bob"}

// headerProof carries the proof of a form that was handed to a visitor.
const headerProof = "Intake-Proof"

// recordTTL is how long an answer is kept, and proofTTL how long a proof belongs to the first user who sends it.
// proofTTL is longer, so that no other user ever finds a record under the proof.
const (
	recordTTL = 24 * time.Hour
	proofTTL  = 30 * 24 * time.Hour
)

type intake struct {
	store  idempotency.Store
	secret []byte
}

// formsScope is the scope of the records.
var formsScope = idempotency.Scope{Organization: "forms"}

// partyKey is the context key of a request's party.
type partyKey struct{}

func (i *intake) handler() http.Handler {
	once := idempotency.Middleware(i.store, idempotency.Options{
		Settings:  idempotency.Settings{TTL: recordTTL},
		Scope:     formsScope,
		Required:  true,
		Namespace: func(r *http.Request) string { return "intake/" + r.PathValue("name") },
		Principal: func(ctx context.Context, _ http.Header) (string, error) {
			party, _ := ctx.Value(partyKey{}).(string)
			return party, nil
		},
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /intake/{name}", i.form)
	mux.Handle("POST /intake/{name}", i.identified(once(http.HandlerFunc(acceptForm))))
	return mux
}

// form hands out an empty form: a key, and for a visitor a proof.
func (i *intake) form(w http.ResponseWriter, r *http.Request) {
	form := struct {
		Key   string `json:"key"`
		Proof string `json:"proof,omitempty"`
	}{Key: idempotency.NewUUID()}
	if r.Header.Get("Authorization") == "" {
		nonce := rand.Text()
		form.Proof = nonce + "." + i.sign(nonce)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(form) // an error means that the client has disconnected
}

func (i *intake) sign(nonce string) string {
	h := hmac.New(sha256.New, i.secret)
	h.Write([]byte(nonce))
	return hex.EncodeToString(h.Sum(nil))
}

// identified determines the party of a request before the middleware looks for its key.
func (i *intake) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := ""
		if credential := r.Header.Get("Authorization"); credential != "" {
			if user = users[credential]; user == "" {
				http.Error(w, "the credential is not known", http.StatusUnauthorized)
				return
			}
		}
		party, err := i.party(r.Context(), user, r.Header.Get(headerProof))
		if err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "nothing was taken: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), partyKey{}, party)))
	})
}

// party returns the party of a request, or "" if it has none.
//
// A form that a visitor began stays the visitor's, even when a user sends it. If the user's own records were looked up
// instead, a copy of the visitor's request that is still in flight could be accepted as well. The proof belongs to the
// first user who sends it; the ledger decides who that is.
func (i *intake) party(ctx context.Context, user, proof string) (string, error) {
	nonce, signature, _ := strings.Cut(proof, ".")
	if !hmac.Equal([]byte(signature), []byte(i.sign(nonce))) {
		nonce = ""
	}
	sum := sha256.Sum256([]byte(nonce))
	visitor := "visitor:" + hex.EncodeToString(sum[:])
	switch {
	case nonce == "" && user == "":
		return "", nil
	case nonce == "":
		return "user:" + user, nil
	case user == "":
		return visitor, nil
	}
	claim := idempotency.DoOptions{
		// It is harmless to assign a proof to the same user twice.
		Settings:    idempotency.Settings{TTL: proofTTL, OnLeaseExpired: idempotency.TakeOver},
		Fingerprint: idempotency.Fingerprint{Algorithm: 1, Digest: sha256.Sum256([]byte(user))},
	}
	key := idempotency.RecordKey{Scope: formsScope, Namespace: "proofs", Key: visitor}
	_, err := claim.Do(ctx, i.store, key, func(context.Context, *idempotency.Owner) ([]byte, error) { return nil, nil })
	switch {
	case idempotency.CodeOf(err) == idempotency.CodeKeyReused: // it belongs to another user
		return "user:" + user, nil
	case err != nil:
		return "", err
	}
	return visitor, nil
}

// acceptForm accepts a form. This example only prints it.
func acceptForm(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil || len(r.PostForm) == 0 {
		http.Error(w, "the form is empty", http.StatusBadRequest)
		return
	}
	id := idempotency.NewUUID()
	fmt.Printf("%s %s: %s\n", id, r.PathValue("name"), r.PostForm.Encode())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]string{"submission": id}) // it fails if the client has disconnected
}
