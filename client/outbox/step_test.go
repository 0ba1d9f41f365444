package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/outbox"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// dyingVariable makes the test binary a relay that kills itself. It has the database's URL, the ledger's address, the
// stream, the step and how many times the step is reached, with line breaks between them.
const dyingVariable = "OUTBOX_RELAY_DIES_AT"

func TestMain(m *testing.M) {
	if where := os.Getenv(dyingVariable); where != "" {
		fmt.Fprintln(os.Stderr, dyingRelay(strings.Split(where, "\n")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// dyingRelay is a relay that dies at a step, or when its standard output is closed.
func dyingRelay(where []string) error {
	ctx := context.Background()
	db, err := pgxpool.New(ctx, where[0])
	if err != nil {
		return err
	}
	c, err := client.New(client.Options{Server: where[1]})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(c, db,
		outbox.Options{Scope: scope, Table: tableOf(where[2]), Park: true, Poll: quick})
	if err != nil {
		return err
	}
	times, err := strconv.Atoi(where[4])
	if err != nil {
		return err
	}
	relay.At(once(where[3], times, func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal is there
	}))
	// Ends the process when the test has ended.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	return relay.Run(ctx)
}

// once calls do when a step is reached for so many times.
func once(at string, times int, do func()) func(stream, step string) {
	var reached atomic.Int64
	return func(_, step string) {
		if step == at && reached.Add(1) == int64(times) {
			do()
		}
	}
}

// tableOf is the table of a stream, because a relay takes all streams of its table.
func tableOf(stream string) string { return "outbox_" + stream }

// stepBed is where things fail at steps.
type stepBed struct {
	*ledger

	server *servertest.Server
	db     *pgxpool.Pool
	serial atomic.Int64 // of streams
}

func newStepBed(t *testing.T) *stepBed {
	t.Helper()
	server := servertest.Postgres(t)
	db := must.Get(pgxpool.New(t.Context(), server.URL))(t)
	t.Cleanup(db.Close)
	return &stepBed{ledger: newLedger(t), server: server, db: db}
}

// begin makes a table whose rows bring a relay to every step: two that are written, one that is refused, and two
// that have to wait for that.
func (b *stepBed) begin(t *testing.T) (stream string) {
	t.Helper()
	stream = fmt.Sprint("s", b.serial.Add(1))
	must.Do(t, outbox.Init(t.Context(), b.db, tableOf(stream)))
	for _, text := range []string{"1", "2", "", "3", "4"} {
		b.add(t, stream, text)
	}
	return stream
}

// add inserts a row, which is refused if it has no text.
func (b *stepBed) add(t *testing.T, stream, text string) {
	t.Helper()
	operation := op.Append([]byte(text))
	if text == "" {
		operation = op.Set("nowhere", nil, op.IfPresent())
	}
	must.Get(outbox.Insert(t.Context(), b.db, tableOf(stream), stream, operation))(t)
}

// run starts a relay of the stream's table, for which something happens at each step.
func (b *stepBed) run(t *testing.T, stream string, at func(stream, step string)) (stop func()) {
	t.Helper()
	return b.runOver(t, b.db, stream, at)
}

// runOver is run for a relay that reaches the database in its own way.
func (b *stepBed) runOver(
	t *testing.T, db *pgxpool.Pool, stream string, at func(stream, step string),
) (stop func()) {
	t.Helper()
	relay := must.Get(outbox.NewRelay(dial(t, b.address), db, outbox.Options{
		Scope: scope, Table: tableOf(stream), Park: true, Poll: quick,
	}))(t)
	relay.At(at)
	relay.SetSilence(time.Second)
	return runRelay(t, relay)
}

// disown is what happens by itself when a relay has not been heard of for 15 seconds.
func (b *stepBed) disown(t *testing.T, stream string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for one that has locked the stream
	defer cancel()
	const update = `UPDATE %s_streams SET owner = NULL`
	must.Get(b.db.Exec(ctx, fmt.Sprintf(update, tableOf(stream))))(t)
}

// finish has the relays that run, and one more, write all rows, and one that is new; each must be there once, where
// its row says.
func (b *stepBed) finish(t *testing.T, stream string) {
	t.Helper()
	stop := b.run(t, stream, func(string, string) {})
	awaitTable(t, b.db, tableOf(stream), settled)
	b.add(t, stream, "5")
	status := awaitTable(t, b.db, tableOf(stream), settled)
	stop()
	if s := status.Streams[0]; s.Stopped != "" || s.Skipped != 1 || s.Refused != 0 || s.Next != 6 {
		t.Errorf("%+v", s)
	}
	want := []string{"1", "2", "3", "4", "5"}
	c := dial(t, b.address)
	check.EqualSlices(t, payloads(t, c)[stream], want, "the ledger has %q")
	rows := must.Get(b.db.Query(t.Context(), fmt.Sprintf(`SELECT sequence, tx_id, operations->0->'append'->>'payload'
		FROM %s WHERE state = 'committed' ORDER BY id`, tableOf(stream))))(t)
	defer rows.Close()
	for next := 1; rows.Next(); next++ {
		var sequence int
		var id, payload string
		must.Do(t, rows.Scan(&sequence, &id, &payload))
		found := transaction(t, c, id)
		if sequence != next || found.GetSequence() != uint64(next) ||
			string(found.GetOperations()[0].GetAppend().GetPayload()) != want[next-1] {
			t.Errorf("row %d has number %d, and its transaction is %v", next, sequence, found)
		}
	}
	must.Do(t, rows.Err())
}

// pausing starts a relay that waits at a step, for goOn, and returns once it is there.
func (b *stepBed) pausing(t *testing.T, stream string, where reached) (goOn, stop func()) {
	t.Helper()
	here, going := make(chan struct{}), make(chan struct{})
	stop = b.run(t, stream, once(where.step, where.times, func() {
		close(here)
		select {
		case <-going:
		case <-t.Context().Done(): // it failed
		}
	}))
	select {
	case <-here:
	case <-time.After(3 * time.Minute):
		t.Fatal("the step is not reached")
	}
	return func() { close(going) }, stop
}

// reached is a step, and how many times it is reached before something happens.
type reached struct {
	step  string
	times int
}

// inTransaction are the steps at which a relay holds the lock of its stream.
var inTransaction = []string{"numbering", "settling", "refusing"}

// everyStep lists the steps, those that come before and after the refusal twice. The third numbering notes the last
// rows' receipts.
func everyStep() (list []reached) {
	for _, step := range outbox.Steps() {
		list = append(list, reached{step, 1})
		if !strings.Contains(step, "refus") && !strings.HasPrefix(step, "settl") && !testing.Short() {
			list = append(list, reached{step, 2})
		}
	}
	return append(list, reached{"numbering", 3})
}

// A relay is killed at each step of its work (kill -9), and the next one goes on.
func TestRelayKilledAtEachStep(t *testing.T) {
	t.Parallel()
	b := newStepBed(t)
	for i, where := range everyStep() {
		if testing.Short() && i%4 != 2 {
			continue // each is a process
		}
		t.Run(fmt.Sprintf("%s/%d", where.step, where.times), func(t *testing.T) {
			stream := b.begin(t)
			relay := exec.Command(os.Args[0])
			relay.Env = append(os.Environ(), dyingVariable+"="+strings.Join([]string{
				b.server.URL, b.address, stream, where.step, strconv.Itoa(where.times),
			}, "\n"))
			in, err := relay.StdinPipe() // ends with this process, and the relay with it
			must.Do(t, err)
			// Here and not with the cleanup: a relay that does not die would wait for it.
			timer := time.AfterFunc(3*time.Minute, func() { _ = in.Close() })
			out, err := relay.CombinedOutput()
			timer.Stop()
			ended, ok := errors.AsType[*exec.ExitError](err)
			if !ok || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("want a relay that was killed, got %v: %s", err, out)
			}
			b.disown(t, stream)
			b.finish(t, stream)
		})
	}
}

// A relay stops at each step, as one does whose machine was paused; another one takes everything over and finishes;
// then the first goes on.
func TestRelayOvertakenAtEachStep(t *testing.T) {
	t.Parallel()
	b := newStepBed(t)
	for i, where := range everyStep() {
		if testing.Short() && (i%2 == 0 || slices.Contains(inTransaction, where.step)) {
			continue // PostgreSQL ends a transaction after a second
		}
		t.Run(fmt.Sprintf("%s/%d", where.step, where.times), func(t *testing.T) {
			stream := b.begin(t)
			goOn, stop := b.pausing(t, stream, where)
			b.disown(t, stream)
			stopSecond := b.run(t, stream, func(string, string) {})
			awaitTable(t, b.db, tableOf(stream), settled)
			stopSecond()
			goOn()
			b.finish(t, stream)
			stop()
		})
	}
}

// The database is not heard of from each step on: what the relay asks of it is under way. Another relay takes
// everything over and finishes; then all of that arrives.
func TestStallAtEachStep(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: PostgreSQL ends a transaction for each step")
	}
	b := newStepBed(t)
	for _, where := range everyStep() {
		t.Run(fmt.Sprintf("%s/%d", where.step, where.times), func(t *testing.T) {
			proxy := storefaults.Start(t, b.server.Address)
			db := must.Get(pgxpool.New(t.Context(), strings.Replace(b.server.URL, b.server.Address, proxy.Address,
				1)))(t)
			t.Cleanup(db.Close)
			stream, here := b.begin(t), make(chan struct{})
			stop := b.runOver(t, db, stream, once(where.step, where.times, func() {
				proxy.Set(storefaults.Stall)
				close(here)
			}))
			select {
			case <-here:
			case <-time.After(3 * time.Minute):
				t.Fatal("the step is not reached")
			}
			b.disown(t, stream)
			stopSecond := b.run(t, stream, func(string, string) {})
			awaitTable(t, b.db, tableOf(stream), settled)
			stopSecond()
			proxy.Set(storefaults.Pass)
			b.finish(t, stream)
			stop()
		})
	}
}

// The database, and the ledger, crash and start again at each step.
func TestRestartAtEachStep(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it restarts a PostgreSQL for each step")
	}
	for _, name := range []string{"database", "ledger"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newStepBed(t)
			for _, where := range everyStep() {
				t.Run(fmt.Sprintf("%s/%d", where.step, where.times), func(t *testing.T) {
					stream := b.begin(t)
					goOn, stop := b.pausing(t, stream, where)
					if name == "database" {
						b.server.Kill()
						b.server.Start()
						b.db.Reset()
					} else {
						b.stop()
						b.start()
					}
					goOn()
					awaitTable(t, b.db, tableOf(stream), settled)
					stop()
					b.finish(t, stream)
				})
			}
		})
	}
}
