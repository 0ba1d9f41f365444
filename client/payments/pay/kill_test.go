package main

import (
	"bufio"
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// asVariable makes the test binary one of the programs under test.
const asVariable = "PAY_TEST_RUNS_AS"

func TestMain(m *testing.M) {
	switch os.Getenv(asVariable) {
	case "pay":
		main()
	case "server":
		fmt.Fprintln(os.Stderr, server(os.Args[1], os.Args[2]))
		os.Exit(1)
	default:
		os.Exit(m.Run())
	}
}

// command is one of the programs under test.
func command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asVariable+"="+program)
	return cmd
}

// server serves a ledger until it is killed, or its standard input is closed.
func server(address, dir string) error {
	ctx := context.Background()
	listener, err := freeport.Listen(ctx, address)
	if err != nil {
		return err
	}
	if _, err := embedded.Open(ctx, embedded.Options{Dir: dir, Version: "test", Listener: listener}); err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// kills is the number of kills of all programs together.
const (
	kills      = 1000
	killsShort = 100
	programs   = 4 // at once, each with a payment log of its own
)

// TestPaySurvivesKills kills the programs a thousand times with SIGKILL at random moments, and now and then kills the
// server or takes over a stream. Afterwards each intended payment is in the ledger exactly once, with its amount, and
// nothing else is there.
func TestPaySurvivesKills(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	total := kills
	if testing.Short() {
		total = killsShort
		t.Logf("-short: %d kills instead of %d", killsShort, kills)
	}
	h := &harness{data: t.TempDir()}
	h.serve(t, "")
	dirs := make([]string, programs)
	var group sync.WaitGroup
	for i := range programs {
		dirs[i] = t.TempDir()
		// Ends after its share of the kills; the test waits for it.
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := range total / programs {
				h.disturb(t, random, i, n)
				if !h.killOne(t, random, dirs[i], i) {
					return
				}
			}
			h.finish(t, dirs[i], i)
		})
	}
	group.Wait()
	t.Logf("%d programs and %d servers killed, %d sessions taken", h.killed.Load(), h.restarts.Load(), h.taken.Load())
	if int(h.killed.Load()) != total/programs*programs {
		t.Errorf("want %d kills, got %d", total, h.killed.Load())
	}
	h.audit(t, dirs)
}

// harness runs one server and the programs.
type harness struct {
	data string

	mu      sync.Mutex
	server  *exec.Cmd
	address string

	killed, restarts, taken atomic.Int64
}

// serve starts the server and returns once it answers.
func (h *harness) serve(t *testing.T, listen string) {
	t.Helper()
	cmd := command(context.Background(), "server", listen, h.data)
	in, err := cmd.StdinPipe() // ends with this process, and the server with it
	if err != nil {
		t.Error(err)
		return
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { _ = in.Close(); end(cmd) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end(cmd)
		t.Errorf("the server said %q (%v): %s", line, err, stderr.String())
		return
	}
	h.server, h.address = cmd, strings.TrimSpace(line) // every later one listens there, too
}

// end kills a process with SIGKILL and waits for it.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func clientName(i int) string { return fmt.Sprint("pay-", i) }

// disturb now and then kills the server, or takes over a stream as an operator does who replaces a program that seems
// dead.
func (h *harness) disturb(t *testing.T, random *rand.Rand, i, n int) {
	if n%25 == 24 {
		h.mu.Lock()
		end(h.server)
		h.serve(t, h.address)
		h.mu.Unlock()
		h.restarts.Add(1)
	}
	if random.IntN(20) > 0 {
		return
	}
	c := h.client(t)
	defer c.Close()
	attempt := make([]byte, 16)
	_, _ = cryptorand.Read(attempt) // never fails: it ends the program instead
	_, err := c.OpenSession(t.Context(),
		&seqledgerv1.OpenSessionRequest{Scope: scope(), ClientId: clientName(i), AttemptId: attempt})
	if err != nil {
		t.Logf("the stream was not taken over: %v", err) // the server was killed meanwhile
		return
	}
	h.taken.Add(1)
}

func (h *harness) client(t *testing.T) *client.Client {
	t.Helper()
	c := must.Get(client.New(client.Options{Server: h.address}))(t)
	return c
}

// killOne starts a program and kills it after a random time. It returns false if the program ended by itself, which
// is an error.
func (h *harness) killOne(t *testing.T, random *rand.Rand, dir string, i int) bool {
	var output bytes.Buffer
	cmd := command(t.Context(), "pay", "--server", h.address, "--dir", dir, "--name", clientName(i), "--payments",
		"1000000")
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return false
	}
	ended := make(chan struct{})
	// Ends with the process, which is killed below.
	go func() { defer close(ended); _ = cmd.Wait() }()
	// The random time reaches from before the program has opened a file to the middle of its payments.
	moment := time.NewTimer(time.Duration(random.Int64N(int64(120 * time.Millisecond))))
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-ended:
	}
	_ = cmd.Process.Kill()
	<-ended
	if cmd.ProcessState.ExitCode() != -1 {
		t.Errorf("a program that was not killed ended with %d: %s", cmd.ProcessState.ExitCode(), output.String())
		return false
	}
	h.killed.Add(1)
	return true
}

