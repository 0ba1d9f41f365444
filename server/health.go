package server

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server/admission"
)

// mountHealth mounts the health checks. Because they need no credential, each of their requests is a
// visit until its end (see package admission). Alive means: do not restart the process. Ready
// means: send it requests. A draining server is alive and not ready.
func (s *Server) mountHealth(mux *http.ServeMux) {
	service, check := grpchealth.NewHandler(checker{s}, connect.WithReadMaxBytes(maxHealthBytes))
	mux.Handle(service, s.admission.Probe(admission.BodyDeadline(check)))
	mux.Handle("GET /healthz", s.admission.Probe(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerProbe(w, s.options.Ledger.Err() != nil, "failed: see the server's log")
	})))
	mux.Handle("GET /readyz", s.admission.Probe(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerProbe(w, s.ready() != nil, "not ready")
	})))
}

// maxHealthBytes is room for the name of a service.
const maxHealthBytes = 4 << 10

func answerProbe(w http.ResponseWriter, bad bool, problem string) {
	if bad {
		http.Error(w, problem, http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// ready returns why the server should get no requests, or nil.
func (s *Server) ready() error {
	if err := s.options.Ledger.Err(); err != nil {
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
