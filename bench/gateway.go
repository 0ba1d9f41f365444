package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/process"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

const gatewayRounds = 5

func gatewayRows(*options) (rows []row) {
	for _, n := range []int{1, 16, 64, 256} {
		rows = append(rows, row{fmt.Sprintf("gateway/%d", n), func(ctx context.Context, b *bed) error {
			return measureGateway(ctx, b, n)
		}})
	}
	return rows
}

// relay is the process of the trivial service, or with the address of one that of a bare proxy
// before it.
func relay(ctx context.Context, upstream string) error {
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a client that has gone reads no answer
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"charged":true}`)
	})
	if upstream != noUpstream {
		to, err := url.Parse(upstream)
		if err != nil {
			return err
		}
		handler = &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
			// As many idle connections as the gateway keeps, because otherwise
			// the bare proxy would pay for new ones.
			Transport: &http.Transport{MaxIdleConnsPerHost: 1_024},
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + listener.Addr().String())
	ctx, stop := process.UntilStdinEnds(ctx)
	defer stop()
	s := &http.Server{Handler: handler}
	context.AfterFunc(ctx, func() { _ = s.Close() }) // what is under way is no longer measured
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// noUpstream makes relay the service itself.
const noUpstream = "none"

// gatewaySides are what is measured in turns.
var gatewaySides = []string{"the service alone", "a bare proxy", "fresh keys", "replays"}

const (
	sideAlone = iota
	sideProxy
	sideFresh
	sideReplays
)

// gatewayRun is the processes of one row.
type gatewayRun struct {
	urls   [4]string // by side
	client http.Client
	fresh  atomic.Int64 // keys that were new
	keys   []int64      // the last key of each worker; its replays have key 0
}

// measureGateway measures seqledger gateway with its own ledger, a bare proxy and the bare service in turns.
func measureGateway(ctx context.Context, b *bed, connections int) error {
	g := &gatewayRun{keys: make([]int64, connections)}
	gateway, pids, err := g.start(ctx, b, connections)
	if err != nil {
		return err
	}
	before, err := ledgerIndex(ctx, filepath.Join(b.dir, "empty"))
	if err != nil {
		return err
	}
	var rounds [4][]harness.Values
	err = harness.Turns(scaled(b.o, gatewayRounds), len(gatewaySides), func(_, side int) error {
		measured, err := load.RunSome(ctx, load.Load{
			Workers: connections, Warmup: b.o.warmup / 4, Duration: b.o.duration / gatewayRounds,
			Meter: harness.Usage(b.dir, pids...),
		}, func(ctx context.Context, worker int) error {
			key := int64(0)
			if side == sideFresh {
				g.keys[worker]++
				key = g.keys[worker]
			}
			return g.send(ctx, side, worker, key)
		})
		rounds[side] = append(rounds[side], measured.Values())
		return err
	})
	if err := errors.Join(err, gateway.Stop()); err != nil {
		return err
	}
	after, err := ledgerIndex(ctx, b.data())
	if err != nil {
		return err
	}
	return b.tell(gatewayFindings(rounds, float64(after-before)/float64(g.fresh.Load()))...)
}

// gatewayFindings holds the rounds of the four sides against the targets.
func gatewayFindings(rounds [4][]harness.Values, commands float64) []harness.Line {
	var lines []harness.Line
	proxy := harness.Medians(rounds[sideProxy])
	for side, name := range gatewaySides {
		v := harness.Medians(rounds[side])
		lines = append(lines,
			told(name+": requests a second", harness.Count(v["throughput_per_s"])),
			told(name+": p50, p99", milliseconds(v["p50_ms"])+", "+milliseconds(v["p99_ms"])),
			told(name+": processor time of a request",
				fmt.Sprintf("%.0f + %.0f µs", v["cpu_us_per_write"], v["client_cpu_us_per_write"])))
		if side > sideProxy {
			lines = append(lines, told(name+": added to the proxy's p50, p99",
				milliseconds(v["p50_ms"]-proxy["p50_ms"])+", "+milliseconds(v["p99_ms"]-proxy["p99_ms"])))
		}
	}
	rate := func(side int) []float64 { return harness.Of(rounds[side], "throughput_per_s") }
	ratio := harness.Median(harness.Ratios(rate(sideReplays), rate(sideProxy)))
	return append(lines,
		held("replays for each request of the bare proxy", fmt.Sprintf("%.2f", ratio), ">= 1", ratio >= 1),
		// A reservation and its completion, and a little more, because a ledger also logs that time has passed.
		held("commands in the log for a fresh key", fmt.Sprintf("%.2f", commands), "<= 2", commands < 2.005))
}

// start starts the service, the proxy and the gateway.
func (g *gatewayRun) start(
	ctx context.Context, b *bed, connections int,
) (gateway *process.Process, pids []int, err error) {
	binary := filepath.Join(b.dir, "seqledger")
	if err := process.Build(ctx, binary); err != nil {
		return nil, nil, err
	}
	launch := func(c *exec.Cmd) (*process.Process, string) {
		if err != nil {
			return nil, ""
		}
		p, line, failure := process.LaunchServer(ctx, c, filepath.Join(b.dir, "log"))
		if err = failure; err == nil {
			pids = append(pids, p.Pid)
			b.later(p.Stop)
		}
		return p, line
	}
	_, g.urls[sideAlone] = launch(process.Self("-relay", noUpstream))
	_, g.urls[sideProxy] = launch(process.Self("-relay", g.urls[sideAlone]))
	gateway, line := launch(exec.Command(binary, "gateway", "--json", "--listen", "127.0.0.1:0",
		"--upstream", g.urls[sideAlone], "--data", b.data(),
		"--journal", filepath.Join(b.dir, "journal")))
	if err != nil {
		return nil, nil, err
	}
	gateway.Signal = syscall.SIGTERM
	var ready struct{ Address string }
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		return nil, nil, fmt.Errorf("seqledger gateway said %q: %w", line, err)
	}
	g.urls[sideFresh], g.urls[sideReplays] = "http://"+ready.Address, "http://"+ready.Address
	g.client.Transport = &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}
	for worker := range connections { // what the replays repeat
		if err := g.send(ctx, sideFresh, worker, 0); err != nil {
			return nil, nil, err
		}
	}
	return gateway, pids, nil
}

// send sends a request with a key, and checks that the answer is what it must be.
func (g *gatewayRun) send(ctx context.Context, side, worker int, key int64) error {
	// Not ctx, because a key whose request is cut off could not be counted.
	body := strings.NewReader(fmt.Sprintf(`{"amount":5,"note":"%0100d"}`, key))
	r, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, g.urls[side]+"/charge", body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", fmt.Sprint("Bearer bench-", worker)) // a principal for each
	r.Header.Set(idempotency.HeaderKey, fmt.Sprintf(`"key-%d-%d"`, worker, key))
	if side == sideFresh {
		g.fresh.Add(1)
	}
	response, err := g.client.Do(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	replayed := response.Header.Get(idempotency.HeaderReplayed) == "true"
	if response.StatusCode != http.StatusOK || replayed != (side == sideReplays) {
		return fmt.Errorf("%s: the answer is %s, replayed: %v: %s", gatewaySides[side], response.Status, replayed, text)
	}
	return nil
}

// ledgerIndex opens a ledger and returns the index of the last command in its log.
func ledgerIndex(ctx context.Context, dir string) (index uint64, err error) {
	l, err := ledger.Open(ctx, ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, err
	}
	err = l.View(ctx, func(v machine.View) error {
		index = v.Index()
		return nil
	})
	return index, errors.Join(err, l.Close())
}
