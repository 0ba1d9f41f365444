package seed

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/seqledger/seqledger/ledger"
)

// Path is where a node gives its state to another one.
const Path = "/seqledger.peer.v1/Seed"

// errorTrailer tells why a seed ended early.
const errorTrailer = "Seqledger-Seed-Error"

// Handler gives the state of this node to others of the cluster, at no more than rate bytes a second; see
// ledger.BackupOptions.
func Handler(l *ledger.Ledger, rate int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		atLeast, err := strconv.ParseUint(r.URL.Query().Get("at_least"), 10, 64)
		if err != nil {
			http.Error(w, "at_least: must be an index of the log", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Trailer", errorTrailer)
		begun := false
		err = l.Seed(r.Context(), w, atLeast, rate, func(info ledger.SeedInfo) error {
			begun = true
			return writeHeader(w, &info)
		})
		switch {
		case err == nil:
		case begun: // the receiver finds the end missing
			w.Header().Set(errorTrailer, err.Error())
		case errors.Is(err, ledger.ErrSeedTooOld):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}
