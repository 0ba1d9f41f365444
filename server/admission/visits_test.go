package admission

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// recorder records the deadlines of a response. A deadline that has passed cuts it.
type recorder struct {
	*httptest.ResponseRecorder

	mu          sync.Mutex
	read, write []time.Time
	cut         chan struct{}
}

func newRecorder() *recorder {
	return &recorder{ResponseRecorder: httptest.NewRecorder(), cut: make(chan struct{})}
}

func (r *recorder) SetReadDeadline(at time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = append(r.read, at)
	return nil
}

func (r *recorder) SetWriteDeadline(at time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.write = append(r.write, at); at == past {
		close(r.cut)
	}
	return nil
}

// visitors are requests that wait until they are cut or told to go.
type visitors struct {
	c       *Controller
	handler http.Handler
	group   sync.WaitGroup
	goOn    chan struct{}
}

func newVisitors(c *Controller) *visitors {
	v := &visitors{c: c, goOn: make(chan struct{})}
	v.handler = c.BeforeAuth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.Visit(r.Context())
		c.Visit(r.Context()) // counts once
		select {
		case <-w.(*recorder).cut:
		case <-v.goOn:
		}
	}))
	return v
}

// begin begins a visit from an address, on a connection if there is one.
func (v *visitors) begin(address string, on *conn) *recorder {
	w := newRecorder()
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	r.RemoteAddr = address + ":1"
	if on != nil {
		r = r.WithContext(ConnContext(r.Context(), on))
	}
	v.group.Go(func() { v.handler.ServeHTTP(w, r) }) // ends when it is cut or goOn is closed; end waits for it
	synctest.Wait()
	return w
}

func (v *visitors) end() {
	close(v.goOn)
	v.group.Wait()
}

func (r *recorder) isCut() bool {
	select {
	case <-r.cut:
		return true
	default:
		return false
	}
}

// Where there are too many visits the oldest is cut, of the connection, of the address or of all, and the newest is
// served.
func TestOldestVisitIsCut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit   int
		owner   Owner
		address func(i int) string
		oneConn bool
	}{
		"connection": {visitsOfConnection, OfConnection, func(int) string { return "192.0.2.1" }, true},
		"address":    {visitsOfAddress, OfAddress, func(int) string { return "192.0.2.1" }, false},
		"all":        {maxVisits, OfServer, func(i int) string { return fmt.Sprintf("198.51.%d.1", i) }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newController(t, Options{Shares: true})
			var on *conn
			if test.oneConn {
				on = c.connections.enter(newFakeConn("192.0.2.1:1"))
				c.connections.identify(on, partyOf(c, "a", Limits{}))
			}
			v := newVisitors(c)
			var all []*recorder
			for i := range test.limit {
				all = append(all, v.begin(test.address(i), on))
			}
			if all[0].isCut() {
				t.Errorf("%s: cut although there is room", name)
			}
			for i := range 3 {
				all = append(all, v.begin(test.address(test.limit+i), on))
			}
			for i, w := range all {
				check.Equal(t, w.isCut(), i < 3, "%s: visit %d of %d: cut %t", name, i, len(all))
			}
			mustCount(t, c, Unauthenticated, test.owner, 3)
			v.end()
			if c.visits.count() != 0 || on != nil && on.visits.Len() != 0 {
				t.Errorf("%s: %d visits are left", name, c.visits.count())
			}
			if on != nil {
				_ = on.Close()
			}
		})
	}
}

// A connection without an authenticated caller and with too many visits is closed.
func TestConnectionOfTooManyVisitsIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		on, inner := openOne(c, "192.0.2.1")
		v := newVisitors(c)
		for range visitsOfConnection + 1 {
			v.begin("192.0.2.1", on)
		}
		inner.closed.Wait()
		mustCount(t, c, Unauthenticated, OfConnection, 1)
		v.end()
		if c.visits.count() != 0 || c.used[Connections].Used() != 0 {
			t.Errorf("%d visits and %d connections are left", c.visits.count(), c.used[Connections].Used())
		}
	})
}

// An admitted request is not a visit, and has other deadlines. Its connection belongs to its party.
func TestAuthenticatedIsNoVisit(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true})
	p := partyOf(c, "a", Limits{Connections: 1})
	var connections []*conn
	for range 2 {
		connections = append(connections, c.connections.enter(newFakeConn("192.0.2.1:1")))
	}
	var errs []error
	h := c.BeforeAuth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := c.Authenticated(r.Context(), p)
		errs = append(errs, err)
		c.Visit(r.Context())
		if visits := c.visits.count(); (err == nil) != (visits == 0) {
			t.Errorf("%d visits, although the caller is known: %v", visits, err)
		}
	}))
	serve := func(on *conn) *recorder {
		w := newRecorder()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
		h.ServeHTTP(w, r.WithContext(ConnContext(r.Context(), on)))
		return w
	}
	began := time.Now()
	w := serve(connections[0])
	if len(w.read) != 2 || w.read[0].After(began.Add(2*visitBody)) || w.read[1].Before(began.Add(BodyTimeout)) ||
		len(w.write) != 2 || w.write[0].After(began.Add(2*visitAnswer)) || w.write[1].Before(began.Add(answerTimeout)) {
		t.Errorf("deadlines for reads %v, for writes %v", w.read, w.write)
	}
	if w = serve(connections[1]); len(w.write) != 1 {
		t.Error("a refused request keeps its deadlines:", w.write)
	}
	must.Do(t, errs[0])
	mustRefuse(t, errs[1], Connections, OfCredential)
	for _, on := range connections {
		_ = on.Close()
	}
	must.Do(t, c.Authenticated(t.Context(), p), "a request that was no visit")
}

// The deadline of a body is taken away at its end, and must be gone while the request is being answered. A request
// without a body has none.
func TestBodyDeadline(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{"": 0, "some": 2} {
		c := newController(t, Options{Shares: true})
		w := newRecorder()
		h := c.BeforeAuth(BodyDeadline(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if text, err := io.ReadAll(r.Body); err != nil || string(text) != body {
				t.Errorf("got %q, %v", text, err)
			}
			Answering(r.Context())
		})))
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
		if len(w.read) != want || want > 0 && (w.read[0].IsZero() || !w.read[1].IsZero()) {
			t.Errorf("%q: want a deadline, then none: %v", body, w.read)
		}
		if last := w.write[len(w.write)-1]; last.After(time.Now().Add(readTimeout)) ||
			last.Before(time.Now().Add(readTimeout/2)) {
			t.Errorf("an answer has until %v", last)
		}
	}
}
