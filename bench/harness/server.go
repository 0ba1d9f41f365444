package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
)

// ServeLedger is a seqledger server until ctx ends. It prints where it listens, as [LaunchServer]
// expects.
func ServeLedger(ctx context.Context, l ledger.Options, s server.Options) (err error) {
	server.TuneCollector() // as seqledger serve does
	l.Logger, s.Logger, s.Version = slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler), "bench"
	if s.Ledger, err = ledger.Open(ctx, l); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Ledger.Close()) }()
	handler, err := server.New(s)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return handler.Serve(ctx, listener)
}
