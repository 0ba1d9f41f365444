package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// The attacks of clients without a key. Their rows are in abuse.go.

// each calls do for 0 to n-1, some of them at once, until one fails or ctx ends.
func each(ctx context.Context, n, atOnce int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// repeat calls do in so many workers until ctx ends. refused says that the server refused the call;
// an error ends everything.
func repeat(ctx context.Context, workers int,
	do func(ctx context.Context, worker int) (refused bool, err error)) (string, error) {
	var done, refusals atomic.Int64
	err := each(context.WithoutCancel(ctx), workers, workers, func(failed context.Context, worker int) error {
		for ctx.Err() == nil && failed.Err() == nil {
			refused, err := do(ctx, worker)
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				return err
			}
			done.Add(1)
			if refused {
				refusals.Add(1)
			}
		}
		return nil
	})
	return fmt.Sprintf("%d at once: %d requests, %d refused", workers, done.Load(), refusals.Load()), err
}

// hold opens something n times, some at once, and keeps it open until ctx ends. open returns the function
// that closes it. If metric has a name, its value before the end is reported.
func (t *target) hold(ctx context.Context, n, atOnce int, metric string,
	open func(ctx context.Context, i int) (release func(), err error)) (string, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var mu sync.Mutex
	var releases []func()
	opening := make(chan error, 1)
	// Ends when all are opened, or with life; received below.
	go func() {
		opening <- each(life, n, atOnce, func(_ context.Context, i int) error {
			if release, err := open(life, i); err == nil {
				mu.Lock()
				defer mu.Unlock()
				releases = append(releases, release)
			}
			return nil // it was refused
		})
	}()
	<-ctx.Done()
	text := ""
	if metric != "" {
		there, err := (&process{address: t.address}).metric(metric)
		if err != nil {
			return "", err
		}
		text = fmt.Sprintf(", the server has %.0f", there)
	}
	mu.Lock()
	opened := len(releases)
	mu.Unlock()
	end()
	err := <-opening
	for _, release := range releases {
		release()
	}
	if opened == 0 {
		err = errors.Join(err, errors.New("nothing was opened"))
	}
	return fmt.Sprintf("%d of %d opened%s", opened, n, text), err
}

// dial connects from one of many loopback addresses, because one address has at most
// 28,000 ports. A closed connection leaves no state in the kernel.
func dial(ctx context.Context, address string, i int) (*net.TCPConn, error) {
	from := net.IPv4(127, 0, byte(1+i/250%250), byte(1+i%250))
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Timeout: 10 * time.Second}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(errors.New("not a TCP connection"), c.Close())
	}
	return tcp, tcp.SetLinger(0)
}

// send connects and sends text. An error of closing is dropped, because only the state of the
// server is measured.
func send(ctx context.Context, address string, i int, text string) (c *net.TCPConn, release func(), err error) {
	if c, err = dial(ctx, address, i); err != nil {
		return nil, nil, err
	}
	if _, err = io.WriteString(c, text); err != nil {
		_ = c.Close()
	}
	return c, func() { _ = c.Close() }, err
}

// ask sends text on a new connection and returns the status of the answer, "" for none.
func ask(ctx context.Context, address string, i int, text string) (status string) {
	c, err := dial(ctx, address, i)
	if err != nil {
		return ""
	}
	defer c.Close() //nolint:errcheck // As in send.
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = io.WriteString(c, text) // a server that refuses reads no further
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return ""
	}
	return strings.TrimSpace(line)
}

func postText(path, body string, length int) string {
	return fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, length, body)
}

const writePath = seqledgerv1connect.LedgerServiceWriteProcedure

// oneShotClients connect, write once and never return.
func oneShotClients(ctx context.Context, o *options, t *target) (string, error) {
	n := scaled(o, 1_000_000)
	var committed, refused, cut atomic.Int64
	err := each(ctx, n, 64, func(ctx context.Context, i int) error {
		body := fmt.Sprintf(`{"scope":{"organization":"acme","vault":"main"},"clientId":"once-%d","sequence":"1",`+
			`"operations":[{"append":{"payload":"eA=="}}]}`, i)
		switch status := ask(ctx, t.address, i, postText(writePath, body, len(body))); {
		case strings.Contains(status, " 200 "):
			committed.Add(1)
		case status == "":
			cut.Add(1)
		default:
			refused.Add(1)
		}
		return nil
	})
	return fmt.Sprintf("%d clients: %d committed, %d refused, %d cut off", n,
		committed.Load(), refused.Load(), cut.Load()), err
}

