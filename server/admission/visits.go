package admission

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A visit is a request whose caller is not known, or not admitted, and for which the server
// still waits: a health check, whose body may arrive late, or a refused request, whose answer
// may not be read. Visits have separate bounds, for each connection, for each address and in
// total. If there are too many, the oldest is cut, and its connection closed if no caller was
// authenticated on it: a request that is answered at once is never the oldest, and one whose
// body does not arrive soon is. A request is not a visit while its caller is being
// authenticated: that does not wait for a client, and a valid request must not be cut then.

const (
	maxVisits          = 256
	visitsOfAddress    = 128
	visitsOfConnection = 32
	// visitAnswer bounds the sending of a refusal or of a health answer; visitBody bounds a
	// body that arrives before the caller is known.
	visitAnswer = 10 * time.Second
	visitBody   = 5 * time.Second
)

// visit is one request before its caller is known.
type visit struct {
	deadlines  deadlines
	controller *Controller
	conn       *conn // nil when the listener is not ours

	remote string

	// Under visits.mu:
	links     [linkCount]visitLink
	ofAddress *visitList
	counted   bool // the visit is in the lists

	authenticated bool // belongs to the handler

	// called is set once the request has made a call in this process, and calling while one has the request's place.
	called, calling atomic.Bool

	mu    sync.Mutex // held while another goroutine uses the response
	ended bool
}

// visitLink is a visit's position in one of its lists.
type visitLink struct{ previous, next *visit }

const (
	linkAll = iota
	linkAddress
	linkConnection
	linkCount
)

// visitList has visits in the order of their start. It is not a container/list, which would
// allocate three elements for every request.
type visitList struct {
	first, last *visit
	n           int
}

func (l *visitList) push(v *visit, link int) {
	v.links[link].previous = l.last
	if l.last == nil {
		l.first = v
	} else {
		l.last.links[link].next = v
	}
	l.last = v
	l.n++
}

func (l *visitList) remove(v *visit, link int) {
	at := v.links[link]
	if at.previous == nil {
		l.first = at.next
	} else {
		at.previous.links[link].next = at.next
	}
	if at.next == nil {
		l.last = at.previous
	} else {
		at.next.links[link].previous = at.previous
	}
	v.links[link] = visitLink{}
	l.n--
}

// visits are the visits of a server.
type visits struct {
	mu  sync.Mutex
	all visitList
	// byAddress keeps empty lists, up to maxVisits of them, for the next request.
	byAddress map[netip.Addr]*visitList
}

func (vs *visits) init() { vs.byAddress = make(map[netip.Addr]*visitList) }

func (vs *visits) count() int64 {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return int64(vs.all.n)
}

// address returns the list of an address. mu is held.
func (vs *visits) address(a netip.Addr) *visitList {
	l := vs.byAddress[a]
	if l == nil {
		for other, empty := range vs.byAddress {
			if len(vs.byAddress) < maxVisits {
				break
			}
			if empty.n == 0 {
				delete(vs.byAddress, other)
			}
		}
		l = new(visitList)
		vs.byAddress[a] = l
	}
	return l
}

// visitKey finds the visit of a request in its context.
type visitKey struct{}

// BeforeAuth sets the deadlines of a request of an unknown caller. It runs before everything
// else.
func (c *Controller) BeforeAuth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{controller: c, conn: connOf(r), deadlines: newDeadlines(w, r), remote: r.RemoteAddr}
		v.deadlines.visit()
		defer v.end()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// Visit records that the server waits for a request whose caller is not admitted. It does
// nothing if the caller is admitted.
func (c *Controller) Visit(ctx context.Context) {
	if v, ok := ctx.Value(visitKey{}).(*visit); ok && !v.authenticated {
		v.begin()
	}
}

// Authenticated records that a request was authenticated as a party and admitted: it gets other
// deadlines, and its connection belongs to the party. The error is a *Refusal.
func (c *Controller) Authenticated(ctx context.Context, p Party) error {
	v, ok := ctx.Value(visitKey{}).(*visit)
	if !ok {
		return nil
	}
	if v.conn != nil && !c.connections.identify(v.conn, p) {
		return c.refuse(ctx, Connections, c.owner(), busyRetry)
	}
	v.authenticated = true
	v.deadlines.admitted()
	return nil
}

// begin counts a visit, and cuts the oldest one if there are too many.
func (v *visit) begin() {
	vs := &v.controller.visits
	address := addressOf(v.conn, v.remote)
	vs.mu.Lock()
	if v.counted {
		vs.mu.Unlock()
		return
	}
	v.counted = true
	v.ofAddress = vs.address(address)
	vs.all.push(v, linkAll)
	v.ofAddress.push(v, linkAddress)
	if v.conn != nil {
		v.conn.visits.push(v, linkConnection)
	}
	var cut *visit
	switch {
	case v.conn != nil && v.conn.visits.n > visitsOfConnection:
		cut = v.refuse(v.conn.visits.first, OfConnection)
	case v.ofAddress.n > visitsOfAddress:
		cut = v.refuse(v.ofAddress.first, OfAddress)
	case vs.all.n > maxVisits:
		cut = v.refuse(vs.all.first, OfServer)
	}
	vs.mu.Unlock()
	if cut != nil {
		cut.cut()
	}
}

// refuse removes the oldest visit. visits.mu is held.
func (v *visit) refuse(oldest *visit, whose Owner) *visit {
	oldest.forget()
	v.controller.refusals[Unauthenticated][whose].Add(1)
	return oldest
}

// forget removes a visit from the lists. visits.mu is held.
func (v *visit) forget() {
	if !v.counted {
		return
	}
	v.counted = false
	v.controller.visits.all.remove(v, linkAll)
	v.ofAddress.remove(v, linkAddress)
	if v.conn != nil {
		v.conn.visits.remove(v, linkConnection)
	}
}

// end says that the handler returns, after which its response must not be used.
func (v *visit) end() {
	v.mu.Lock()
	v.ended = true
	v.mu.Unlock()
	if v.authenticated {
		return
	}
	vs := &v.controller.visits
	vs.mu.Lock()
	v.forget()
	vs.mu.Unlock()
	if v.conn != nil {
		v.controller.connections.visited(v.conn)
	}
}

// cut makes the handler's reads and writes fail.
func (v *visit) cut() {
	if v.conn != nil && !v.conn.known.Load() {
		_ = v.conn.Close() // more requests on it would be visits too
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.ended {
		v.deadlines.cut()
	}
}
