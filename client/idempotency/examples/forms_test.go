package examples_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
)

// The example forms is a form intake that requires a key for each form, and accepts each form once.
//
//	GET  /intake/contact       # returns an empty form: {"key":"KEY","visitor":"SECRET"}
//	POST /intake/contact       # with Idempotency-Key: "KEY" and Intake-Visitor: SECRET
//
// A key is unique within an intake and a party. For a user, the party is the user. An anonymous visitor has no
// identity, so a form handed to a visitor carries a secret, which only that visitor has: a caller that sends it counts
// as that visitor. When the visitor signs in before the answer has arrived, the page sends the form again, with the
// secret and the user's credential (try 'Authorization: Bearer alice-secret'), and gets the answer that the visitor
// would have got. The secret then belongs to that user: if another user sends it, it is ignored.
func formsMain() {
	listen := flag.String("listen", "127.0.0.1:8082", "address to listen on")
	ledger := flag.String("server", "127.0.0.1:7450", "address of the ledger")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serveForms(ctx, *listen, *ledger); err != nil {
		fmt.Fprintln(os.Stderr, "forms:", err)
		os.Exit(1)
	}
}

func serveForms(ctx context.Context, listen, ledger string) (err error) {
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
	server := &http.Server{Handler: formsHandler(idempotency.Ledger(c)), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// users are the demo's credentials. A real program uses its session store.
var users = map[string]string{"Bearer alice-secret": "alice", "Bearer bob-secret": "bob"}

// headerVisitor carries the secret of a form that was handed to a visitor.
const headerVisitor = "Intake-Visitor"

func formsHandler(store idempotency.Store) http.Handler {
	once := idempotency.Middleware(store, idempotency.Options{
		Scope:         idempotency.Scope{Organization: "forms"},
		Required:      true,
		Namespace:     func(r *http.Request) string { return "intake/" + r.PathValue("name") },
		VisitorHeader: headerVisitor,
		Principal: func(_ context.Context, header http.Header) (string, error) {
			credential := header.Get("Authorization")
			user := users[credential]
			if credential != "" && user == "" {
				return "", errors.New("the credential is not known")
			}
			return user, nil // "" for a visitor
		},
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /intake/{name}", handOut)
	mux.Handle("POST /intake/{name}", once(http.HandlerFunc(acceptForm)))
	return mux
}

// handOut hands out an empty form: a key, and for a visitor a secret.
func handOut(w http.ResponseWriter, r *http.Request) {
	form := struct {
		Key     string `json:"key"`
		Visitor string `json:"visitor,omitempty"`
	}{Key: idempotency.NewUUID()}
	if r.Header.Get("Authorization") == "" {
		form.Visitor = rand.Text()
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(form) // an error means that the client has disconnected
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
