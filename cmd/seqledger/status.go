package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/seqledger/seqledger/client"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type statusCommand struct {
	clientFlags `embed:""`
	Watch       bool          `help:"Ask again and again, and show rates, until Ctrl-C." short:"w"`
	Interval    time.Duration `help:"With --watch: how long to wait between two answers." default:"2s"`
	Ready       bool          `help:"Say nothing, and exit with 0 if the server takes requests and 1 if not."`
}

func (*statusCommand) Help() string {
	return "On a terminal --watch keeps one table up to date; elsewhere it prints one line each time. A " +
		"server that does not" + `
answer is reported, and asked again.

    seqledger status
    seqledger status --server 127.0.0.1:7451 --json
    seqledger status --watch --interval 10s
    seqledger status --ready --timeout 3s || echo down`
}

func (c *statusCommand) Run(e *environment) error {
	switch {
	case c.Ready && c.Watch:
		return usage("--ready and --watch do not go together")
	case c.Interval < 100*time.Millisecond:
		return usage("--interval must be at least 100ms")
	case c.Ready:
		return c.ready(e)
	case c.Watch:
		return c.watch(e)
	}
	status := func(ctx context.Context, conn *client.Client) (*seqledgerv1.Status, error) { return conn.Status(ctx) }
	return ask(e, &c.clientFlags, status, func(t *table, s *seqledgerv1.Status) { showStatus(t, s, nil) })
}

// ready asks once, like a load balancer, without credentials, because a health check repeats it.
func (c *statusCommand) ready(e *environment) error {
	if err := c.check(); err != nil {
		return err
	}
	servers, config, err := c.target()
	if err != nil {
		return err
	}
	server := servers[0] // a check needs exactly one server
	ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
	defer cancel()
	loopback := loopbackURL(server)
	status, body, err := askPage(ctx, server, "/readyz", config)
	if loopback && !strings.Contains(c.Server, "://") && strings.Contains(body, "HTTPS") {
		// A server with TLS says so to a request in cleartext. Its certificate does not name
		// the loopback address, so it is not verified: nothing secret is sent, and only the
		// ready status is used.
		server, config = "https://"+server, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
		status, body, err = askPage(ctx, server, "/readyz", config)
	}
	switch {
	case err == nil && status == http.StatusOK:
		return nil
	case e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	}
	why := whyUnreachable(err)
	if why == nil {
		why = probe(ctx, server, config)
	}
	switch {
	case why != nil && why != undecided:
	case err != nil:
		why = &unreachableError{what: err.Error(), hint: isItRunning}
	default:
		why = &unreachableError{what: fmt.Sprintf("the answer is %d %s", status, http.StatusText(status))}
		if reason, said := strings.CutPrefix(oneLine(strings.TrimSpace(body)), "not ready: "); said {
			why.what = reason
		}
	}
	return fail(exitFailed, why.hint, "not ready: %s", why.from(c.Server))
}

// watch asks until the process is told to stop, which is not an error.
func (c *statusCommand) watch(e *environment) error {
	if err := c.check(); err != nil {
		return err
	}
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	// A few attempts each time, because a failure is printed, and the next round asks again.
	err := c.connectionFlags.connected(e, func(conn *client.Client) error {
		var last *seqledgerv1.Status
		for {
			ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
			status, err := conn.Status(ctx)
			cancel()
			switch {
			case e.ctx.Err() != nil:
				return nil
			case err != nil:
				e.notice("%s: %s", c.Server, oneLine(err.Error()))
			default:
				if err := e.showWatched(status, last); err != nil {
					return err
				}
			}
			last = status // nil after a failure: there is no rate then
			select {
			case <-tick.C:
			case <-e.ctx.Done():
				return nil
			}
		}
	})
	return err
}

// clearScreen moves to the corner and clears what is below.
const clearScreen = "\x1b[H\x1b[2J"

// showWatched prints one of many answers.
func (e *environment) showWatched(status, last *seqledgerv1.Status) error {
	if e.json {
		return e.showJSON(status)
	}
	if out, ok := e.stdout.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		if _, err := fmt.Fprint(e.stdout, clearScreen); err != nil {
			return err
		}
		return e.show(status, func(t *table) { showStatus(t, status, last) })
	}
	node := status.GetNode()
	_, err := fmt.Fprintf(e.stdout,
		"%s index %d streams %d committed %s refused %s ledger-age %s state %s log %s free %s\n",
		node.GetTime().AsTime().UTC().Format(time.RFC3339), status.GetIndex(), status.GetStreams(),
		rate(status, last, (*seqledgerv1.NodeStatus).GetCommandsCommitted),
		rate(status, last, (*seqledgerv1.NodeStatus).GetCommandsRefused), ledgerAge(status),
		byteSize(node.GetStateBytes()), byteSize(node.GetLogBytes()), byteSize(node.GetDiskFreeBytes()))
	return err
}

