package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/outbox"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var scope = &seqledgerv1.Scope{Organization: "shop", Vault: "main"}

// quick is how often the relays of these tests look for rows.
const quick = 10 * time.Millisecond

// ledger is a ledger that can be restarted at its address.
type ledger struct {
	t       *testing.T
	dir     string
	address string
	stop    func()
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{t: t, dir: t.TempDir()}
	l.start()
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *ledger) start() {
	l.t.Helper()
	listener, err := freeport.Listen(context.Background(), l.address)
	if err != nil {
		l.t.Fatal(err)
	}
	l.address = listener.Addr().String()
	// Not the test's context, which ends before the cleanup.
	e := must.Get(embedded.Open(context.Background(), embedded.Options{Dir: l.dir, Version: "test",
		Listener: listener}))(l.t)
	l.stop = sync.OnceFunc(func() {
		if err := e.Close(); err != nil {
			l.t.Error(err)
		}
	})
}

// dial returns a client of a server.
func dial(t *testing.T, address string) *client.Client {
	t.Helper()
	c := must.Get(client.New(client.Options{Server: address}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// openDatabase makes an outbox.
func openDatabase(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	db := must.Get(pgxpool.New(t.Context(), url))(t)
	t.Cleanup(db.Close)
	must.Do(t, outbox.Init(t.Context(), db, ""))
	return db
}

// insert adds a row.
func insert(t *testing.T, db *pgxpool.Pool, stream string, operations ...*seqledgerv1.Operation) (id int64) {
	t.Helper()
	id = must.Get(outbox.Insert(t.Context(), db, "", stream, operations...))(t)
	return id
}

// run runs a relay until stop is called, or the test ends.
func run(t *testing.T, c *client.Client, db *pgxpool.Pool, o outbox.Options) (relay *outbox.Relay, stop func()) {
	t.Helper()
	o.Scope, o.Poll = scope, quick
	relay = must.Get(outbox.NewRelay(c, db, o))(t)
	return relay, runRelay(t, relay)
}

// runRelay runs a relay until stop is called, or the test ends.
func runRelay(t *testing.T, relay *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	// Ends with stop, which waits for it.
	running.Go(func() {
		check.Is(t, relay.Run(ctx), context.Canceled)
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// await reads the status until it is as wanted.
func await(t *testing.T, db *pgxpool.Pool, wanted func(s *outbox.Status) bool) *outbox.Status {
	t.Helper()
	return awaitTable(t, db, "", wanted)
}

// awaitTable is await for an outbox with another table.
func awaitTable(
	t *testing.T, db *pgxpool.Pool, table string, wanted func(s *outbox.Status) bool,
) *outbox.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond) // what it waits for happens in other processes
	defer tick.Stop()
	for {
		s, err := outbox.ReadStatus(ctx, db, table)
		if err == nil && wanted(s) {
			return s
		}
		if ctx.Err() != nil || t.Failed() {
			t.Fatalf("%+v %v", s, err)
		}
		<-tick.C
	}
}

// settled reports whether no row is left to write.
func settled(s *outbox.Status) bool {
	for _, stream := range s.Streams {
		if stream.Open > 0 {
			return false
		}
	}
	return true
}

// stopped reports whether all streams are stopped.
func stopped(s *outbox.Status) bool {
	for _, stream := range s.Streams {
		if stream.Stopped == "" {
			return false
		}
	}
	return len(s.Streams) > 0
}

// transaction returns the transaction with an id.
func transaction(t *testing.T, c *client.Client, id string) *seqledgerv1.Transaction {
	t.Helper()
	answer := must.Get(c.GetTransaction(t.Context(), &seqledgerv1.GetTransactionRequest{TxId: id}))(t)
	return answer.GetTransaction()
}

// payloads returns what the client ids of the streams have appended, in the order of the ledger.
func payloads(t *testing.T, c *client.Client) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for height := uint64(1); ; height++ {
		block, err := c.GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{Scope: scope, Height: height})
		if errors.Is(err, failure.ErrNotFound) {
			return found
		}
		must.Do(t, err)
		for _, tx := range block.GetTransactions() {
			for _, o := range tx.GetOperations() {
				if a := o.GetAppend(); a != nil {
					name := strings.TrimPrefix(tx.GetClientId(), outbox.DefaultClientPrefix)
					found[name] = append(found[name], string(a.GetPayload()))
				}
			}
		}
	}
}

// same fails unless each stream has exactly its rows, in their order.
func same(t *testing.T, got, want map[string][]string) {
	t.Helper()
	for stream, rows := range want {
		if strings.Join(got[stream], " ") != strings.Join(rows, " ") {
			t.Errorf("stream %s: the ledger has %d rows, want %d:\n%s\n%s", stream, len(got[stream]), len(rows),
				got[stream], rows)
		}
		delete(got, stream)
	}
	for stream := range got {
		t.Errorf("the ledger has a stream %q", stream)
	}
}

func TestEachRowOnceInOrder(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t), openDatabase(t, servertest.Database(t))
	c := dial(t, l.address)
	want := map[string][]string{}
	for i := range 500 { // more than a window of each
		stream, text := fmt.Sprint("s", i%3), fmt.Sprint(i)
		insert(t, db, stream, op.Append([]byte(text)))
		want[stream] = append(want[stream], text)
	}
	relay, _ := run(t, c, db, outbox.Options{})
	await(t, db, settled)
	same(t, payloads(t, c), want)
	// The table says so a moment before the counters do.
	counted := func(n uint64) func(*outbox.Status) bool {
		return func(*outbox.Status) bool { return relay.Counters().Committed >= n }
	}
	await(t, db, counted(500))
	if got := relay.Counters(); got.Committed != 500 || got.Sessions != 3 || got.Owned != 3 || got.Refused != 0 {
		t.Errorf("%+v", got)
	}
	// A row says where the ledger has it.
	var id string
	var height uint64
	const first = "SELECT tx_id, block_height FROM seqledger_outbox ORDER BY id LIMIT 1"
	must.Do(t, db.QueryRow(t.Context(), first).Scan(&id, &height))
	answer, err := c.GetTransaction(t.Context(), &seqledgerv1.GetTransactionRequest{TxId: id, IncludeProof: true})
	if err != nil || answer.GetBlockHeader().GetHeight() != height {
		t.Errorf("%v %v", answer, err)
	}
	// What comes later goes on with the same session.
	insert(t, db, "s0", op.Append([]byte("later")))
	await(t, db, settled)
	await(t, db, counted(501))
	if got := relay.Counters(); got.Committed != 501 || got.Sessions != 3 {
		t.Errorf("%+v", got)
	}
}

// A row that is refused has no effect, and neither have the numbers that it frees.
func TestRefusedRow(t *testing.T) {
	t.Parallel()
	rows := func(t *testing.T, db *pgxpool.Pool) (refused int64) {
		insert(t, db, "s", op.Append([]byte("1")))
		insert(t, db, "s", op.Set("k", []byte("v"), op.IfAbsent()))
		refused = insert(t, db, "s", op.Set("k", []byte("w"), op.IfAbsent()))
		insert(t, db, "s", op.Append([]byte("2")))
		must.Get(db.Exec(t.Context(), `INSERT INTO seqledger_outbox (stream, operations)
			VALUES ('s', '[{"append": {"payloat": "b25l"}}]'), ('s', '[]')`))(t)
		insert(t, db, "s", op.Append([]byte("3")))
		return refused
	}
	t.Run("Park", func(t *testing.T) {
		l, db := newLedger(t), openDatabase(t, servertest.Database(t))
		c := dial(t, l.address)
		refused := rows(t, db)
		run(t, c, db, outbox.Options{Park: true})
		status := await(t, db, settled)
		if s := status.Streams[0]; s.Skipped != 3 || s.Refused != 0 || s.Stopped != "" || s.Next != 5 {
			t.Errorf("%+v", s)
		}
		if r := status.Rows[0]; len(status.Rows) != 3 || r.ID != refused || r.Code != "KEY_EXISTS" ||
			r.State != "skipped" {
			t.Errorf("%+v", status.Rows)
		}
		if r := status.Rows[1]; r.Code != "INVALID_ARGUMENT" || !strings.Contains(r.Refusal, "payloat") {
			t.Errorf("%+v", r)
		}
		same(t, payloads(t, c), map[string][]string{"s": {"1", "2", "3"}})
	})
	t.Run("Stop", func(t *testing.T) {
		l, db := newLedger(t), openDatabase(t, servertest.Database(t))
		c := dial(t, l.address)
		refused := rows(t, db)
		insert(t, db, "other", op.Append([]byte("x")))
		run(t, c, db, outbox.Options{})
		isStopped := func(s *outbox.Status) bool { return len(s.Streams) == 2 && s.Streams[1].Stopped != "" }
		status := await(t, db, isStopped)
		if s := status.Streams[1]; s.Refused != 1 || s.Open != 4 || !strings.Contains(s.Stopped, "KEY_EXISTS") {
			t.Errorf("%+v", s)
		}
		// The condition is repaired in the ledger, and the row runs.
		must.Get(c.Write(t.Context(), &seqledgerv1.WriteRequest{
			Scope: scope, ClientId: "person", Sequence: 1, IdempotencyKey: "01234567-89ab-4def-8123-456789abcdef",
			Operations: []*seqledgerv1.Operation{op.Delete("k")},
		}))(t)
		must.Do(t, outbox.Retry(t.Context(), db, "", refused))
		status = await(t, db, func(s *outbox.Status) bool {
			return isStopped(s) && len(s.Rows) == 1 && s.Rows[0].ID > refused
		})
		check.Is(t, outbox.Skip(t.Context(), db, "", refused), outbox.ErrNothingToDo)
		for range 2 {
			must.Do(t, outbox.Skip(t.Context(), db, "", status.Rows[len(status.Rows)-1].ID))
			rows := len(status.Rows)
			status = await(t, db, func(s *outbox.Status) bool {
				return settled(s) || isStopped(s) && len(s.Rows) > rows
			})
		}
		await(t, db, settled)
		same(t, payloads(t, c), map[string][]string{"s": {"1", "2", "3"}, "other": {"x"}})
		entity := must.Get(c.GetEntity(t.Context(), &seqledgerv1.GetEntityRequest{Scope: scope, Key: "k"}))(t)
		check.Equal(t, string(entity.GetValue()), "w")
	})
}

// unreliable is a way to the ledger on which answers are lost, and writes arrive a second time, later.
type unreliable struct {
	to     string
	losses atomic.Int32
	copies atomic.Int32

	mu   sync.Mutex
	late []func()
}

func (u *unreliable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	send := func() (*http.Response, error) {
		again := r.Clone(context.WithoutCancel(r.Context()))
		again.RequestURI, again.URL.Scheme, again.URL.Host = "", "http", u.to
		again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return http.DefaultTransport.RoundTrip(again)
	}
	isWrite := strings.HasSuffix(r.URL.Path, "/WriteBatch") || strings.HasSuffix(r.URL.Path, "/OpenSession")
	dice := rand.N(8)
	if isWrite && dice == 0 { // it arrives only later, when something else has been sent
		u.copies.Add(1)
		u.mu.Lock()
		u.late = append(u.late, func() {
			if response, err := send(); err == nil {
				_ = response.Body.Close()
			}
		})
		u.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	response, err := send()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = response.Body.Close() }()
	if isWrite && dice == 1 { // the answer is lost
		u.losses.Add(1)
		panic(http.ErrAbortHandler)
	}
	if dice == 2 {
		u.mu.Lock()
		late := u.late
		u.late = nil
		u.mu.Unlock()
		for _, send := range late {
			send()
		}
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, response.Body)
}

// A copy of a call with a refused row may arrive when the row behind it has committed under the number that was
// freed. It must find another session.
func TestLateCopyOfARefusedRow(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t), openDatabase(t, servertest.Database(t))
	var mu sync.Mutex
	var copies []*http.Request
	to := &url.URL{Scheme: "http", Host: l.address}
	// Without X-Forwarded-For, which a ledger without access control refuses.
	toLedger := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if strings.HasSuffix(r.URL.Path, "/WriteBatch") {
			again := r.Clone(context.WithoutCancel(r.Context()))
			again.RequestURI, again.URL.Scheme, again.URL.Host = "", "http", l.address
			again.Body = io.NopCloser(bytes.NewReader(body))
			mu.Lock()
			copies = append(copies, again)
			mu.Unlock()
		}
		toLedger.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	insert(t, db, "s", op.Set("k", nil, op.IfPresent()))
	insert(t, db, "s", op.Append([]byte("once")))
	_, stop := run(t, dial(t, proxy.Listener.Addr().String()), db, outbox.Options{Park: true})
	await(t, db, settled)
	stop()
	if len(copies) < 2 {
		t.Fatalf("%d calls were made", len(copies))
	}
	for _, late := range copies {
		response := must.Get(http.DefaultTransport.RoundTrip(late))(t)
		_ = response.Body.Close()
	}
	same(t, payloads(t, dial(t, l.address)), map[string][]string{"s": {"once"}})
}

