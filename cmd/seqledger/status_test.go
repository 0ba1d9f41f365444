package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func TestStatusForPeople(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.do(t, "write", "--scope", "acme", "--client-id", "a", "--append", "x").expect(t, exitDone)
	s.do(t, "status").expect(t, exitDone, "ready ", "yes", "up ", "since ", "recovery", "log entries in", " ago)",
		"committed", "state file", "KiB", "disk free", "scrub ", "round", s.ledgerID)
	r := s.do(t, "status", "--json").expect(t, exitDone, `"startedAt"`, `"diskFreeBytes"`, `"scrub"`)
	if node, ok := r.field(t, "node").(map[string]any); !ok ||
		node["commandsCommitted"] != "2" { // the ledger's own first
		t.Errorf("got %v", r)
	}
}

// TestStatusTellsScrub: how far the comparison with checksums is, when its last round ended, and nothing where
// it is off.
func TestStatusTellsScrub(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		scrub *seqledgerv1.ScrubStatus
		want  string // "" for no line
	}{
		{nil, ""},
		{
			&seqledgerv1.ScrubStatus{Position: 3 << 20, Size: 12 << 20},
			"3.0 MiB of 12.0 MiB (25 %); no round has ended since the start",
		},
		{
			&seqledgerv1.ScrubStatus{Size: 12 << 20, Rounds: 2, LastRound: timestamppb.New(now.Add(-90 * time.Second))},
			"between two rounds; 2 rounds, the last 1m30s ago",
		},
		{ // by a clock that was set back, and of a file that was cut since
			&seqledgerv1.ScrubStatus{Position: 9, Size: 3, Rounds: 1, LastRound: timestamppb.New(now.Add(time.Hour))},
			"9 B of 3 B (100 %); 1 rounds, the last 0s ago",
		},
	} {
		node := &seqledgerv1.NodeStatus{Time: timestamppb.New(now), Scrub: test.scrub}
		got := strings.Join(lines(t, func(shown *table) { showScrub(shown, node) }), "|")
		check.Equal(t, strings.TrimPrefix(got, "scrub "), test.want)
	}
}

func TestStatusReady(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if r := s.do(t, "status", "--ready").expect(t, exitDone); r.stdout+r.stderr != "" {
		t.Errorf("want no word, got %v", r)
	}
	s.kill()
	s.do(t, "status", "--ready").expect(t, exitFailed, "not ready")
}

// TestStatusWatch: a line each time, through a restart of the server, and a
// clean end.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := start(t, "status", "--watch", "--interval", "100ms", "--timeout", "300ms", "--server", s.address)
	awaitOutput(t, p, "committed 0.0/s") // from the second line on
	s.kill()
	awaitLog(t, p, s.address)
	serveOn(t, s.data, s.address)
	before := strings.Count(p.stdout.String(), "\n")
	must.Await(t, func() bool { return strings.Count(p.stdout.String(), "\n") >= before+2 }, p.stdout, p.stderr)
	must.Do(t, p.cmd.Process.Signal(os.Interrupt))
	if code := p.wait(t); code != exitDone {
		t.Errorf("want exit code 0, got %d: %s", code, p.stderr.String())
	}
	if strings.Contains(p.stdout.String(), "\x1b") {
		t.Errorf("control characters where no terminal is: %q", p.stdout.String())
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	at := func(started, seconds int64, n uint64) *seqledgerv1.Status {
		return &seqledgerv1.Status{Node: &seqledgerv1.NodeStatus{
			StartedAt: timestamppb.New(time.Unix(started, 0)),
			Time:      timestamppb.New(time.Unix(seconds, 0)), CommandsCommitted: n,
		}}
	}
	for _, c := range []struct {
		last, now *seqledgerv1.Status
		want      string
	}{
		{at(1, 10, 100), at(1, 14, 110), "2.5/s"},
		{nil, at(1, 10, 1), "-"},
		{at(1, 10, 100), at(9, 11, 110), "-"}, // another start
		{at(1, 10, 100), at(1, 10, 110), "-"}, // no time has passed
		{at(1, 10, 100), at(1, 11, 99), "-"},
		{new(seqledgerv1.Status), at(1, 11, 99), "-"}, // a server that does not report it
	} {
		check.Equal(t, rate(c.now, c.last, (*seqledgerv1.NodeStatus).GetCommandsCommitted), c.want,
			"from %v to %v: %s", c.last, c.now)
	}
}

