package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// serveLedger is the server's process. It says where it listens.
func serveLedger(ctx context.Context, dir, profile string) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// The parent closes our standard input when it is done, or dies.
	go func() { // ends with the standard input; the process outlives it by the drain
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	logger := slog.New(slog.DiscardHandler)
	l, err := ledger.Open(ctx, ledger.Options{Dir: dir, Logger: logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	s, err := server.New(server.Options{Ledger: l, Version: "bench", Logger: logger})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	stopProfile, err := startProfile(profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()
	return s.Serve(ctx, listener)
}

// startProfile starts a CPU profile if there is a prefix for its name.
func startProfile(prefix string) (stop func() error, err error) {
	if prefix == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(prefix + ".pprof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// withServer runs a measurement against a server in a process of its own.
func withServer(ctx context.Context, o *options, measure func(address, dir string) (result, error)) (r result, err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-bench-*")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	arguments := []string{"-serve", dir}
	if o.profile != "" {
		arguments = append(arguments, "-profile", o.profile+"-server")
	}
	process := exec.Command(os.Args[0], arguments...)
	process.Stderr = os.Stderr
	// In a group of its own, so that an interrupt reaches us alone and the
	// server is told by its standard input.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := process.StdinPipe()
	if err != nil {
		return r, err
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := process.Start(); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stdin.Close(), process.Wait()) }()
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return r, fmt.Errorf("the server did not start: %w", err)
	}
	stopProfile, err := startProfile(o.profile)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()
	return measure(strings.TrimSpace(address), dir)
}

// bothCounters samples the disk, and the allocations of client and server.
func bothCounters(address, dir string) func() (counters, error) {
	sample := sampler(dir)
	return func() (c counters, err error) {
		if c, err = sample(); err != nil {
			return c, err
		}
		mallocs, err := serverMallocs(address)
		c.allocations += mallocs
		return c, err
	}
}

func serverMallocs(address string) (int64, error) {
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() //nolint:errcheck // It was only read.
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total "); ok {
			n, err := strconv.ParseFloat(rest, 64)
			return int64(n), err
		}
	}
	return 0, errors.New("the server's metrics have no go_memstats_mallocs_total")
}

func operation() *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
		Append: &seqledgerv1.Append{Payload: make([]byte, payloadBytes)},
	}}
}

var benchScope = &seqledgerv1.Scope{Organization: "acme", Vault: "main"}

// measureStream has one Writer for each stream, all over one connection, each
// with one write outstanding.
func measureStream(ctx context.Context, o *options, r *row) (result, error) {
	return withServer(ctx, o, func(address, dir string) (measured result, err error) {
		c, err := client.New(client.Options{Server: address})
		if err != nil {
			return measured, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		writers := make([]*client.Writer, r.concurrent)
		for i := range writers {
			writers[i], err = c.NewWriter(ctx, client.WriterOptions{Scope: benchScope, ClientID: fmt.Sprint("client-", i)})
			if err != nil {
				return measured, err
			}
		}
		payload := operation()
		return drive(ctx, o, r.concurrent, func(ctx context.Context, i int) error {
			_, err := writers[i].Write(ctx, payload)
			return err
		}, bothCounters(address, dir))
	})
}

func measureUnary(ctx context.Context, o *options, r *row) (result, error) {
	return withServer(ctx, o, func(address, dir string) (measured result, err error) {
		c, err := client.New(client.Options{Server: address})
		if err != nil {
			return measured, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		requests := make([]*seqledgerv1.WriteRequest, r.concurrent)
		for i := range requests {
			requests[i] = &seqledgerv1.WriteRequest{
				Scope: benchScope, ClientId: fmt.Sprint("client-", i), Operations: []*seqledgerv1.Operation{operation()},
			}
		}
		return drive(ctx, o, r.concurrent, func(ctx context.Context, i int) error {
			w := requests[i]
			w.Sequence++
			w.IdempotencyKey = fmt.Sprintf("00000000-0000-4000-8000-%012x", w.Sequence)
			_, err := c.Write(ctx, w)
			return err
		}, bothCounters(address, dir))
	})
}
