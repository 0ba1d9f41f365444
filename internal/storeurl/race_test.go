package storeurl

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// The environment of a process that is a worker of TestRace or TestRaceFor.
const (
	workerURL     = "STOREURL_WORKER_URL"
	workerEffects = "STOREURL_WORKER_EFFECTS" // a file; each effect appends its key
	workerKeys    = "STOREURL_WORKER_KEYS"    // how many keys it draws from; unset: it reads them
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		os.Exit(worker(url))
	}
	for _, variable := range servertest.S3Environment() { // for the tests that open a bucket in this process
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// worker does the work of the keys whose numbers it reads, and reports each, until its input ends or it is killed.
func worker(url string) int {
	// Long enough for any test; the processes of one that has failed end at last.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	s, closing, err := openWorker(ctx, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = closing() }()
	if text := os.Getenv(workerKeys); text != "" {
		keys, err := strconv.Atoi(text)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		workForever(ctx, s, keys)
		return 0
	}
	fmt.Println("ready")
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		n, err := strconv.Atoi(input.Text())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		for ctx.Err() == nil && !workOnce(ctx, s, n) {
		}
		fmt.Println("done")
	}
	return 0
}

// openWorker opens the store, whose server may have been killed a moment ago.
func openWorker(ctx context.Context, url string) (idempotency.Store, func() error, error) {
	for {
		s, closing, err := Open(ctx, url, slog.New(slog.DiscardHandler))
		if err == nil || ctx.Err() != nil {
			return s, closing, err
		}
	}
}

// workForever does the work of keys until the standard input ends. Every five seconds they are others.
func workForever(ctx context.Context, s idempotency.Store, keys int) {
	ctx, cancel := context.WithCancel(ctx)
	// Ends with the standard input, or the process.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for ctx.Err() == nil {
		generation := int(time.Now().Unix()/5) * keys
		for _, n := range rand.Perm(keys) {
			if ctx.Err() != nil || int(time.Now().Unix()/5)*keys != generation {
				break
			}
			workOnce(ctx, s, generation+n)
		}
	}
}

// workOnce does the work of a key, and reports whether it is done or given up.
func workOnce(ctx context.Context, s idempotency.Store, n int) (ended bool) {
	key := idempotency.RecordKey{Namespace: "race", Key: "key-" + strconv.Itoa(n)}
	settings := idempotency.Settings{Lease: time.Second, StoreTimeout: 20 * time.Second}
	_, err := idempotency.DoOptions{Settings: settings}.Do(ctx, s, key,
		func(context.Context, *idempotency.Owner) ([]byte, error) {
			f, err := os.OpenFile(os.Getenv(workerEffects), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
			if err != nil {
				return nil, err
			}
			defer func() { _ = f.Close() }()
			_, err = fmt.Fprintln(f, n)
			return nil, err
		})
	switch idempotency.CodeOf(err) {
	case idempotency.CodeInFlight, idempotency.CodeStoreUnavailable, idempotency.CodeQuota:
		return false
	}
	return true
}

// How many processes race for how many keys.
const racers, commonKeys = 32, 50

// Many processes race for one key after the other, and some are killed in the middle: no work is done twice, and the
// work of most keys is done.
func TestRace(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: starts many processes")
	}
	for name, start := range startServer {
		t.Run(name, func(t *testing.T) { race(t, start(t).URL) })
	}
}

// racer is a process that races.
type racer struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startRacer(t *testing.T, url, effects string) *racer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), workerURL+"="+url, workerEffects+"="+effects)
	cmd.Stderr = os.Stderr
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if errIn != nil || errOut != nil {
		t.Fatal(errIn, errOut)
	}
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // some are killed
	})
	return &racer{cmd, in, bufio.NewReader(out)}
}

// says reports whether a racer says what it should. One that is killed says nothing.
func (r *racer) says(text string) bool {
	line, err := r.out.ReadString('\n')
	return err == nil && line == text+"\n"
}