// idleConnections are opened and left alone; one in ten has an open WriteStream.
func idleConnections(ctx context.Context, o *options, t *target) (string, error) {
	return t.hold(ctx, scaled(o, 10_000), 32, "seqledger_connections_open",
		func(ctx context.Context, i int) (func(), error) {
			if i%10 == 0 {
				return t.openStream(ctx, "", false)
			}
			c, release, err := send(ctx, t.address, i, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if err == nil {
				_, err = bufio.NewReader(c).ReadString('\n')
			}
			return release, err
		})
}

// drip sends a text on many connections, then a byte a second on each.
func drip(connections int, text string) func(context.Context, *options, *target) (string, error) {
	return func(ctx context.Context, o *options, t *target) (string, error) {
		n := scaled(o, connections)
		var closed, refused atomic.Int64
		err := each(context.WithoutCancel(ctx), n, n, func(_ context.Context, i int) error {
			c, release, err := send(ctx, t.address, i, text)
			if c == nil {
				refused.Add(1)
				return nil
			}
			defer release()
			for err == nil && ctx.Err() == nil {
				load.Pause(ctx, time.Second)
				_, err = io.WriteString(c, "x")
			}
			if err != nil {
				closed.Add(1)
			}
			return nil
		})
		return fmt.Sprintf("%d connections: %d refused, %d ended by the server", n, refused.Load(), closed.Load()), err
	}
}

// hugeHeaders send a mebibyte of headers.
func hugeHeaders(ctx context.Context, o *options, t *target) (string, error) {
	n := scaled(o, 20_000)
	text := "POST / HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"
	err := each(ctx, n, 64, func(ctx context.Context, i int) error {
		if status := ask(ctx, t.address, i, text); status != "" && !strings.Contains(status, " 431 ") {
			return fmt.Errorf("a request with a mebibyte of headers was answered with %s", status)
		}
		return nil
	})
	return fmt.Sprintf("%d requests, all refused", n), err
}

// workersOfAbuse send requests at once.
const workersOfAbuse = 64

// frame returns writes with many operations, nearly empty.
func frame(writes, operations int, one *seqledgerv1.Operation) []*seqledgerv1.WriteRequest {
	ops := make([]*seqledgerv1.Operation, operations)
	for i := range ops {
		ops[i] = one
	}
	list := make([]*seqledgerv1.WriteRequest, writes)
	for i := range list {
		list[i] = &seqledgerv1.WriteRequest{Scope: benchScope, ClientId: fmt.Sprint("huge-", i), Sequence: 1,
			Operations: ops}
	}
	return list
}

// hugeFrames take the most memory for their bytes: a million empty operations,
// sixteen thousand valid ones, and the largest write.
func hugeFrames(ctx context.Context, _ *options, t *target) (string, error) {
	frames := [][]*seqledgerv1.WriteRequest{
		frame(1_000, 1_000, new(seqledgerv1.Operation)), frame(16, 1_000, appendOf(nil)),
		frame(1, 4, appendOf(make([]byte, 1<<20-64))),
	}
	return repeat(ctx, workersOfAbuse, func(ctx context.Context, worker int) (bool, error) {
		l := openLanes(ctx, t.address, 1)[0]
		defer l.close()
		refused, err := l.count(frames[worker%len(frames)]...)
		return refused != nil || err != nil, nil // a frame that is too large ends its stream
	})
}

// shortDeadlines give the server a millisecond.
func shortDeadlines(ctx context.Context, _ *options, t *target) (string, error) {
	c, disconnect := t.api("")
	defer disconnect()
	p := newPopulation("hasty-", 4*workersOfAbuse)
	return repeat(ctx, 4*workersOfAbuse, func(ctx context.Context, worker int) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := c.Write(ctx, connect.NewRequest(p.write(worker, operation())))
		return err != nil, nil
	})
}

// onlyRetries repeat one write.
func onlyRetries(ctx context.Context, _ *options, t *target) (string, error) {
	lanes := openLanes(context.WithoutCancel(ctx), t.address, workersOfAbuse)
	defer closeLanes(lanes)
	p := newPopulation("again-", workersOfAbuse)
	writes := make([]*seqledgerv1.WriteRequest, workersOfAbuse)
	for i := range writes {
		writes[i] = p.write(i, operation())
	}
	return repeat(ctx, workersOfAbuse, func(_ context.Context, worker int) (bool, error) {
		return false, lanes[worker].exchange(writes[worker])
	})
}