func TestAgeAndSize(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 1540 * time.Millisecond: "1.5s", 61 * time.Second: "1m1s",
		3*time.Hour + 59*time.Second: "3h0m", 49 * time.Hour: "2d1h",
	} {
		check.Equal(t, age(d), want, "%s is shown as %s", d)
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB",
		5 << 30: "5.0 GiB", 1<<64 - 1: "16.0 EiB"} {
		check.Equal(t, byteSize(n), want, "%d is shown as %s", n)
	}
	ahead := &seqledgerv1.Status{
		LedgerTime: timestamppb.New(time.Unix(200, 0)),
		Node:       &seqledgerv1.NodeStatus{Time: timestamppb.New(time.Unix(100, 0))},
	}
	check.Equal(t, ageSuffix(ledgerAge(ahead)), " (1m40s ahead of the wall clock)")
	check.Equal(t, ageSuffix(ledgerAge(new(seqledgerv1.Status))), "",
		"got %q for a server that does not report its clock")
}

// TestServeDebug: profiles are where they are asked for, and nowhere else.
func TestServeDebug(t *testing.T) {
	t.Parallel()
	address := must.Get(freeport.Address())(t)
	s := serve(t, "--debug-listen", address)
	answer := must.Get(http.Get("http://" + address + "/debug/pprof/goroutine?debug=1"))(t)
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || !strings.Contains(string(text), "goroutine profile") {
		t.Error(err, string(text))
	}
	seqledger(t, "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--debug-listen", address).
		expect(t, exitFailed, "--debug-listen", "address already in use")
	for _, bad := range []string{"0.0.0.0:7451", ":7451", "192.0.2.1:1", "nonsense"} {
		seqledger(t, "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--debug-listen", bad).
			expect(t, exitUsage, "--debug-listen "+bad)
	}
	must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
	if code := s.wait(t); code != exitDone {
		t.Errorf("want a clean end, got %d: %s", code, s.stderr.String())
	}
}

// TestServeTellsWhatItDoes: the log has the start and the end, and a SIGHUP
// between them ends nothing.
func TestServeTellsWhatItDoes(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for range 3 {
		s.do(t, "write", "--scope", "acme", "--client-id", "a", "--append", "x").expect(t, exitDone)
	}
	s.kill() // so that there is something to recover
	s = serveOn(t, s.data, "127.0.0.1:0")
	awaitLog(t, s.process, "msg=serving address="+s.address)
	if log := s.stderr.String(); !strings.Contains(log, "ledger="+s.ledgerID) || !strings.Contains(log, "index=4") ||
		strings.Contains(log, "recovered_entries=0") || !strings.Contains(log, "recovery_took=") {
		t.Errorf("the start is told as %s", log)
	}
	must.Do(t, s.cmd.Process.Signal(syscall.SIGHUP))
	s.do(t, "status").expect(t, exitDone)
	s.do(t, "write", "--scope", "acme", "--client-id", "b", "--append", "x").expect(t, exitDone)
	must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
	if code := s.wait(t); code != exitDone {
		t.Fatalf("want a clean end, got %d: %s", code, s.stderr.String())
	}
	if log := s.stderr.String(); !strings.Contains(log, "msg=stopped") || !strings.Contains(log, "commands=1 ") {
		t.Errorf("the end is told as %s", log)
	}
}
