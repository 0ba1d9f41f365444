// Command jobs is an example: a service with an endpoint that starts a job for each request and ignores keys.
// The gateway in front of it makes retries safe:
//
//	go run ./client/idempotency/examples/jobs
//	go run ./cmd/seqledger gateway --config client/idempotency/examples/jobs/gateway.yaml
//
//	curl -i -H 'Authorization: Bearer demo' -H 'Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"' \
//	  -H 'Content-Type: application/json' -d '{"report":"2026-11"}' http://127.0.0.1:7480/api/jobs
//
// The answer is 202 with a job. The same command again gets the same job with a new requestId, and the header
// Idempotent-Replayed. Another body under the same key gets 409, even if only its white space differs. Without a key
// each request starts a job.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "jobs:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, listen string) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("jobs on http://%s\n", listener.Addr())
	server := &http.Server{Handler: new(service).handler(), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// job is a started job.
type job struct {
	ID     string `json:"id"`
	Report string `json:"report"`
}

// maxJobs bounds the memory of the example.
const maxJobs = 100_000

// service keeps its jobs in memory.
type service struct {
	mu   sync.Mutex
	jobs []job
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/jobs", s.start)
	mux.HandleFunc("GET /api/jobs", s.list)
	return mux
}

// start starts a job. It does so for every request that reaches it.
func (s *service) start(w http.ResponseWriter, r *http.Request) {
	var request struct{ Report string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&request); err != nil ||
		request.Report == "" {
		answer(w, http.StatusBadRequest, map[string]string{"code": "BAD_REQUEST", "message": "report is required"})
		return
	}
	started := job{idempotency.NewUUID(), request.Report}
	s.mu.Lock()
	full := len(s.jobs) == maxJobs
	if !full {
		s.jobs = append(s.jobs, started)
	}
	s.mu.Unlock()
	if full {
		answer(w, http.StatusServiceUnavailable, map[string]string{"code": "FULL", "message": "too many jobs"})
		return
	}
	answer(w, http.StatusAccepted, map[string]any{"requestId": idempotency.NewUUID(), "job": started})
}

// list shows the started jobs.
func (s *service) list(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{"jobs": append([]job{}, s.jobs...)})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client has disconnected
}