// showStatus fills in the table. Last is an earlier answer, for rates; nil for
// none.
func showStatus(t *table, s, last *seqledgerv1.Status) {
	node := s.GetNode()
	t.field("version", s.GetVersion())
	t.field("ledger", s.GetLedgerId())
	if node != nil { // older servers do not report it
		ready := "yes"
		if node.GetNotReady() != "" {
			ready = "no: " + oneLine(node.GetNotReady())
		}
		t.field("ready", ready)
		t.field("up", age(node.GetTime().AsTime().Sub(node.GetStartedAt().AsTime()))+", since "+timestamp(
			node.GetStartedAt()))
		showClusterLine(t, node.GetCluster())
		t.field("recovery", fmt.Sprintf("%d log entries in %s", node.GetRecoveredEntries(),
			node.GetRecoveryDuration().AsDuration().Round(time.Millisecond)))
	}
	t.field("index", number(s.GetIndex()))
	t.field("ledger time", timestamp(s.GetLedgerTime())+ageSuffix(ledgerAge(s)))
	t.field("digest", s.GetDigest())
	t.field("streams", number(s.GetStreams()))
	if node != nil {
		t.field("committed", number(node.GetCommandsCommitted())+rateSuffix(s, last,
			(*seqledgerv1.NodeStatus).GetCommandsCommitted))
		t.field("refused", number(node.GetCommandsRefused())+rateSuffix(s, last,
			(*seqledgerv1.NodeStatus).GetCommandsRefused))
		t.field("reservations", reservations(s))
		t.field("state file", byteSize(node.GetStateBytes())+", "+byteSize(node.GetPendingBytes())+
			" of changes wait for it")
		t.field("log", byteSize(node.GetLogBytes()))
		t.field("blocks", byteSize(node.GetBlockBytes())+history(s.GetRetention()))
		showScrub(t, node)
		showArchive(t, node.GetArchive())
		if free := node.GetDiskFreeBytes(); free > 0 {
			t.field("disk free", byteSize(free))
		}
	}
	showConfig(t, s.GetConfig())
}

// showClusterLine shows the cluster on one line, as the node sees it. A single node has no such line.
func showClusterLine(t *table, c *seqledgerv1.Cluster) {
	members := len(c.GetMembers())
	if members < 2 {
		return
	}
	text := "node " + number(c.GetSelf())
	switch c.GetLeader() {
	case 0:
		text += " knows no leader among " + number(uint64(members)) + " nodes"
	case c.GetSelf():
		text += " leads " + number(uint64(members)) + " nodes"
		away := ""
		for _, m := range c.GetMembers() {
			if !m.GetActive() && m.GetId() != c.GetSelf() {
				away += " " + number(m.GetId())
			}
		}
		if away == "" {
			text += ", all alive"
		} else {
			text += ", away:" + away
		}
	default:
		text += " follows node " + number(c.GetLeader()) + ", of " + number(uint64(members)) + " nodes"
	}
	t.field("cluster", text)
}

// history says where the blocks begin.
func history(r *seqledgerv1.Retention) string {
	if r.GetHorizon() == 0 {
		return ""
	}
	return ", from index " + number(r.GetHorizon()) + " on, after " + timestamp(r.GetGoneUntil())
}

// showScrub shows the progress of the comparison with checksums.
func showScrub(t *table, node *seqledgerv1.NodeStatus) {
	s := node.GetScrub()
	if s == nil {
		return
	}
	text := "between two rounds"
	if s.GetPosition() > 0 {
		text = fmt.Sprintf("%s of %s (%d %%)", byteSize(s.GetPosition()), byteSize(s.GetSize()),
			s.GetPosition()*100/max(s.GetSize(), s.GetPosition()))
	}
	if s.GetLastRound() == nil {
		text += "; no round has ended since the start"
	} else {
		passed := node.GetTime().AsTime().Sub(s.GetLastRound().AsTime())
		text += fmt.Sprintf("; %s rounds, the last %s ago", number(s.GetRounds()), age(max(0, passed)))
	}
	t.field("scrub", text)
}

