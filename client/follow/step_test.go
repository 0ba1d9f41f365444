package follow_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// steps is where followers meet failures at each message, each while it applies a block.
type steps struct {
	server *servertest.Server
	writer *client.Client
	db     *pgxpool.Pool // without a proxy

	address          string // of the ledger
	database, ledger *storefaults.Proxy

	height int
}

func newSteps(t *testing.T) *steps {
	t.Helper()
	s := &steps{server: servertest.Postgres(t)}
	s.address, _ = serveLedger(t, filepath.Join(t.TempDir(), "data"))
	s.writer, s.db = dial(t, s.address), openDatabase(t, s.server.URL)
	s.database, s.ledger = storefaults.Start(t, s.server.Address), storefaults.Start(t, s.address)
	return s
}

// follow starts a follower with connections of its own, through the proxies or not.
func (s *steps) follow(t *testing.T, proxied bool) (stop func() error) {
	t.Helper()
	url, address := s.server.URL, s.address
	if proxied {
		url, address = strings.Replace(url, s.server.Address, s.database.Address, 1), s.ledger.Address
	}
	db := must.Get(pgxpool.New(t.Context(), url))(t)
	t.Cleanup(db.Close)
	return start(t, dial(t, address), db, keepBalances)
}

// write makes the ledger one block longer.
func (s *steps) write(t *testing.T) {
	t.Helper()
	s.height++
	transfer(t, s.writer, strconv.Itoa(s.height), 1, 2, s.height)
}

// messages returns how many messages pass a proxy while a follower applies a block undisturbed.
func (s *steps) messages(t *testing.T, proxy *storefaults.Proxy) int {
	t.Helper()
	s.write(t)
	proxy.At(0, nil)
	stop := s.follow(t, true)
	await(t, s.db, s.height)
	n := proxy.Passed()
	end(t, stop)
	if n < 3 {
		t.Fatalf("there are %d messages", n)
	}
	return n
}

// end stops a follower, which must not have stopped before.
func end(t *testing.T, stop func() error) {
	t.Helper()
	check.Is(t, stop(), context.Canceled, "a follower that was stopped")
}

// waiting reports whether a statement waits for another transaction.
func (s *steps) waiting(t *testing.T) bool {
	t.Helper()
	var n int
	err := s.db.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&n)
	return err == nil && n > 0
}

// followEvent is what happens before a message passes one of the proxies.
type followEvent struct {
	name  string
	proxy func(s *steps) *storefaults.Proxy
	// before is called before the message, and afterwards in the test once it was, with the follower's stop. It
	// returns the stops of those that run then, and a function that is called again and again.
	before     func(s *steps)
	afterwards func(t *testing.T, s *steps, stop func() error) (stops []func() error, meanwhile func())
}

func ofDatabase(s *steps) *storefaults.Proxy { return s.database }
func ofLedger(s *steps) *storefaults.Proxy   { return s.ledger }

func followEvents() []followEvent {
	goesOn := func(_ *testing.T, _ *steps, stop func() error) ([]func() error, func()) {
		return []func() error{stop}, func() {}
	}
	return []followEvent{
		{"follower killed", ofDatabase, func(s *steps) {
			s.database.Set(storefaults.Refuse) // which is what the database sees of it
		}, func(t *testing.T, s *steps, stop func() error) ([]func() error, func()) {
			end(t, stop)
			s.database.Set(storefaults.Pass)
			return []func() error{s.follow(t, true)}, func() {}
		}},
		{"follower paused", ofDatabase, func(s *steps) {
			s.database.Set(storefaults.Stall)
		}, func(t *testing.T, s *steps, stop func() error) ([]func() error, func()) {
			second := s.follow(t, false) // applies the block, or waits for the transaction of the first
			return []func() error{stop, second}, func() {
				if s.waiting(t) {
					s.database.Set(storefaults.Pass)
				}
			}
		}},
		{"database killed", ofDatabase, func(s *steps) {
			s.server.Kill()
		}, func(_ *testing.T, s *steps, stop func() error) ([]func() error, func()) {
			s.server.Start()
			return []func() error{stop}, func() {}
		}},
		{"database cut off", ofDatabase, func(s *steps) {
			s.database.Set(storefaults.Refuse)
			s.database.Set(storefaults.Pass)
		}, goesOn},
		{"ledger cut off", ofLedger, func(s *steps) {
			s.ledger.Set(storefaults.Refuse)
			s.ledger.Set(storefaults.Pass)
		}, goesOn},
	}
}

// A follower, its database and its connections fail before each message: the block is applied, and once.
func TestAtEachMessage(t *testing.T) {
	t.Parallel()
	for i, event := range followEvents() {
		if testing.Short() && i > 0 {
			break // each starts a PostgreSQL
		}
		t.Run(event.name, func(t *testing.T) {
			t.Parallel()
			s := newSteps(t)
			messages := s.messages(t, event.proxy(s))
			for step := 1; step <= messages; step++ {
				if testing.Short() && step != messages-1 { // near the commit
					continue
				}
				t.Run(fmt.Sprint(step), func(t *testing.T) { s.meet(t, event, step) })
			}
			var sum int
			err := s.db.QueryRow(t.Context(), "SELECT sum(balance) FROM balances").Scan(&sum)
			if err != nil || sum != 0 {
				t.Errorf("the balances have the sum %d, %v", sum, err)
			}
		})
	}
}

// meet has a follower apply a block, during which something happens.
func (s *steps) meet(t *testing.T, event followEvent, step int) {
	t.Helper()
	s.write(t)
	reached := make(chan struct{})
	proxy := event.proxy(s)
	proxy.At(step, func() {
		event.before(s)
		close(reached)
	})
	stop := s.follow(t, true)
	stops, meanwhile := []func() error{stop}, func() {}
	happened := func() {
		stops, meanwhile = event.afterwards(t, s, stop)
		reached = nil // which never comes
	}
	awaitWhile(t, s.db, s.height, func() {
		select {
		case <-reached:
			happened()
		default:
		}
		meanwhile()
	})
	if proxy.At(0, nil) && reached != nil { // with one of the last messages, or later
		<-reached
		happened()
	}
	s.database.Set(storefaults.Pass)
	for _, stop := range stops {
		end(t, stop)
	}
	await(t, s.db, s.height)
}
