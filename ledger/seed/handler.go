package seed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
)

// Path is the path at which a node sends its state to another one.
const Path = cluster.SeedPath

// errorTrailer is the trailer that says why a seed ended early.
const errorTrailer = "Seqledger-Seed-Error"

// beginTimeout is how long a seed waits for its turn. It is shorter than
// stallTimeout, so that the other node learns the reason.
const beginTimeout = 20 * time.Second

var errBusy = errors.New("a backup or another seed is being made: ask again")

// Handler returns a handler that sends the state of this node to other members of the cluster, at no more than rate
// bytes a second; see ledger.BackupOptions. A node that reads nothing for half a minute is disconnected, because the
// state file grows for as long as the backup reads it.
func Handler(l *ledger.Ledger, rate int64) http.Handler {
	return handler{
		seed: func(ctx context.Context, w *patientWriter, atLeast uint64, begin func() error) error {
			return l.Seed(ctx, w, atLeast, rate, begin)
		},
		wait: beginTimeout, stall: stallTimeout,
	}
}

type handler struct {
	seed        func(ctx context.Context, w *patientWriter, atLeast uint64, begin func() error) error
	wait, stall time.Duration
}

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	atLeast, err := strconv.ParseUint(r.URL.Query().Get("at_least"), 10, 64)
	if err != nil {
		http.Error(w, "at_least: must be an index of the log", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Trailer", errorTrailer)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	waiting := time.AfterFunc(h.wait, func() { cancel(errBusy) })
	defer waiting.Stop()
	out := &patientWriter{w: w, control: http.NewResponseController(w), stall: h.stall}
	begun := false
	err = h.seed(ctx, out, atLeast, func() error {
		if !waiting.Stop() {
			return errBusy // ctx has ended, or is about to
		}
		begun = true
		return nil
	})
	switch {
	case err == nil:
		err = out.end()
	case begun: // the receiver notices that the end is missing
		w.Header().Set(errorTrailer, err.Error())
		err = out.end()
	case errors.Is(err, cluster.ErrSeedTooOld), errors.Is(err, ledger.ErrBackupRefused), errors.Is(err, errBusy):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		err = nil
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		err = nil
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the connection cannot be reused
	}
}

// patientWriter sets a deadline for each write, and ends the response when it expires.
type patientWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

// Write implements io.Writer.
func (p *patientWriter) Write(b []byte) (int, error) {
	if err := p.deadline(time.Now().Add(p.stall)); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// end removes the deadline, so that the connection can serve other requests.
func (p *patientWriter) end() error { return p.deadline(time.Time{}) }

func (p *patientWriter) deadline(at time.Time) error {
	// An in-memory response has no connection that could stall.
	if err := p.control.SetWriteDeadline(at); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("deadline of the response: %w", err)
	}
	return nil
}