// showArchive says what a node has archived, if it archives.
func showArchive(t *table, a *seqledgerv1.ArchiveStatus) {
	if a == nil {
		return
	}
	if a.GetTarget() == "" { // the ledger has one, and the server was not told where it is
		t.field("archive", "none is given; retention would remove "+number(a.GetWaitingFiles())+" files")
		t.field("archive fails", "since "+timestamp(a.GetFailingSince())+": "+oneLine(a.GetProblem()))
		return
	}
	t.field("archive", oneLine(a.GetTarget()))
	t.field("archived", fmt.Sprintf("%d files, %s, up to index %d", a.GetFiles(), byteSize(a.GetBytes()),
		a.GetLastIndex()))
	if a.GetStateIndex() > 0 {
		t.field("archived state", fmt.Sprintf("up to index %d, of %s", a.GetStateIndex(), timestamp(a.GetStateTime())))
	}
	if a.GetLogSafe() != nil {
		t.field("archived log", fmt.Sprintf("up to index %d; complete up to %s", a.GetLogIndex(),
			timestamp(a.GetLogSafe())))
	}
	t.field("to be archived", fmt.Sprintf("%d files, %s", a.GetWaitingFiles(), byteSize(a.GetWaitingBytes())))
	if a.GetProblem() != "" {
		t.field("archive fails", "since "+timestamp(a.GetFailingSince())+": "+oneLine(a.GetProblem()))
	}
}

// reservations describes the keys that are reserved.
func reservations(s *seqledgerv1.Status) string {
	node := s.GetNode()
	text := number(node.GetReservations())
	if oldest := node.GetOldestReservation(); oldest != nil && node.GetReservations() > 0 {
		// By the server's wall clock, which ledger time follows.
		text += ", the oldest " + age(max(0, node.GetTime().AsTime().Sub(oldest.AsTime()))) + " old"
	}
	if n := node.GetWaitingReserves(); n > 0 {
		text += fmt.Sprintf(", %s waiting for their end", number(uint64(n)))
	}
	if n := node.GetReservationsIndeterminate(); n > 0 {
		text += fmt.Sprintf("; %s ended without a result since the start", number(n))
	}
	return text
}

// ledgerAge returns how long ago the last log entry was by the server's clock, or "" if the
// server does not report its clock.
func ledgerAge(s *seqledgerv1.Status) string {
	if s.GetNode() == nil || s.GetLedgerTime() == nil {
		return ""
	}
	d := s.GetNode().GetTime().AsTime().Sub(s.GetLedgerTime().AsTime())
	if d < -time.Second {
		return age(-d) + " ahead"
	}
	return age(max(d, 0))
}

func ageSuffix(age string) string {
	switch {
	case age == "":
		return ""
	case strings.HasSuffix(age, " ahead"):
		return " (" + age + " of the wall clock)"
	}
	return " (" + age + " ago)"
}

// age formats a duration with at most two units.
func age(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return d.Round(100 * time.Millisecond).String()
}

// rate returns a counter's increase per second between two answers by the server's clock, or
// "-" if unknown.
func rate(s, last *seqledgerv1.Status, counter func(*seqledgerv1.NodeStatus) uint64) string {
	if last.GetNode() == nil || s.GetNode() == nil ||
		!last.GetNode().GetStartedAt().AsTime().Equal(s.GetNode().GetStartedAt().AsTime()) { // the server was restarted
		return "-"
	}
	now, before := counter(s.GetNode()), counter(last.GetNode())
	elapsed := s.GetNode().GetTime().AsTime().Sub(last.GetNode().GetTime().AsTime())
	if elapsed <= 0 || now < before {
		return "-"
	}
	return strconv.FormatFloat(float64(now-before)/elapsed.Seconds(), 'f', 1, 64) + "/s"
}

func rateSuffix(s, last *seqledgerv1.Status, counter func(*seqledgerv1.NodeStatus) uint64) string {
	if last == nil {
		return ""
	}
	return ", " + rate(s, last, counter)
}

// byteSize shows a size in binary units.
func byteSize(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n)/1024, 0
	for ; size >= 1024 && unit < len(units)-1; unit++ {
		size /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", size, units[unit])
}
