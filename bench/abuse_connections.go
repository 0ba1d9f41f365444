package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// each runs a function for 0 to n-1, some of them at once.
func each(ctx context.Context, n, atOnce int, run func(i int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(n, atOnce) {
		// Ends with the numbers or ctx; joined below.
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				run(i)
			}
		})
	}
	group.Wait()
}

// dial connects from one of many loopback addresses, because one has no more
// than 28,000 ports. A connection that is closed leaves nothing behind.
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

// ask sends text on a new connection and returns the status of the answer, or
// "" if there is none.
func ask(ctx context.Context, address string, i int, text string) (status string) {
	c, err := dial(ctx, address, i)
	if err != nil {
		return ""
	}
	defer c.Close() //nolint:errcheck // Whatever it says, the server is looked at afterwards.
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

// oneShotClients connect, write once and are never seen again.
func oneShotClients(ctx context.Context, o *options, address string) (string, error) {
	n := scaled(o, 1_000_000)
	var committed, refused, cut atomic.Int64
	each(ctx, n, 64, func(i int) {
		body := fmt.Sprintf(`{"scope":{"organization":"acme","vault":"main"},"clientId":"once-%d","sequence":"1",`+
			`"operations":[{"append":{"payload":"eA=="}}]}`, i)
		switch status := ask(ctx, address, i, postText(writePath, body, len(body))); {
		case strings.Contains(status, " 200 "):
			committed.Add(1)
		case status == "":
			cut.Add(1)
		default:
			refused.Add(1)
		}
	})
	return fmt.Sprintf("%d clients: %d committed, %d refused, %d cut off", n,
		committed.Load(), refused.Load(), cut.Load()), nil
}

// held is connections that are kept open.
type held struct {
	mu      sync.Mutex
	closers []func()
	failed  int
}

func (h *held) add(release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.failed++
		return
	}
	h.closers = append(h.closers, release)
}

func (h *held) release() {
	for _, release := range h.closers {
		release()
	}
}

// idleConnections are opened and left alone; one in ten has an open WriteStream.
func idleConnections(ctx context.Context, o *options, address string) (string, error) {
	n := scaled(o, 10_000)
	var h held
	defer h.release()
	var streams atomic.Int64
	each(ctx, n, 32, func(i int) {
		if i%10 == 0 {
			release, err := openDeaf(ctx, address, false)
			h.add(release, err)
			streams.Add(1)
			return
		}
		c, err := dial(ctx, address, i)
		if err == nil {
			_, err = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}
		if err == nil {
			_, err = bufio.NewReader(c).ReadString('\n')
		}
		h.add(func() { _ = c.Close() }, err) // it is the server's memory that counts
	})
	pause(ctx, scaledTime(o, 20*time.Second))
	open, err := serverMetric(address, "seqledger_connections_open")
	return fmt.Sprintf("%d connections, %d of them WriteStreams: %d refused, the server has %.0f open",
		n, streams.Load(), h.failed, open), err
}

// drip sends a text on many connections, then a byte a second on each.
func drip(ctx context.Context, address string, n int, d time.Duration, text string) string {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var closed, refused atomic.Int64
	var group sync.WaitGroup
	for i := range n {
		// Ends with ctx or the connection; joined below.
		group.Go(func() {
			c, err := dial(ctx, address, i)
			if err != nil {
				refused.Add(1)
				return
			}
			defer c.Close() //nolint:errcheck // As in ask.
			_, err = io.WriteString(c, text)
			for err == nil && ctx.Err() == nil {
				pause(ctx, time.Second)
				_, err = io.WriteString(c, "x")
			}
			if err != nil {
				closed.Add(1)
			}
		})
	}
	group.Wait()
	return fmt.Sprintf("%d connections for %s: %d refused, %d ended by the server", n, d, refused.Load(), closed.Load())
}

// slowHeaders never finish their headers.
func slowHeaders(ctx context.Context, o *options, address string) (string, error) {
	return drip(ctx, address, scaled(o, 2_000), scaledTime(o, 20*time.Second),
		"POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "), nil
}

// slowBodies announce a body and send a byte a second.
func slowBodies(ctx context.Context, o *options, address string) (string, error) {
	return drip(ctx, address, scaled(o, 2_000), scaledTime(o, 40*time.Second), postText(writePath, "{", 1<<20)), nil
}

// halfBodies send all of a large body but its end.
func halfBodies(ctx context.Context, o *options, address string) (string, error) {
	return drip(ctx, address, scaled(o, 400), scaledTime(o, 40*time.Second),
		postText(writePath, `{"clientId":"`+strings.Repeat("x", 5<<20), 6<<20)), nil
}

// hugeHeaders send a mebibyte of headers.
func hugeHeaders(ctx context.Context, o *options, address string) (string, error) {
	n := scaled(o, 20_000)
	text := "POST / HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"
	var refused, answered atomic.Int64
	each(ctx, n, 64, func(i int) {
		if status := ask(ctx, address, i, text); status == "" || strings.Contains(status, " 431 ") {
			refused.Add(1)
		} else {
			answered.Add(1)
		}
	})
	if answered.Load() > 0 {
		return "", fmt.Errorf("%d requests with a mebibyte of headers were taken", answered.Load())
	}
	return fmt.Sprintf("%d requests: %d refused", n, refused.Load()), nil
}

// newSmallWindow returns a client whose unread answers stay with the server,
// and what closes its connections, used or not.
func newSmallWindow() (c *http.Client, disconnect func()) {
	var mu sync.Mutex
	var connections []net.Conn
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c = &http.Client{Transport: &http.Transport{
		Protocols: protocols, DisableCompression: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20},
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			tcp, err := dial(ctx, address, int(smallWindows.Add(1)))
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			connections = append(connections, tcp)
			return tcp, nil
		},
	}}
	return c, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, tcp := range connections {
			_ = tcp.Close() // the server is looked at afterwards
		}
	}
}

// smallWindows numbers the connections of newSmallWindow.
var smallWindows atomic.Int64

// openDeaf opens a WriteStream on a connection of its own, and with full writes
// until the server takes no more. It never reads.
func openDeaf(ctx context.Context, address string, full bool) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	c, disconnect := newSmallWindow()
	stream := seqledgerv1connect.NewLedgerServiceClient(c, "http://"+address).WriteStream(ctx)
	if err := stream.Send(nil); err != nil { // the headers
		cancel()
		disconnect()
		return nil, err
	}
	var writing sync.WaitGroup
	if full {
		p := newPopulation(fmt.Sprintf("deaf-%d-", deafStreamCount.Add(1)), 1, 0)
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
		// Not by the context alone: a body that waits for its window does not
		// notice.
		cancel()
		disconnect()
		writing.Wait()
	}, nil
}

// deafStreamCount numbers the clients of openDeaf.
var deafStreamCount atomic.Int64

// deafStreams write and read no results.
func deafStreams(ctx context.Context, o *options, address string) (string, error) {
	n := scaled(o, 500)
	var h held
	each(ctx, n, 32, func(int) { h.add(openDeaf(ctx, address, true)) })
	pause(ctx, scaledTime(o, 30*time.Second))
	open, err := serverMetric(address, "seqledger_streams_open")
	h.release()
	if h.failed == n {
		err = errors.Join(err, errors.New("no stream was opened"))
	}
	return fmt.Sprintf("%d streams: %d refused, the server has %.0f open", n, h.failed, open), err
}
