package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/process"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
)

// bed is where a row is measured: a temporary directory with a ledger, opened in this process or by a server
// process.
type bed struct {
	o       *options
	tell    func(lines ...harness.Line) error // adds lines to the table
	dir     string
	ledger  *ledger.Ledger
	server  *serverProcess
	closers []func() error // called last to first
}

// onBed makes a bed, measures on it and removes it.
func onBed(
	ctx context.Context, o *options, tell func(...harness.Line) error, measure func(context.Context, *bed) error,
) (err error) {
	b := &bed{o: o, tell: tell}
	if b.dir, err = os.MkdirTemp(o.dir, "seqledger-bench-*"); err != nil {
		return err
	}
	b.later(func() error { return os.RemoveAll(b.dir) })
	defer func() {
		for _, closer := range slices.Backward(b.closers) {
			err = errors.Join(err, closer())
		}
	}()
	return measure(ctx, b)
}

// later registers a function that is called when the bed is removed.
func (b *bed) later(closer func() error) { b.closers = append(b.closers, closer) }

// data is the directory of the ledger.
func (b *bed) data() string { return filepath.Join(b.dir, "data") }

// openLedger opens a ledger in this process.
func (b *bed) openLedger(ctx context.Context) (err error) {
	b.ledger, err = ledger.Open(ctx, ledger.Options{Dir: b.data(), Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		b.later(b.ledger.Close)
	}
	return err
}

// startServer starts a server on the bed's directory, and waits until it listens.
func (b *bed) startServer(ctx context.Context) error {
	arguments := []string{"-serve", b.data()}
	if b.o.profile != "" {
		arguments = append(arguments, "-profile", b.o.profile+"-server")
	}
	p, address, err := process.LaunchServer(ctx, process.Self(arguments...), "")
	b.server = &serverProcess{Process: p, address: address}
	b.later(p.Stop)
	return err
}

// profile begins a CPU profile of this process if the flag asks for one.
func (b *bed) profile() error {
	stop, err := startProfile(b.o.profile)
	b.later(stop)
	return err
}

// client returns a client of the server.
func (b *bed) client(o client.Options) (*client.Client, error) {
	o.Server = b.server.address
	c, err := client.New(o)
	if err == nil {
		b.later(c.Close)
	}
	return c, err
}

// meter reads the usage of this process and of the server. Allocations are of both together.
func (b *bed) meter() (map[string]float64, error) {
	var pids []int
	mallocs := 0.0
	if b.server != nil {
		pids = append(pids, b.server.Pid)
		var err error
		if mallocs, err = b.server.metric(context.Background(), "go_memstats_mallocs_total"); err != nil {
			return nil, err
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	v, err := harness.Usage(b.dir, pids...)()
	if err == nil {
		v["allocs_per_write"] = float64(m.Mallocs) + mallocs
	}
	return v, err
}

// startProfile starts a CPU profile if there is a prefix for its name.
func startProfile(prefix string) (stop func() error, err error) {
	if prefix == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(prefix + ".pprof")
	if err != nil {
		return func() error { return nil }, err
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, pprof.StartCPUProfile(f)
}

// serve is the server's process. It says where it listens.
func serve(ctx context.Context, o *options, dir string) (err error) {
	quiet := slog.New(slog.DiscardHandler)
	so := server.Options{DiskReserve: -1, Logger: quiet, Version: "bench"}
	stopProfile, err := startProfile(o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()
	server.TuneCollector() // as seqledger serve does
	if so.Ledger, err = ledger.Open(ctx, ledger.Options{Dir: dir, Logger: quiet}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, so.Ledger.Close()) }()
	handler, err := server.New(so)
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

// serverProcess is a server process.
type serverProcess struct {
	*process.Process

	address string
}

// metric reads one of the server's metrics without labels.
func (p *serverProcess) metric(ctx context.Context, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("the server's metrics have no %s", name)
}
