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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/servertest"
)

// The environment of a process that is a worker of TestRace.
const (
	workerURL     = "STOREURL_WORKER_URL"
	workerEffects = "STOREURL_WORKER_EFFECTS" // a file; each effect appends its key
	workerKeys    = "STOREURL_WORKER_KEYS"
	workerForever = "STOREURL_WORKER_FOREVER" // set: until the standard input ends
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

// worker does the work of every key, in an order of its own, until it is done or killed.
func worker(url string) int {
	// Long enough for any test; the processes of one that has failed end at last.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	keys, err := strconv.Atoi(os.Getenv(workerKeys))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, closing, err := Open(ctx, url, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = closing() }()
	if os.Getenv(workerForever) != "" {
		workForever(ctx, s, keys)
		return 0
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // the start of the race
		return 1
	}
	for _, n := range append([]int{0}, rand.Perm(keys)...) { // all race for the first one
		for ctx.Err() == nil && !workOnce(ctx, s, n) {
		}
	}
	return 0
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

// racers is how many processes race.
const racers = 32

// Many processes race for keys, and some are killed in the middle: no work is done twice, and the work of
// most keys is done.
func TestRace(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: starts many processes")
	}
	for name, start := range map[string]func(t *testing.T) *servertest.Server{
		"postgres": func(t *testing.T) *servertest.Server {
			s := servertest.Postgres(t)
			if _, err := Init(t.Context(), s.URL); err != nil {
				t.Fatal(err)
			}
			return s
		},
		"redis": func(t *testing.T) *servertest.Server { return servertest.Redis(t) },
		"s3":    func(t *testing.T) *servertest.Server { return servertest.S3(t) },
	} {
		t.Run(name, func(t *testing.T) { race(t, start(t).URL) })
	}
}

func race(t *testing.T, url string) {
	const keys = 60
	effects := filepath.Join(t.TempDir(), "effects")
	var ready, ended sync.WaitGroup
	var workers []*exec.Cmd
	begin := make(chan struct{})
	for range racers {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), append(servertest.S3Environment(), workerURL+"="+url, workerEffects+"="+effects,
			workerKeys+"="+strconv.Itoa(keys))...)
		cmd.Stderr = os.Stderr
		in, errIn := cmd.StdinPipe()
		out, errOut := cmd.StdoutPipe()
		if errIn != nil || errOut != nil {
			t.Fatal(errIn, errOut)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		workers = append(workers, cmd)
		ready.Add(1)
		// Ends with the process, whose context ends it.
		ended.Go(func() {
			_, err := bufio.NewReader(out).ReadString('\n')
			ready.Done()
			if err == nil {
				<-begin
				_, _ = fmt.Fprintln(in)
			}
			_ = cmd.Wait() // some are killed
		})
	}
	ready.Wait()
	close(begin)
	// Each third is killed when a few more effects have happened.
	for i := 0; i < racers; i += 3 {
		for len(count(t, effects)) < min(i+1, keys) && t.Context().Err() == nil {
			<-time.After(5 * time.Millisecond)
		}
		_ = workers[i].Process.Kill() // it may have ended
	}
	ended.Wait()
	done := count(t, effects)
	for n, times := range done {
		if times != 1 {
			t.Errorf("the work of key %s was done %d times", n, times)
		}
	}
	// A worker that is killed leaves the outcome of one key unknown.
	if most := keys - (racers+2)/3; len(done) < most {
		t.Errorf("the work of %d keys was done, of at least %d", len(done), most)
	}
}

// raceForVariable is for how long TestRaceFor runs, such as 1m.
const raceForVariable = "RACE_FOR"

// Processes work on a thousand keys, others every five seconds, and one after the other is killed (kill -9) and
// replaced: no work is done twice.
func TestRaceFor(t *testing.T) {
	t.Parallel()
	text := os.Getenv(raceForVariable)
	if text == "" {
		t.Skip("skipped: " + raceForVariable + "=1m runs it for so long on each store")
	}
	howLong, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "redis", "s3"} {
		t.Run(name, func(t *testing.T) { raceFor(t, startStore[name](t), howLong) })
	}
}

func raceFor(t *testing.T, url string, howLong time.Duration) {
	const keys, atOnce, everyKill = 1000, 8, 100 * time.Millisecond
	effects := filepath.Join(t.TempDir(), "effects")
	start := func() (kill, end func()) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), workerURL+"="+url, workerEffects+"="+effects, workerForever+"=1",
			workerKeys+"="+strconv.Itoa(keys))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill = func() {
			_ = cmd.Process.Kill() // it has not ended
			_ = cmd.Wait()
		}
		return kill, func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
	var kills, ends [atOnce]func()
	for i := range atOnce {
		kills[i], ends[i] = start()
	}
	killed := 0
	tick := time.NewTicker(everyKill)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < howLong; killed++ {
		<-tick.C
		i := killed % atOnce
		kills[i]()
		kills[i], ends[i] = start()
	}
	for _, end := range ends {
		end()
	}
	done := count(t, effects)
	for n, times := range done {
		if times != 1 {
			t.Errorf("the work of key %s was done %d times", n, times)
		}
	}
	t.Logf("the work of %d keys was done, with %d kills", len(done), killed)
	if len(done) < killed {
		t.Error("hardly any work was done")
	}
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