// Relays are stopped in the middle and started again, two at a time; the ledger and the database are
// restarted; answers are lost, and copies of writes come late.
func TestNothingTwiceThroughFaults(t *testing.T) {
	t.Parallel()
	rows, lives := 1200, 12
	if testing.Short() {
		rows, lives = 300, 5
	}
	l, server := newLedger(t), servertest.Postgres(t)
	db := openDatabase(t, server.URL)
	way := &unreliable{to: l.address}
	proxy := httptest.NewServer(way)
	t.Cleanup(proxy.Close)
	want := map[string][]string{}
	add := func(from, to int) {
		for i := from; i < to; i++ {
			stream, text := fmt.Sprint("s", i%3), fmt.Sprint(i)
			operations := []*seqledgerv1.Operation{op.Append([]byte(text)), op.Set("row/"+text, nil, op.IfAbsent())}
			if i%10 == 9 { // is refused, and left out
				operations[1] = op.Set("row/0", nil, op.IfAbsent())
			} else {
				want[stream] = append(want[stream], text)
			}
			insert(t, db, stream, operations...)
		}
	}
	insert(t, db, "s0", op.Append([]byte("0")), op.Set("row/0", nil, op.IfAbsent()))
	want["s0"] = append(want["s0"], "0")
	_, stop := run(t, dial(t, l.address), db, outbox.Options{})
	await(t, db, settled)
	stop()
	add(1, rows/2)
	for life := range lives {
		_, stopOne := run(t, dial(t, proxy.Listener.Addr().String()), db, outbox.Options{Park: true})
		_, stopTwo := run(t, dial(t, proxy.Listener.Addr().String()), db, outbox.Options{Park: true})
		before := way.losses.Load() + way.copies.Load()
		await(t, db, func(s *outbox.Status) bool {
			return settled(s) || way.losses.Load()+way.copies.Load() > before+2
		})
		switch life % 3 {
		case 0:
			l.stop()
			l.start()
		case 1:
			server.Kill()
			server.Start()
		case 2:
			const all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
			if _, err := db.Exec(t.Context(), all); err != nil {
				t.Log(err) // the pool's other connections are among them
			}
		}
		stopOne()
		stopTwo()
		if life == lives/2 {
			db.Reset()
			add(rows/2, rows)
		}
	}
	db.Reset()
	run(t, dial(t, l.address), db, outbox.Options{Park: true})
	status := await(t, db, settled)
	if t.Failed() {
		return
	}
	for _, s := range status.Streams {
		if s.Stopped != "" {
			t.Errorf("%+v", s)
		}
	}
	same(t, payloads(t, dial(t, l.address)), want)
	if way.losses.Load() == 0 || way.copies.Load() == 0 {
		t.Errorf("%d answers were lost, %d writes came late", way.losses.Load(), way.copies.Load())
	}
}

