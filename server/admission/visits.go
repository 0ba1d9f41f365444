package admission

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// A visit is a request whose caller is not known, or not admitted, and for which the
// server waits nevertheless: a health check, whose body may be long in coming, and a
// request that is refused, whose answer may not be taken. Visits have bounds of their
// own, for each connection, for each address and in all. Where there are too many, the
// oldest is cut, and its connection closed if nobody is known on that: a request that is answered at once is never the oldest, and one whose
// body does not come soon is. A request is no visit while its caller is authenticated:
// that waits for nobody, and a good request must not be cut in that moment.

const (
	maxVisits          = 256
	visitsOfAddress    = 128
	visitsOfConnection = 32
	// visitAnswer is how long an answer may take that says nothing but no, or that
	// every caller gets, and visitBody a body that comes before the caller is known.
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
	counted   bool // it is in the lists

	authenticated bool // belongs to the handler

	mu    sync.Mutex // held by cut
	ended bool
}

// visitLink is a visit's place in one of the lists that it is in.
type visitLink struct{ previous, next *visit }

const (
	linkAll = iota
	linkAddress
	linkConnection
	linkCount
)

// visitList has visits in the order in which they began. It is no container/list,
// because that would allocate three elements for every request.
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

// visits are those of a server.
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

// BeforeAuth gives a request the deadlines of one of which nothing is known. It comes
// before everything else.
func (c *Controller) BeforeAuth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{controller: c, conn: connOf(r), deadlines: newDeadlines(w, r), remote: r.RemoteAddr}
		v.deadlines.visit()
		defer v.end()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// Visit says that the server waits for a request whose caller is not admitted. It does
// nothing for one that is.
func (c *Controller) Visit(ctx context.Context) {
	if v, ok := ctx.Value(visitKey{}).(*visit); ok && !v.authenticated {
		v.begin()
	}
}

// Authenticated says that a request was authenticated as a party, and admitted: it has
// other deadlines, and its connection is the party's. The error is a *Refusal.
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

// begin counts a visit, and cuts the oldest of those that are too many.
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

// refuse counts the oldest visit out. visits.mu is held.
func (v *visit) refuse(oldest *visit, whose Owner) *visit {
	oldest.forget()
	v.controller.refusals[Unauthenticated][whose].Add(1)
	return oldest
}

// forget takes a visit out of the lists. visits.mu is held.
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
	if v.authenticated {
		return
	}
	vs := &v.controller.visits
	vs.mu.Lock()
	v.forget()
	vs.mu.Unlock()
	v.mu.Lock()
	v.ended = true
	v.mu.Unlock()
	if v.conn != nil {
		v.controller.connections.visited(v.conn)
	}
}

// cut makes the handler's reads and writes fail.
func (v *visit) cut() {
	if v.conn != nil && !v.conn.known.Load() {
		_ = v.conn.Close() // what comes on it is more of the same
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.ended {
		v.deadlines.cut()
	}
}
