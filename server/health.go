package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server/admission"
)

// mountHealth mounts the health checks. Because they need no credential, each of their requests is a visit until its
// end (see package admission). Alive means: do not restart the process. Ready means: send it requests. A draining
// server is alive and not ready, as is a node that reaches no leader with a majority. Neither waits for a disk.
func (s *Server) mountHealth(mux *http.ServeMux) {
	service, check := grpchealth.NewHandler(checker{s}, connect.WithReadMaxBytes(maxHealthBytes))
	mux.Handle(service, s.admission.Probe(admission.BodyDeadline(check)))
	mux.Handle("GET /healthz", s.admission.Probe(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerProbe(w, s.dead())
	})))
	mux.Handle("GET /readyz", s.admission.Probe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem := s.notReady(r.Context())
		if problem != "" {
			problem = "not ready: " + problem
		}
		answerProbe(w, problem)
	})))
}

// Why a server is not alive. They say no more, because a probe needs no credential.
const (
	hasFailed = "failed: see the server's log"
	isStalled = "stalled: a disk does not answer"
)

// deadAfter is how long a disk may not answer before a probe tells that a restart might help.
const deadAfter = 5 * time.Second

// dead returns why the server cannot serve until it is restarted, or "".
func (s *Server) dead() string {
	switch {
	case s.options.Ledger.Err() != nil:
		return hasFailed
	case s.options.Ledger.Stalled().For > deadAfter:
		return isStalled
	}
	return ""
}

// maxHealthBytes is enough for the name of a service.
const maxHealthBytes = 4 << 10

// answerProbe answers that all is well unless there is a problem.
func answerProbe(w http.ResponseWriter, problem string) {
	if problem != "" {
		http.Error(w, problem, http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// notReady returns why the server should get no requests, or "". It asks the leader, which asks a majority.
func (s *Server) notReady(ctx context.Context) string {
	if problem := s.unready(false, nil); problem != "" {
		return problem
	}
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	alone, err := s.awaitKnown(ctx)
	return s.unready(alone, err)
}

// unready is notReady after awaitKnown.
func (s *Server) unready(alone bool, err error) string {
	switch dead := s.dead(); {
	case dead != "":
		return dead
	case s.isDraining():
		return ledger.ErrDraining.Error()
	case s.options.Ledger.Stalled().Job != "" && len(s.options.Ledger.Cluster().Status().Members) > 1:
		return isStalled // another node leads
	case alone, err != nil:
		return noMajority
	}
	return ""
}

// checker answers gRPC's health checks.
type checker struct{ server *Server }

// Check implements grpchealth.Checker.
func (c checker) Check(ctx context.Context, r *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if r.Service != "" && !slices.Contains(serviceNames(), r.Service) {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such service"))
	}
	if c.server.notReady(ctx) != "" {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
