package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server/admission"
)

// mountHealth mounts the health checks. Because they need no credential, each of their requests is a
// visit until its end (see package admission). Alive means: do not restart the process. Ready
// means: send it requests. A draining server is alive and not ready. Neither waits for a disk.
func (s *Server) mountHealth(mux *http.ServeMux) {
	service, check := grpchealth.NewHandler(checker{s}, connect.WithReadMaxBytes(maxHealthBytes))
	mux.Handle(service, s.admission.Probe(admission.BodyDeadline(check)))
	mux.Handle("GET /healthz", s.admission.Probe(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerProbe(w, s.alive())
	})))
	mux.Handle("GET /readyz", s.admission.Probe(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerProbe(w, s.ready())
	})))
}

// maxHealthBytes is room for the name of a service.
const maxHealthBytes = 4 << 10

// answerProbe says only what kind of problem there is, because it asks for no credential.
func answerProbe(w http.ResponseWriter, problem error) {
	if problem != nil {
		text := "not ready"
		switch {
		case errors.Is(problem, ledger.ErrFailed):
			text = "failed: see the server's log"
		case errors.Is(problem, errStalled):
			text = "stalled: a disk does not answer"
		}
		http.Error(w, text, http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// errStalled means that the node cannot serve while a disk does not answer.
var errStalled = errors.New("a disk does not answer")

// alive returns why the server cannot serve by itself, or nil: its ledger has failed, or waits for a disk.
func (s *Server) alive() error {
	if err := s.options.Ledger.Err(); err != nil {
		return err
	}
	if stall := s.options.Ledger.Stalled(); stall.Job != "" {
		return fmt.Errorf("%w: %s has not advanced for %v", errStalled, stall.Job, stall.For.Round(time.Millisecond))
	}
	return nil
}

// ready returns why the server should get no requests, or nil.
func (s *Server) ready() error {
	if err := s.alive(); err != nil {
		return err
	}
	if s.isDraining() {
		return ledger.ErrDraining
	}
	return nil
}

// checker answers gRPC's health checks.
type checker struct{ server *Server }

// Check implements grpchealth.Checker.
func (c checker) Check(_ context.Context, r *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if r.Service != "" && !slices.Contains(serviceNames(), r.Service) {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such service"))
	}
	if c.server.ready() != nil {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