// What another program does to a stream, or another ledger in the place of the first, stops it.
func TestWhatStopsAStream(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(t *testing.T, l *ledger) *ledger // while no relay runs
		reason string
	}{
		"Session": {func(t *testing.T, l *ledger) *ledger {
			must.Get(dial(t, l.address).OpenSession(t.Context(), &seqledgerv1.OpenSessionRequest{
				Scope: scope, ClientId: "outbox.s", AttemptId: []byte("0123456789abcdef"),
			}))(t)
			return l
		}, `another program has opened a session as "outbox.s"`},
		"Ledger": {func(t *testing.T, _ *ledger) *ledger { return newLedger(t) }, "was it restored from a backup?"},
	} {
		t.Run(name, func(t *testing.T) {
			l, db := newLedger(t), openDatabase(t, servertest.Database(t))
			insert(t, db, "s", op.Append([]byte("1")))
			_, stop := run(t, dial(t, l.address), db, outbox.Options{})
			await(t, db, settled)
			stop()
			insert(t, db, "s", op.Append([]byte("2")))
			l = test.change(t, l)
			insert(t, db, "s", op.Append([]byte("3")))
			_, stop = run(t, dial(t, l.address), db, outbox.Options{})
			status := await(t, db, stopped)
			stop()
			if s := status.Streams[0]; !strings.Contains(s.Stopped, test.reason) || s.Open != 2 {
				t.Errorf("%+v", s)
			}
			must.Do(t, outbox.Resume(t.Context(), db, "", "s"))
			check.Is(t, outbox.Resume(t.Context(), db, "", "s"), outbox.ErrNothingToDo)
			_, stop = run(t, dial(t, l.address), db, outbox.Options{})
			await(t, db, settled)
			stop()
			if got := payloads(t, dial(t, l.address))["s"]; strings.Join(got[len(got)-2:], " ") != "2 3" {
				t.Error(got)
			}
		})
	}
}

