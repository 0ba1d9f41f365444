package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/process"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// bed is where a row is measured: a temporary directory with a ledger, opened in this process or by a server
// process.
type bed struct {
	o       *options
	dir     string
	ledger  *ledger.Ledger
	server  *serverProcess
	closers []func() error // called last to first
}

// onBed makes a bed, uses it and removes it.
func onBed(ctx context.Context, o *options, use func(ctx context.Context, b *bed) error) (err error) {
	b := &bed{o: o}
	if b.dir, err = os.MkdirTemp(o.dir, "seqledger-bench-*"); err != nil {
		return err
	}
	b.later(func() error { return os.RemoveAll(b.dir) })
	defer func() {
		for _, closer := range slices.Backward(b.closers) {
			err = errors.Join(err, closer())
		}
	}()
	return use(ctx, b)
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

// startServer starts a server on the bed's directory.
func (b *bed) startServer(ctx context.Context, more ...string) (err error) {
	if b.server, err = startServer(ctx, b.o, b.data(), more...); err == nil {
		b.later(func() error { return b.server.Stop() }) // the current one: a row may restart it
	}
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
	if b.server != nil {
		pids = append(pids, b.server.Pid)
	}
	v, err := harness.Usage(b.dir, pids...)()
	if err != nil {
		return nil, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	v["allocs_per_write"] = float64(m.Mallocs)
	if b.server != nil {
		mallocs, err := b.server.metric("go_memstats_mallocs_total")
		v["allocs_per_write"] += mallocs
		return v, err
	}
	return v, nil
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

// serverOptions are the flags of a server's process.
type serverOptions struct {
	dir, authFile string
}

func (s *serverOptions) flags(flags *flag.FlagSet) {
	flags.StringVar(&s.dir, "serve", "", "serve a ledger in this directory (used by bench itself)")
	flags.StringVar(&s.authFile, "auth", "", "with -serve: the auth file (used by bench itself)")
}

// serve is the server's process. It says where it listens.
func (s *serverOptions) serve(ctx context.Context, o *options) (err error) {
	so := server.Options{DiskReserve: -1}
	if s.authFile != "" {
		if so.Auth, err = auth.Open(s.authFile, auth.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		so.StoredFile = filepath.Join(s.dir, "STORED")
	}
	stopProfile, err := startProfile(o.profile)
	if err != nil {
		return err
	}
	ctx, stop := process.UntilStdinEnds(ctx)
	defer stop()
	return errors.Join(
		harness.ServeLedger(ctx, ledger.Options{Dir: s.dir, CheckpointBytes: o.checkpointBytes}, so), stopProfile())
}

// serverProcess is a server process.
type serverProcess struct {
	*process.Process

	address  string
	observer string // a key that may read the metrics, if there is access control
}

// startServer starts a server on a data directory, with more arguments if there are
// any, and waits until it listens.
func startServer(ctx context.Context, o *options, dir string, more ...string) (*serverProcess, error) {
	arguments := append([]string{"-serve", dir, "-checkpoint-bytes", strconv.FormatInt(o.checkpointBytes, 10)}, more...)
	if o.profile != "" {
		arguments = append(arguments, "-profile", o.profile+"-server")
	}
	p, address, err := process.LaunchServer(ctx, process.Self(arguments...), "")
	return &serverProcess{Process: p, address: address}, err
}

// metric reads one of the server's metrics without labels.
func (p *serverProcess) metric(name string) (float64, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+p.address+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+p.observer)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // It was only read.
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(rest, 64)
		}
	}
	return 0, fmt.Errorf("the server's metrics have no %s", name)
}

// watchMemory samples the server's memory, without mapped files, until the returned function is called, which returns
// the largest sample.
func (p *serverProcess) watchMemory() (largest func() int64) {
	return harness.Largest(20*time.Millisecond, func() int64 { return harness.Anonymous(p.Pid) })
}