// onlyGaps leave out a sequence each time.
func onlyGaps(ctx context.Context, _ *options, t *target) (string, error) {
	lanes := openLanes(context.WithoutCancel(ctx), t.address, workersOfAbuse)
	defer closeLanes(lanes)
	p := newPopulation("gap-", workersOfAbuse)
	return repeat(ctx, workersOfAbuse, func(_ context.Context, worker int) (bool, error) {
		w := p.write(worker, operation())
		w.Sequence++
		refused, err := lanes[worker].count(w)
		if err == nil && refused.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP {
			err = fmt.Errorf("a gap was answered with %v", refused)
		}
		return true, err
	})
}

// smallWindow returns a client with a small flow-control window, so that unread
// answers stay with the server.
func smallWindow() (c *http.Client, disconnect func()) {
	return http2Over(&http.Transport{
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20},
	}, func(ctx context.Context, _, address string) (net.Conn, error) {
		return dial(ctx, address, int(smallWindows.Add(1)))
	})
}

// smallWindows numbers the connections of smallWindow.
var smallWindows atomic.Int64

// openStream opens a WriteStream on a connection of its own. If full is set it sends
// writes until the server takes no more, and never reads, so that the results fill
// every buffer on the way.
func (t *target) openStream(ctx context.Context, as string, full bool) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	c, disconnect := smallWindow()
	stream := seqledgerv1connect.NewLedgerServiceClient(t.as(as, c), "http://"+t.address).WriteStream(ctx)
	if err := stream.Send(nil); err != nil { // the headers
		cancel()
		disconnect()
		return nil, err
	}
	var writing sync.WaitGroup
	if full {
		p := newPopulation(fmt.Sprintf("deaf-%d-", smallWindows.Add(1)), 1)
		// Ends when the connection is closed; release waits for it.
		writing.Go(func() {
			for ctx.Err() == nil {
				var writes []*seqledgerv1.WriteRequest
				for range 250 {
					writes = append(writes, p.write(0, operation()))
				}
				if stream.Send(&seqledgerv1.WriteStreamRequest{Writes: writes}) != nil {
					return
				}
			}
		})
	}
	return func() {
		// Close the connection, too: a body that waits for flow control does not
		// notice the end of its context.
		cancel()
		disconnect()
		writing.Wait()
	}, nil
}

// deafStreams write and read no results.
func deafStreams(ctx context.Context, o *options, t *target) (string, error) {
	return t.hold(ctx, scaled(o, 500), 32, "seqledger_streams_open", func(ctx context.Context, _ int) (func(), error) {
		return t.openStream(ctx, "", true)
	})
}

// fillScope makes something to read.
func fillScope(ctx context.Context, o *options, t *target) error {
	l := openLanes(ctx, t.address, 1)[0]
	defer l.close()
	p := newPopulation("filler-", 1)
	value := make([]byte, 1<<20)
	for i := range scaled(o, 64) {
		for j := range value { // incompressible, or unread answers would fit into buffers
			value[j] = byte(rand.Uint32())
		}
		if err := l.exchange(p.write(0, setValue(fmt.Sprintf("large/%03d", i), value))); err != nil {
			return err
		}
	}
	return nil
}

// stalledWatchers watch and read no blocks.
func stalledWatchers(ctx context.Context, o *options, t *target) (string, error) {
	n := scaled(o, 500)
	return t.hold(ctx, n, n, "", func(ctx context.Context, _ int) (func(), error) {
		lone, disconnect := smallWindow()
		c := seqledgerv1connect.NewLedgerServiceClient(lone, "http://"+t.address)
		stream, err := c.Watch(ctx, connect.NewRequest(&seqledgerv1.WatchRequest{Scope: benchScope, FromHeight: 1}))
		if err != nil {
			disconnect()
			return nil, err
		}
		return func() {
			_ = stream.Close() // canceled
			disconnect()
		}, nil
	})
}

// deafReaders ask for pages of four mebibytes and do not read them.
func deafReaders(ctx context.Context, o *options, t *target) (string, error) {
	n := scaled(o, 1_000)
	return t.hold(ctx, n, n, "", func(ctx context.Context, _ int) (func(), error) {
		lone, disconnect := smallWindow()
		release, err := t.askUnread(ctx, lone, seqledgerv1connect.LedgerServiceListEntitiesProcedure,
			`{"scope":{"organization":"acme","vault":"main"},"pageSize":1000}`)
		if err != nil {
			disconnect()
			return nil, err
		}
		return func() {
			release()
			disconnect()
		}, nil
	})
}

// askUnread makes a call and does not read its answer.
func (t *target) askUnread(ctx context.Context, c *http.Client, procedure, text string) (release func(), err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.address+procedure,
		strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	release = func() { _ = response.Body.Close() } // canceled
	if response.StatusCode != http.StatusOK {
		release()
		return nil, errors.New(response.Status)
	}
	return release, nil
}
