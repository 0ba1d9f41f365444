package unsent

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Recent is how long ago a connection was used at most if a request gets it that must not be lost with it.
const Recent = time.Second

// Transport sends requests over connections that their servers have most likely not closed. A request that is written
// to a connection while the server closes it gets no answer, and it is unknown whether it was executed. So a connection
// is not used again once it has been idle for longer than the shortest time that the server has announced (Keep-Alive:
// timeout=5), less a margin, and a request for which careful is true only gets a new connection or one that was used
// within [Recent], because many servers announce nothing.
type Transport struct {
	// Base makes the connections. It is not changed after the first request.
	Base *http.Transport

	idle    time.Duration
	careful func(*http.Request) bool

	mu        sync.Mutex
	announced map[string]time.Duration          // the shortest idle time of each host
	pools     map[time.Duration]*http.Transport // by idle time: a whole number of seconds, or one of a few others
}

// NewTransport returns a transport that makes its connections as base does, and keeps unused ones for the idle time; 0
// keeps none.
func NewTransport(base *http.Transport, idle time.Duration, careful func(*http.Request) bool) *Transport {
	return &Transport{
		Base: base, idle: idle, careful: careful, announced: map[string]time.Duration{},
		pools: map[time.Duration]*http.Transport{},
	}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.pool(r).RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if idle, ok := announcedIdle(answer.Header); ok && r.URL != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if shortest, known := t.announced[r.URL.Host]; !known || idle < shortest {
			t.announced[r.URL.Host] = idle
		}
	}
	return answer, nil
}

// pool returns the connections for a request.
func (t *Transport) pool(r *http.Request) *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.idle
	if announced, ok := t.announced[r.URL.Host]; ok {
		idle = min(idle, announced)
	}
	if t.careful(r) {
		idle = min(idle, Recent)
	}
	pool := t.pools[idle]
	if pool == nil {
		pool = t.Base.Clone()
		pool.IdleConnTimeout, pool.DisableKeepAlives = idle, idle <= 0
		t.pools[idle] = pool
	}
	return pool
}

// CloseIdleConnections closes the connections that are not in use. Those in use close after they have been idle.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pool := range t.pools {
		pool.CloseIdleConnections()
	}
}

// announcedIdle returns how long a connection may be idle according to the header of a response. The server counts from
// when it has sent the response, and has to receive the next request in time, so a second less is used, or half.
func announcedIdle(header http.Header) (idle time.Duration, ok bool) {
	for parameter := range strings.SplitSeq(strings.ToLower(strings.Join(header["Keep-Alive"], ",")), ",") {
		name, value, _ := strings.Cut(parameter, "=")
		if strings.TrimSpace(name) != "timeout" {
			continue
		}
		seconds, err := strconv.ParseUint(strings.Trim(value, ` "`), 10, 31)
		if err != nil {
			continue
		}
		idle = time.Duration(seconds) * time.Second
		return idle - min(time.Second, idle/2), true
	}
	return 0, false
}
