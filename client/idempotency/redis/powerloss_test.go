package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// keyStep is the effect of a call on a key.
type keyStep struct {
	state    idempotency.State // 0: the key is free
	response string
	token    uint64 // 0: unknown, because the call was not answered
	started  time.Time
	answered time.Time // zero: never
}

// loadedKey is a key of the load with its steps. The first step is the free key.
type loadedKey struct {
	name  string
	owner *idempotency.Ownership
	steps []keyStep
}

// call makes a call that brings the key to a state, and records the answer and its time.
func (k *loadedKey) call(
	state idempotency.State, response string, do func() (token uint64, outcome idempotency.Outcome, err error),
) error {
	k.steps = append(k.steps, keyStep{state: state, response: response, started: time.Now()})
	token, outcome, err := do()
	if err != nil {
		return err
	}
	if outcome != idempotency.OK && outcome != idempotency.Acquired {
		return fmt.Errorf("%s: %v", k.name, outcome)
	}
	step := &k.steps[len(k.steps)-1]
	step.token, step.answered = token, time.Now()
	return nil
}

// run brings a key to one of all possible states.
func (k *loadedKey) run(ctx context.Context, s *redis.Store) error {
	request := &idempotency.ReserveRequest{Key: key(k.name), AttemptID: idempotency.NewAttemptID(), Lease: time.Hour}
	if err := k.call(idempotency.Pending, "", func() (uint64, idempotency.Outcome, error) {
		r, err := s.Reserve(ctx, request)
		if err != nil {
			return 0, 0, err
		}
		k.owner = &idempotency.Ownership{Key: request.Key, Token: r.Token, AttemptID: request.AttemptID}
		return r.Token, r.Outcome, nil
	}); err != nil {
		return err
	}
	answer := func(a *idempotency.Answer, err error) (uint64, idempotency.Outcome, error) {
		if err != nil {
			return 0, 0, err
		}
		return k.owner.Token, a.Outcome, nil
	}
	end := rand.IntN(6)
	if end == 4 || end == 5 { // through an unknown outcome
		if err := k.call(idempotency.Indeterminate, "", func() (uint64, idempotency.Outcome, error) {
			return answer(s.Heartbeat(ctx, k.owner, idempotency.EndLease))
		}); err != nil {
			return err
		}
	}
	result := idempotency.Result{Response: []byte("result of " + k.name), TTL: time.Hour}
	switch end {
	case 0, 4:
		return k.call(idempotency.Committed, string(result.Response), func() (uint64, idempotency.Outcome, error) {
			return answer(s.Complete(ctx, k.owner, result))
		})
	case 1:
		return k.call(idempotency.Rejected, string(result.Response), func() (uint64, idempotency.Outcome, error) {
			return answer(s.Reject(ctx, k.owner, result))
		})
	case 2:
		return k.call(0, "", func() (uint64, idempotency.Outcome, error) { return answer(s.Release(ctx, k.owner)) })
	}
	return nil // it stays as it is
}