// finish lets a program settle its open payments.
func (h *harness) finish(t *testing.T, dir string, i int) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := command(ctx, "pay", "--server", h.address, "--dir", dir, "--name", clientName(i), "--payments", "1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the last run of program %d: %v: %s", i, err, out)
	}
}

// audit compares the payment logs with the ledger.
func (h *harness) audit(t *testing.T, dirs []string) {
	t.Helper()
	found, foundCents := h.ledger(t)
	var intended int
	var cents int64
	unsettled := 0
	for _, dir := range dirs {
		all := must.Get(payments.ReadLog(filepath.Join(dir, logName)))(t)
		for _, p := range all {
			intended++
			cents += p.Cents
			got := found["payment/"+p.Tag]
			if len(got) != 1 || got[0] != fmt.Sprint(p.Cents) || !p.Paid {
				t.Errorf("payment %s of %d (paid in the log: %v) is in the ledger as %v", p.Tag, p.Cents, p.Paid, got)
			}
			delete(found, "payment/"+p.Tag)
		}
		content := must.Get(os.ReadFile(filepath.Join(dir, logName)))(t)
		unsettled += bytes.Count(content, []byte("unsettled "))
	}
	for key, got := range found {
		t.Errorf("%s is in the ledger as %v and in no payment log", key, got)
	}
	if cents != foundCents || intended == 0 {
		t.Errorf("%d payments of %d cents intended, %d cents in the ledger", intended, cents, foundCents)
	}
	if !t.Failed() {
		t.Logf("%d payments of %d cents, each once; %d were handed back as unsettled and then settled", intended, cents,
			unsettled)
	}
}

// ledger reads every transaction of the scope.
func (h *harness) ledger(t *testing.T) (map[string][]string, int64) {
	t.Helper()
	c := h.client(t)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Write a block of our own, so that the audit knows where to end.
	w := must.Get(writer.Open(ctx, c, writer.Options{Scope: scope(), ClientID: "auditor"}))(t)
	end := must.Get(w.Write(ctx, op.Append([]byte("audit"))))(t)
	found, sum := make(map[string][]string), int64(0)
	for block, err := range c.Watch(ctx, &seqledgerv1.WatchRequest{Scope: scope()}) {
		must.Do(t, err)
		for _, tx := range block.GetTransactions() {
			for _, operation := range tx.GetOperations() {
				if set := operation.GetSetEntity(); set != nil {
					found[set.GetKey()] = append(found[set.GetKey()], string(set.GetValue()))
					cents, _ := strconv.ParseInt(string(set.GetValue()), 10, 64)
					sum += cents
				}
			}
		}
		if block.GetHeader().GetHeight() >= end.GetBlockHeight() {
			break
		}
	}
	return found, sum
}
