package admission

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A visit is a request whose caller is not known, or not admitted, and for which the server still waits: a health
// check, whose body may arrive late, or a refused request, whose answer may not be read. Visits have separate bounds,
// for each connection, for each address and in total. If there are too many, the oldest is cut, and its connection
// closed if no caller was authenticated on it: a request that is answered at once is never the oldest, and one whose
// body does not arrive soon is. A request is not a visit while its caller is being authenticated: that does not wait
// for a client, and a valid request must not be cut then.

const (
	maxVisits          = 256
	visitsOfAddress    = 128
	visitsOfConnection = 32
	// visitAnswer bounds the sending of a refusal or of a health answer; visitBody bounds a body that arrives before
	// the caller is known.
	visitAnswer = 10 * time.Second
	visitBody   = 5 * time.Second
)

// visit is one request before its caller is known.
type visit struct {
	deadlines  deadlines
	controller *Controller
	conn       *conn // nil when the listener is not ours
	remote     string

	// Under visits.mu, nil unless the visit is counted:
	counted *aged[*visit]
	ofConn  *list.Element // nil also without a connection

	authenticated bool // belongs to the handler

	// called is set once the request has made a call in this process, and calling while one has the request's place.
	called, calling atomic.Bool

	mu    sync.Mutex // held while another goroutine uses the response
	ended bool
}

// visits are the visits of a server.
type visits struct {
	mu sync.Mutex
	byAge[*visit]
}

func (vs *visits) count() int64 {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return int64(vs.all.Len())
}

// visitKey finds the visit of a request in its context.
type visitKey struct{}

// BeforeAuth sets the deadlines of a request of an unknown caller. It runs before everything else.
func (c *Controller) BeforeAuth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{controller: c, conn: connOf(r), deadlines: newDeadlines(w, r), remote: r.RemoteAddr}
		v.deadlines.visit()
		defer v.end()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// Visit records that the server waits for a request whose caller is not admitted. It does nothing if the caller is
// admitted.
func (c *Controller) Visit(ctx context.Context) {
	if v, ok := ctx.Value(visitKey{}).(*visit); ok && !v.authenticated {
		v.begin()
	}
}

// Authenticated records that a request was authenticated as a party and admitted: it gets other deadlines, and its
// connection belongs to the party. The error is a *Refusal.
func (c *Controller) Authenticated(ctx context.Context, p Party) error {
	v, ok := ctx.Value(visitKey{}).(*visit)
	if !ok {
		return nil
	}
	if v.conn != nil && !c.connections.identify(v.conn, p) {
		return c.refuse(ctx, Connections, c.shareOwner())
	}
	v.authenticated = true
	v.deadlines.admitted()
	return nil
}

// begin counts a visit, and cuts the oldest one if there are too many.
func (v *visit) begin() {
	vs, address := &v.controller.visits, addressOf(v.conn, v.remote)
	vs.mu.Lock()
	if v.counted != nil {
		vs.mu.Unlock()
		return
	}
	v.counted = vs.add(address, v)
	oldest, whose := vs.excess(address, visitsOfAddress, maxVisits)
	if v.conn != nil {
		v.ofConn = v.conn.visits.PushBack(v)
		if v.conn.visits.Len() > visitsOfConnection {
			//nolint:forcetypeassert // The list holds nothing else.
			oldest, whose = v.conn.visits.Front().Value.(*visit), OfConnection
		}
	}
	if whose == ownerCount {
		vs.mu.Unlock()
		return
	}
	oldest.forget()
	vs.mu.Unlock()
	v.controller.refusals[Unauthenticated][whose].Add(1)
	oldest.cut()
}

// forget removes a visit from the lists. visits.mu is held.
func (v *visit) forget() {
	if v.counted == nil {
		return
	}
	v.controller.visits.remove(v.counted)
	v.counted = nil
	if v.ofConn != nil {
		v.conn.visits.Remove(v.ofConn)
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