func race(t *testing.T, url string) {
	effects := filepath.Join(t.TempDir(), "effects")
	var running []*racer
	for range racers {
		running = append(running, startRacer(t, url, effects))
	}
	for _, r := range running {
		if !r.says("ready") {
			t.Fatal("a process does not start")
		}
	}
	killed := 0
	for n := range commonKeys {
		for _, r := range running { // a barrier: all have ended the work of the key before
			_, _ = fmt.Fprintln(r.in, n)
		}
		if n%5 == 4 {
			killed++
			victim := rand.IntN(len(running))
			_ = running[victim].cmd.Process.Kill()
			running = slices.Delete(running, victim, victim+1) // it may have done its work, and have said so
		}
		running = slices.DeleteFunc(running, func(r *racer) bool { return !r.says("done") })
		if len(running) != racers-killed {
			t.Fatalf("%d processes run, and %d of %d were killed", len(running), killed, racers)
		}
	}
	done := count(t, effects)
	for n, times := range done {
		check.Equal(t, times, 1, "the work of key %s was done %d times", n)
	}
	// A process that is killed leaves the outcome of one key unknown.
	if most := commonKeys - killed; len(done) < most {
		t.Errorf("the work of %d keys was done, of at least %d", len(done), most)
	}
}

// raceForVariable is for how long TestRaceFor runs, such as 1m.
const raceForVariable = "RACE_FOR"

// Processes work on a thousand keys, others every five seconds, and one after the other is killed (kill -9) and
// replaced, and so is the server, which has stored what it acknowledged: no work is done twice.
func TestRaceFor(t *testing.T) {
	t.Parallel()
	text := os.Getenv(raceForVariable)
	if text == "" {
		t.Skip("skipped: " + raceForVariable + "=1m runs it for so long on each store")
	}
	howLong := must.Get(time.ParseDuration(text))(t)
	for _, name := range []string{"postgres", "redis", "s3"} {
		t.Run(name, func(t *testing.T) { raceFor(t, startServer[name](t), howLong) })
	}
}

func raceFor(t *testing.T, server *servertest.Server, howLong time.Duration) {
	const keys, atOnce, everyKill, everyServer = 1000, 8, 100 * time.Millisecond, 10 // kills
	effects := filepath.Join(t.TempDir(), "effects")
	start := func() (kill, end func()) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), workerURL+"="+server.URL, workerEffects+"="+effects,
			workerKeys+"="+strconv.Itoa(keys))
		cmd.Stderr = os.Stderr
		in := must.Get(cmd.StdinPipe())(t)
		must.Do(t, cmd.Start())
		kill = func() {
			_ = cmd.Process.Kill() // it has not ended
			_ = cmd.Wait()
		}
		return kill, func() {
			_ = in.Close()
			check.Is(t, cmd.Wait(), nil)
		}
	}
	var kills, ends [atOnce]func()
	for i := range atOnce {
		kills[i], ends[i] = start()
	}
	killed, servers := 0, 0
	tick := time.NewTicker(everyKill)
	defer tick.Stop()
	last := 0
	for began := time.Now(); time.Since(began) < howLong || servers == 0; killed++ {
		for done := last; done == last; { // each kill after some work, however slow this machine is
			<-tick.C
			done = len(count(t, effects))
		}
		last = len(count(t, effects))
		i := killed % atOnce
		kills[i]()
		kills[i], ends[i] = start()
		if killed%everyServer == everyServer-1 {
			server.Kill()
			server.Start()
			servers++
		}
	}
	for _, end := range ends {
		end()
	}
	done := count(t, effects)
	for n, times := range done {
		check.Equal(t, times, 1, "the work of key %s was done %d times", n)
	}
	t.Logf("the work of %d keys was done, with %d kills, and %d of the server", len(done), killed, servers)
}

// count returns how often the work of each key was done.
func count(t *testing.T, effects string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(effects)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	done := map[string]int{}
	for line := range strings.Lines(string(b)) {
		done[strings.TrimSpace(line)]++
	}
	return done
}
