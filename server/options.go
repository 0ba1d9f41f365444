package server

import (
	"errors"
	"log/slog"
	"time"

	"github.com/seqledger/seqledger/ledger"
)

// Options say what to serve. Only Ledger is required.
type Options struct {
	// Ledger is what is served. The caller opens it, and closes it after Serve
	// has returned.
	Ledger *ledger.Ledger
	// Version is reported by GetStatus and in the metrics.
	Version string
	// Logger receives what operators should know; requests only at debug, and
	// never a payload or a key. Default: slog.Default().
	Logger *slog.Logger
	// MaxRequestBytes bounds one message of a request, decompressed. Default:
	// 6 MiB, because a write may have 4 MiB of operations, and JSON carries
	// them in base64, which takes a third more.
	MaxRequestBytes int
	// MaxRequests bounds the requests that are under way, streams included.
	// Default: 16,384.
	MaxRequests int
	// MaxConnections bounds the open connections; those beyond are closed at once.
	// Default: 16,384, or 256 less than the files that the process may have open.
	MaxConnections int
	// MaxStreams bounds the open WriteStreams and Watches together. Default:
	// 1,024.
	MaxStreams int
	// DrainTimeout bounds how long Serve waits, after its context has ended, for
	// what is under way. Default: 30 s.
	DrainTimeout time.Duration
}

// validate fills in the defaults.
func (o *Options) validate() error {
	if o.Ledger == nil {
		return errors.New("server: Options.Ledger is nil")
	}
	if o.MaxRequestBytes < 0 || o.MaxRequests < 0 || o.MaxConnections < 0 || o.MaxStreams < 0 || o.DrainTimeout < 0 {
		return errors.New("server: Options: a limit is negative")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = 6 << 20
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 16_384
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultConnections(openFilesLimit())
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 1_024
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 30 * time.Second
	}
	return nil
}
