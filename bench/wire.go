package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// serveLedger is the server's process. It says where it listens. authFile may be empty.
func serveLedger(
	ctx context.Context, dir, authFile, profile string, checkpointBytes, diskReserve int64,
) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// The parent closes our standard input when it is done, or dies.
	go func() { // ends with the standard input; the process outlives it by the drain
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	server.TuneCollector() // as seqledger serve does
	logger := slog.New(slog.DiscardHandler)
	l, err := ledger.Open(ctx, ledger.Options{Dir: dir, Logger: logger, CheckpointBytes: checkpointBytes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	options := server.Options{Ledger: l, Version: "bench", Logger: logger, DiskReserve: diskReserve}
	if authFile != "" {
		if options.Auth, err = auth.Open(authFile, auth.Options{Logger: logger}); err != nil {
			return err
		}
		options.StoredFile = filepath.Join(dir, "STORED")
	}
	s, err := server.New(options)
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
func withServer(ctx context.Context, o *options,
	measure func(address, dir string) (result, error)) (r result, err error) {
	dir, err := os.MkdirTemp(o.dir, "seqledger-bench-*")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := startServer(ctx, o, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	stopProfile, err := startProfile(o.profile)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()
	return measure(server.address, dir)
}

// bothCounters samples the disk, and the allocations of client and server.
func bothCounters(address, dir string) func() (counters, error) {
	sample := sampler(dir)
	return func() (c counters, err error) {
		if c, err = sample(); err != nil {
			return c, err
		}
		mallocs, err := serverMallocs(address)
		if err != nil {
			return c, err
		}
		seconds, err := serverMetric(address, "process_cpu_seconds_total")
		c.allocations += mallocs
		c.server = time.Duration(seconds * float64(time.Second))
		return c, err
	}
}

func serverMallocs(address string) (int64, error) {
	n, err := serverMetric(address, "go_memstats_mallocs_total")
	return int64(n), err
}

// serverMetric reads one metric without labels.
func serverMetric(address, name string) (float64, error) { return serverMetricAs(address, "", name) }

// serverMetricAs is serverMetric with a key.
func serverMetricAs(address, key, name string) (float64, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
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

func operation() *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
		Append: &seqledgerv1.Append{Payload: make([]byte, payloadBytes)},
	}}
}

var benchScope = &seqledgerv1.Scope{Organization: "acme", Vault: "main"}

func measureStream(ctx context.Context, o *options, r *row) (result, error) {
	return measureWriters(ctx, o, r.concurrent, false)
}

// measureWriters has one Writer for each stream, all over one connection, each
// with one write outstanding, and with a journal that all share if asked.
func measureWriters(ctx context.Context, o *options, n int, journaled bool) (result, error) {
	return withServer(ctx, o, func(address, dir string) (measured result, err error) {
		c, err := client.New(client.Options{Server: address})
		if err != nil {
			return measured, err
		}
		keep, closeJournal := func(*client.WriterOptions) {}, func() error { return nil }
		if journaled {
			if keep, closeJournal, err = openJournal(filepath.Join(dir, "journal")); err != nil {
				return measured, err
			}
		}
		// After the client, whose Writers use it.
		defer func() { err = errors.Join(err, c.Close(), closeJournal()) }()
		writers := make([]*client.Writer, n)
		for i := range writers {
			w := client.WriterOptions{Scope: benchScope, ClientID: fmt.Sprint("client-", i)}
			keep(&w)
			if writers[i], err = c.NewWriter(ctx, w); err != nil {
				return measured, err
			}
		}
		payload := operation()
		return drive(ctx, o, n, func(ctx context.Context, i int) error {
			_, err := writers[i].Write(ctx, payload)
			return err
		}, bothCounters(address, dir))
	})
}

func measureUnary(ctx context.Context, o *options, r *row) (result, error) {
	return measureCalls(ctx, o, r.concurrent, false)
}

func measureUnaryHTTP2(ctx context.Context, o *options, r *row) (result, error) {
	return measureCalls(ctx, o, r.concurrent, true)
}

// measureCalls has n callers of Client.Write, each with one call outstanding, over the
// pool of HTTP/1.1 connections or over HTTP/2.
func measureCalls(ctx context.Context, o *options, n int, http2 bool) (result, error) {
	return withServer(ctx, o, func(address, dir string) (measured result, err error) {
		c, err := client.New(client.Options{Server: address, HTTP2: http2})
		if err != nil {
			return measured, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		requests := make([]*seqledgerv1.WriteRequest, n)
		for i := range requests {
			requests[i] = &seqledgerv1.WriteRequest{
				Scope: benchScope, ClientId: fmt.Sprint("client-", i),
				Operations: []*seqledgerv1.Operation{operation()},
			}
		}
		return drive(ctx, o, n, func(ctx context.Context, i int) error {
			w := requests[i]
			w.Sequence++
			w.IdempotencyKey = fmt.Sprintf("00000000-0000-4000-8000-%012x", w.Sequence)
			_, err := c.Write(ctx, w)
			return err
		}, bothCounters(address, dir))
	})
}

// measureRawCalls is measureCalls with a client that does as little as one can: a connection for
// each caller, the same header for each request, and of the answer only its length is looked at.
// It shows what the server alone allows.
func measureRawCalls(ctx context.Context, o *options, r *row) (result, error) {
	return withServer(ctx, o, func(address, dir string) (result, error) {
		callers := make([]*rawCaller, r.concurrent)
		for i := range callers {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return result{}, err
			}
			defer conn.Close() //nolint:errcheck // It was only used to measure.
			callers[i] = &rawCaller{conn: conn, answers: bufio.NewReader(conn), write: &seqledgerv1.WriteRequest{
				Scope: benchScope, ClientId: fmt.Sprint("client-", i),
				Operations: []*seqledgerv1.Operation{operation()},
			}}
		}
		return drive(ctx, o, r.concurrent, func(_ context.Context, i int) error { return callers[i].call(address) },
			bothCounters(address, dir))
	})
}

type rawCaller struct {
	conn    net.Conn
	answers *bufio.Reader
	write   *seqledgerv1.WriteRequest
	request []byte
}

func (c *rawCaller) call(host string) error {
	c.write.Sequence++
	c.write.IdempotencyKey = fmt.Sprintf("00000000-0000-4000-8000-%012x", c.write.Sequence)
	c.request = fmt.Appendf(c.request[:0], "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/proto\r\n"+
		"Content-Length: %d\r\n\r\n", seqledgerv1connect.LedgerServiceWriteProcedure, host, c.write.SizeVT())
	head := len(c.request)
	c.request = slices.Grow(c.request, c.write.SizeVT())[:head+c.write.SizeVT()]
	if _, err := c.write.MarshalToSizedBufferVT(c.request[head:]); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	status, length := "", 0
	for first := true; ; first = false {
		line, err := c.answers.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case first:
			status = string(line)
		case len(line) == len("\r\n"):
			_, err = c.answers.Discard(length)
			if err == nil && !strings.HasPrefix(status, "HTTP/1.1 200 ") {
				err = fmt.Errorf("the answer is %s", strings.TrimSpace(status))
			}
			return err
		default:
			if text, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				if length, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil {
					return err
				}
			}
		}
	}
}