// A stream with much to write does not keep others waiting for its place.
func TestStreamsTakeTurns(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t), openDatabase(t, servertest.Database(t))
	must.Get(db.Exec(t.Context(), `INSERT INTO seqledger_outbox (stream, operations)
		SELECT 'a', '[{"append": {"payload": "b25l"}}]' FROM generate_series(1, 20000)`))(t)
	insert(t, db, "b", op.Append([]byte("one")))
	_, stop := run(t, dial(t, l.address), db, outbox.Options{Concurrency: 1})
	defer stop()
	await(t, db, func(s *outbox.Status) bool {
		if len(s.Streams) == 2 && s.Streams[0].Open == 0 {
			t.Fatal("all of the first stream came before the second")
		}
		return len(s.Streams) == 2 && s.Streams[1].Open == 0
	})
}

// Large rows are read and sent a few at a time.
func TestLargeRows(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t), openDatabase(t, servertest.Database(t))
	want := map[string][]string{}
	for i := range 9 {
		text := strings.Repeat(fmt.Sprint(i), 400<<10)
		insert(t, db, "s", op.Append([]byte(text)))
		want["s"] = append(want["s"], text)
	}
	c := dial(t, l.address)
	run(t, c, db, outbox.Options{})
	await(t, db, settled)
	for i, text := range payloads(t, c)["s"] {
		check.Equal(t, text, want["s"][i], "row %d has %d bytes that begin with %.10q", i, len(text))
	}
	if _, err := outbox.Insert(t.Context(), db, "", "s", op.Append(make([]byte, 13<<20))); err == nil {
		t.Error("a row that no write can carry was taken")
	}
}