// found returns the step that a key is at: the last step that matches what was read.
func (k *loadedKey) found(r *idempotency.Record) (step int, err error) {
	for i := len(k.steps) - 1; i >= 0; i-- {
		want := k.steps[i]
		if r == nil && want.state == 0 || r != nil && want.state == r.State && want.response == string(r.Response) &&
			(want.token == 0 || want.token == r.Token) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s is at none of its steps: %+v of %+v", k.name, r, k.steps)
}

// cutOff is where a power failure may truncate an append-only file.
type cutOff struct {
	size int64
	// written is when the write began that the last sync included: Redis writes everything that it has executed.
	written time.Time
	syncs   int
}

// tracedCall is a line of strace -f -ttt -y: a complete call, or the beginning of one.
var tracedCall = regexp.MustCompile(`^(\d+) +(\d+\.\d+) (write|fdatasync)\(\d+<([^>]*)>.*?(?:= (\d+)|<unfinished \.\.\.>)$`)

// tracedEnd is the line that ends a call, if it is not the line that began it.
var tracedEnd = regexp.MustCompile(`^(\d+) +\d+\.\d+ <\.\.\. (write|fdatasync) resumed>.*= (\d+)$`)

// lastSync reads a Redis server's trace. size is the final size of the file.
func lastSync(t *testing.T, trace string, size int64) (cut cutOff) {
	t.Helper()
	f := must.Get(os.Open(trace))(t)
	defer func() { _ = f.Close() }()
	var after int64 // bytes written since the last sync began
	var written time.Time
	begun := map[string]cutOff{} // syncs in progress, by thread; size is what was written since
	writing := map[string]bool{} // threads in a write to the file
	wrote := func(n int64) {
		after += n
		for thread, c := range begun {
			c.size += n
			begun[thread] = c
		}
	}
	synced := func(c cutOff) {
		after = c.size
		cut = cutOff{written: c.written, syncs: cut.syncs + 1}
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if m := tracedEnd.FindStringSubmatch(lines.Text()); m != nil {
			n, _ := strconv.ParseInt(m[3], 10, 64)
			if c, ok := begun[m[1]]; ok && m[2] == "fdatasync" {
				delete(begun, m[1])
				synced(c)
			} else if writing[m[1]] {
				wrote(n)
			}
			continue
		}
		m := tracedCall.FindStringSubmatch(lines.Text())
		if m == nil || !strings.HasSuffix(m[4], ".aof") {
			continue
		}
		whole := m[5] != ""
		n, _ := strconv.ParseInt(m[5], 10, 64)
		switch {
		case m[3] == "write":
			seconds, fraction, _ := strings.Cut(m[2], ".")
			sec, _ := strconv.ParseInt(seconds, 10, 64)
			micros, _ := strconv.ParseInt(fraction, 10, 64)
			written = time.Unix(sec, micros*1000)
			writing[m[1]] = !whole
			wrote(n)
		case whole:
			synced(cutOff{written: written})
		default:
			begun[m[1]] = cutOff{written: written}
		}
	}
	cut.size = size - after
	return cut
}

// traced traces a server's writes and syncs, and returns the trace file.
func traced(t *testing.T, server *servertest.Server) string {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed, which says what was synced: apt-get install strace")
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-qq", "-ttt", "-y", "-s", "0", "-o", trace,
		"-e", "trace=write,fdatasync", "-p", strconv.Itoa(server.Pid()))
	must.Do(t, cmd.Start())
	ended := make(chan error, 1)
	// Ends with the server, or the test; the cleanup waits for it.
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	c := connect(t, server)
	for { // until the trace shows writes
		must.Do(t, c.Set(t.Context(), "traced", "1", 0).Err())
		if b, err := os.ReadFile(trace); err == nil && strings.Contains(string(b), ".aof>") {
			return trace
		}
		select {
		case err := <-ended:
			ended <- err
			t.Skipf("strace may not trace here, which says what was synced: %v", err)
		default:
		}
	}
}

// appendOnlyFile returns the file to which a server appends.
func appendOnlyFile(t *testing.T, server *servertest.Server) string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(server.Dir, "appendonlydir", "*.incr.aof")) // from Redis 7 on
	if len(files) == 0 {
		files, _ = filepath.Glob(filepath.Join(server.Dir, "appendonly.aof"))
	}
	if len(files) != 1 {
		t.Fatalf("append-only files: %v", files)
	}
	return files[0]
}

// load brings keys to all states until the server has synced the given number of times, and kills it at a random
// moment.
func load(t *testing.T, server *servertest.Server, s *redis.Store, trace string, syncs int) (keys []*loadedKey) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex
	for worker := range 8 {
		// Ends when the server is killed; the Wait below joins it.
		group.Go(func() {
			for n := 0; ; n++ {
				k := &loadedKey{name: fmt.Sprintf("%d-%d", worker, n), steps: []keyStep{{}}}
				mu.Lock()
				keys = append(keys, k)
				mu.Unlock()
				if k.run(ctx, s) != nil {
					return
				}
			}
		})
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	moment := int64(rand.N(200_000)) // unsynced bytes
	for now := lastSync(t, trace, 0); now.syncs < syncs || -now.size <= moment; now = lastSync(t, trace, 0) {
		if now.syncs > 5*syncs { // this machine writes less than that in a second
			moment = 0
		}
		if t.Context().Err() != nil {
			t.Fatal("the server does not sync")
		}
		<-tick.C
	}
	server.Kill()
	cancel()
	group.Wait()
	return keys
}

