package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
)

// The example submit is a service that submits jobs to a runner at most once per key.
//
//	POST /jobs       # with Idempotency-Key and a job
//	GET  /jobs       # with Idempotency-Key: the state of its job
//
// Concurrent requests with one key wait for the first of them (up to --wait) and get its job. The same key with other
// bytes is a conflict, even if only the white space differs. A job that the runner refuses stays refused for
// --rejected. If this program is killed while it submits a job, the job may or may not run: the key is then
// INDETERMINATE, nothing submits the job again, and seqledger key resolve settles it.
func submitMain() {
	listen := flag.String("listen", "127.0.0.1:8081", "address to listen on")
	ledger := flag.String("server", "127.0.0.1:7450", "address of the ledger")
	runner := flag.String("runner", "", "URL that takes a job with POST; empty prints it")
	lease := flag.Duration("lease", idempotency.DefaultLease, "how long the ledger waits when this program is killed")
	wait := flag.Duration("wait", idempotency.DefaultWait, "how long a repeat waits for the first request")
	rejected := flag.Duration("rejected", idempotency.DefaultRejectedTTL, "how long a refusal is kept")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &service{runner: *runner, options: idempotency.DoOptions{Settings: idempotency.Settings{
		Lease: *lease, Wait: *wait, RejectedTTL: *rejected,
	}}}
	if err := s.serve(ctx, *listen, *ledger); err != nil {
		fmt.Fprintln(os.Stderr, "submit:", err)
		os.Exit(1)
	}
}

type service struct {
	runner  string
	store   idempotency.Store
	options idempotency.DoOptions
}

func (s *service) serve(ctx context.Context, listen, ledger string) (err error) {
	c, err := client.New(client.Options{Server: ledger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	s.store = idempotency.Ledger(c)
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("submit on http://%s\n", listener.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs", s.submit)
	mux.HandleFunc("GET /jobs", s.state)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// recordKey returns the record key of an idempotency key. It has no principal: the keys belong to this service.
func recordKey(key string) idempotency.RecordKey {
	return idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "submit"}, Namespace: "jobs", Key: key,
	}
}

// status is what a client sees of a key.
type status struct {
	State    string `json:"state"`              // PENDING, COMMITTED, REJECTED or INDETERMINATE
	Job      string `json:"job,omitempty"`      // the runner's id of the job
	Reason   string `json:"reason,omitempty"`   // reason of a refusal
	Replayed bool   `json:"replayed,omitempty"` // an earlier request did it
}

// submit submits a job, once per key.
func (s *service) submit(w http.ResponseWriter, r *http.Request) {
	key, err := idempotency.ParseHeader(r.Header, false)
	if err != nil || key == "" {
		http.Error(w, "one valid Idempotency-Key is required", http.StatusBadRequest)
		return
	}
	job, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
	if err != nil {
		http.Error(w, "the job has more than 64 KiB", http.StatusRequestEntityTooLarge)
		return
	}
	options := s.options
	// The bytes are compared, as a client repeats what it has stored: the same job in another encoding is a conflict.
	options.Fingerprint, err = idempotency.NewFingerprint(r.Context(), idempotency.FingerprintRaw, nil,
		&idempotency.Request{Method: http.MethodPost, Namespace: "jobs", Body: job})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// If the client disconnects, the submission continues, and the next request gets its result.
	ctx := context.WithoutCancel(r.Context())
	done, err := options.Do(ctx, s.store, recordKey(key),
		func(ctx context.Context, owner *idempotency.Owner) ([]byte, error) {
			return s.run(ctx, job, owner)
		})
	if err != nil {
		s.failed(w, err)
		return
	}
	writeStatus(w, http.StatusCreated, status{State: "COMMITTED", Job: string(done.Response), Replayed: done.Replayed})
}

// failed answers a request that has no job.
func (s *service) failed(w http.ResponseWriter, err error) {
	if rejected, ok := errors.AsType[*idempotency.RejectedError](err); ok {
		writeStatus(w, http.StatusUnprocessableEntity, status{State: "REJECTED", Reason: string(rejected.Response)})
		return
	}
	switch idempotency.CodeOf(err) {
	case idempotency.CodeInFlight:
		w.Header().Set("Retry-After", "1")
		writeStatus(w, http.StatusAccepted, status{State: "PENDING"})
	case idempotency.CodeOutcomeUnknown:
		writeStatus(w, http.StatusConflict, status{State: "INDETERMINATE"})
	case idempotency.CodeKeyReused:
		http.Error(w, "the key was already used for another job", http.StatusConflict)
	case "": // from run: it has no result to keep
		http.Error(w, err.Error(), http.StatusBadGateway)
	default: // nothing was submitted
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// runners makes a new connection for each job: over one that the runner is just closing, the outcome would be unknown.
var runners = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}

// run submits a job to the runner, and returns the runner's id of it. Its error decides whether the job may be tried
// again.
func (s *service) run(ctx context.Context, job []byte, owner *idempotency.Owner) ([]byte, error) {
	if s.runner == "" {
		fmt.Printf("job %d: %s\n", owner.Token(), job)
		return []byte(strconv.FormatUint(owner.Token(), 10)), nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.runner, bytes.NewReader(job))
	if err != nil {
		return nil, errors.Join(idempotency.ErrNotExecuted, err)
	}
	request.GetBody = nil // so that net/http never sends it twice
	var connected atomic.Bool
	response, err := runners.Do(request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})))
	switch {
	case err != nil && !connected.Load():
		return nil, errors.Join(idempotency.ErrNotExecuted, err) // nothing was sent: the key is free again
	case err != nil:
		return nil, err // the runner may have the job: the outcome is unknown
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode/100 == 2:
		return text, nil
	case response.StatusCode/100 == 4:
		return nil, &idempotency.RejectedError{Response: text}
	}
	return nil, fmt.Errorf("the runner answers %s: the job may run or not", response.Status)
}

// state returns the state of a key.
func (s *service) state(w http.ResponseWriter, r *http.Request) {
	// The key is in the header, because it does not belong in a URL, which is logged and cached.
	text, err := idempotency.ParseHeader(r.Header, false)
	if err != nil || text == "" {
		http.Error(w, "one valid Idempotency-Key is required", http.StatusBadRequest)
		return
	}
	key := recordKey(text)
	record, err := s.store.Get(r.Context(), &key)
	switch {
	case errors.Is(err, idempotency.ErrNotFound):
		http.Error(w, "no job of this key is known", http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	known := status{State: record.State.String()}
	switch record.State {
	case idempotency.Committed:
		known.Job = string(record.Response)
	case idempotency.Rejected:
		known.Reason = strings.TrimSpace(string(record.Response))
	}
	writeStatus(w, http.StatusOK, known)
}

func writeStatus(w http.ResponseWriter, code int, body status) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client has disconnected
}