// A relay for another scope than that of the rows that it finds is refused.
func TestOtherScope(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t), openDatabase(t, servertest.Database(t))
	insert(t, db, "s", op.Append([]byte("1")))
	_, stop := run(t, dial(t, l.address), db, outbox.Options{})
	await(t, db, settled)
	stop()
	for name, o := range map[string]outbox.Options{
		"scope":  {Scope: &seqledgerv1.Scope{Organization: "shop", Vault: "other"}},
		"prefix": {Scope: scope, ClientPrefix: "relay."},
	} {
		relay := must.Get(outbox.NewRelay(dial(t, l.address), db, o))(t)
		check.ErrorContains(t, relay.Run(t.Context()), `shop/main as client "outbox.s"`, "%s", name)
	}
}

// A relay waits for a database that is not there yet, and does not wait for tables that are missing.
func TestStartWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	l, server := newLedger(t), servertest.Postgres(t)
	db := openDatabase(t, server.URL)
	insert(t, db, "s", op.Append([]byte("1")))
	server.Kill()
	_, stop := run(t, dial(t, l.address), db, outbox.Options{})
	server.Start()
	await(t, db, settled)
	stop()
	relay := must.Get(outbox.NewRelay(dial(t, l.address), db, outbox.Options{Scope: scope, Table: "nowhere"}))(t)
	check.ErrorContains(t, relay.Run(t.Context()), "nowhere")
}

// What is wrong with options, tables and rows is said before anything happens.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]outbox.Options{
		"no scope":             {},
		"half a scope":         {Scope: &seqledgerv1.Scope{Organization: "shop"}},
		"a negative poll":      {Scope: scope, Poll: -1},
		"negative concurrency": {Scope: scope, Concurrency: -1},
		"a negative age":       {Scope: scope, DeleteAfter: -1},
		"three names":          {Scope: scope, Table: "a.b.c"},
		"an empty name":        {Scope: scope, Table: "a."},
		"a long name":          {Scope: scope, Table: strings.Repeat("x", 51)},
		"a zero byte":          {Scope: scope, Table: "a\x00"},
	} {
		if _, err := outbox.NewRelay(nil, nil, o); err == nil || !strings.HasPrefix(err.Error(), "outbox: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := outbox.Schema(`shop."; DROP TABLE x; --`)
	if err != nil || strings.Contains(text, `shop."; DROP`) {
		t.Errorf("a name is not quoted: %v\n%s", err, text)
	}
	db := openDatabase(t, servertest.Database(t))
	for _, stream := range []string{"", "with space", "\u00e4", strings.Repeat("x", 101)} {
		if _, err := outbox.Insert(t.Context(), db, "", stream, op.Append(nil)); err == nil {
			t.Errorf("a stream %q was taken", stream)
		}
	}
	for name, change := range map[string]func() error{
		"Retry":  func() error { return outbox.Retry(t.Context(), db, "", 7) },
		"Skip":   func() error { return outbox.Skip(t.Context(), db, "", 7) },
		"Settle": func() error { return outbox.Settle(t.Context(), db, "", 7, true) },
		"Resume": func() error { return outbox.Resume(t.Context(), db, "", "s") },
	} {
		check.Is(t, change(), outbox.ErrNothingToDo, "%s", name)
	}
}