// A power failure with appendfsync everysec loses what was not synced, and nothing more. The keys of a load are in
// every state when the server is killed and its file truncated where the last sync began. What was acknowledged before
// that survives; what is lost are the most recent changes, in order; and tokens still grow.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: waits for syncs, of which there is one a second")
	}
	server := servertest.Redis(t, "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
	s := open(t, server.URL+"?pool_size=16", redis.Options{})
	trace := traced(t, server)
	keys := load(t, server, s, trace, 3)
	file := appendOnlyFile(t, server)
	info := must.Get(os.Stat(file))(t)
	cut := lastSync(t, trace, info.Size())
	if cut.size <= 0 || cut.size >= info.Size() {
		t.Fatalf("the file has %d bytes, of which %d are synced", info.Size(), cut.size)
	}
	must.Do(t, os.Truncate(file, cut.size))
	server.Start()
	l := compare(t, s, keys, cut)
	if l.first.Before(l.there) {
		t.Errorf("a change is lost that was acknowledged %v before one was begun that is there", l.there.Sub(l.first))
	}
	t.Logf("%d keys, %d changes lost of %v before the end, %d of %d bytes", len(keys), l.changes,
		time.Since(l.first).Round(time.Millisecond), info.Size()-cut.size, info.Size())
	if l.changes == 0 {
		t.Error("nothing is lost: the test shows nothing")
	}
	repeatLost(t, s, l.results)
	if next := reserve(t, s, "next"); next.Token <= l.token {
		t.Errorf("token %d after %d", next.Token, l.token)
	}
}

// losses describes what a load has lost.
type losses struct {
	changes int          // acknowledged changes that are lost
	results []*loadedKey // the keys whose result is among them
	first   time.Time    // when the first of them was acknowledged
	there   time.Time    // when the last of the others was begun
	token   uint64       // the highest token handed out
}

// compare compares a load with what remains of it, and fails the test if something is lost that was synced.
func compare(t *testing.T, s *redis.Store, keys []*loadedKey, cut cutOff) losses {
	t.Helper()
	l := losses{first: time.Now()}
	for _, k := range keys {
		r, err := s.Get(t.Context(), new(key(k.name)))
		if err != nil && !errors.Is(err, idempotency.ErrNotFound) {
			t.Fatal(err)
		}
		at, err := k.found(r)
		if err != nil {
			t.Error(err)
			continue
		}
		for i, step := range k.steps {
			l.token = max(l.token, step.token)
			switch {
			case i <= at:
				// A free key may never have been reserved, or may have been released.
				if r != nil && step.started.After(l.there) {
					l.there = step.started
				}
			case !step.answered.IsZero():
				l.changes++
				if step.answered.Before(cut.written) {
					t.Errorf("%s has lost step %d, which was acknowledged %v before what was synced", k.name, i,
						cut.written.Sub(step.answered))
				}
				if step.answered.Before(l.first) {
					l.first = step.answered
				}
			}
		}
		if last := k.steps[len(k.steps)-1]; at < len(k.steps)-1 && !last.answered.IsZero() && last.response != "" {
			l.results = append(l.results, k)
		}
	}
	return l
}

// repeatLost retries lost results, as a journal does: if the reservation survived, the result settles its key, and if
// the reservation is lost, the result settles nothing.
func repeatLost(t *testing.T, s *redis.Store, keys []*loadedKey) {
	t.Helper()
	for _, k := range keys {
		last := k.steps[len(k.steps)-1]
		want := idempotency.OK
		if _, err := s.Get(t.Context(), &k.owner.Key); errors.Is(err, idempotency.ErrNotFound) {
			want = idempotency.LeaseLost
		}
		finish := s.Complete
		if last.state == idempotency.Rejected {
			finish = s.Reject
		}
		a, err := finish(t.Context(), k.owner, idempotency.Result{Response: []byte(last.response)})
		if err != nil || a.Outcome != want {
			t.Errorf("%s: the repeat of a result that was lost: %+v, %v; want %v", k.name, a, err, want)
		}
	}
}
