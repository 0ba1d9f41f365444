package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/seqledger/seqledger/cmd/seqledger/demo"
)

// The names of the two sides.
const (
	demoProtected = "exactly once"
	demoPlain     = "plain retries"
)

// demoProgress shows the progress of a demo: a few lines that are redrawn on a terminal,
// occasional lines elsewhere, nothing with --json.
type demoProgress struct {
	e        *environment
	seed     uint64
	duration time.Duration
	terminal *os.File // nil for none
	drawn    int      // lines drawn on the terminal
	told     time.Duration
	last     demo.Progress
}

func newDemoProgress(e *environment, seed uint64, duration time.Duration) *demoProgress {
	p := &demoProgress{e: e, seed: seed, duration: duration}
	if f, ok := e.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.terminal = f
	}
	return p
}

// begin prints the settings, with the seed first, because a user who interrupts a run may want
// to repeat it.
func (p *demoProgress) begin() {
	if !p.e.json {
		p.e.notice("seed %d, %s of faults, then the audit", p.seed, p.duration)
	}
}

// show is called a few times a second.
func (p *demoProgress) show(now demo.Progress) {
	switch {
	case p.e.json:
	case p.terminal != nil:
		p.draw(now)
	case now.Elapsed-p.told >= time.Second:
		p.told = now.Elapsed
		p.e.notice("%s: %s %s; %s %s", demoElapsed(now.Elapsed),
			demoProtected, demoCounts(now.Protected), demoPlain, demoCounts(now.Plain))
	}
}

// draw redraws the lines.
func (p *demoProgress) draw(now demo.Progress) {
	lines := demoLines(p.last, now)
	if now.Elapsed > p.duration {
		lines[0] += ", settling and auditing"
	}
	p.last = now
	width, _, err := term.GetSize(int(p.terminal.Fd()))
	if err != nil || width < 2 {
		width = 80
	}
	var b strings.Builder
	b.WriteString(p.erase())
	for _, line := range lines {
		// Cut it, because a wrapped line would take two lines and shift the others down.
		b.WriteString(line[:min(len(line), width-1)] + "\n")
	}
	p.drawn = len(lines)
	_, _ = p.terminal.WriteString(b.String()) // a broken terminal must not stop it
}

// erase returns the escape sequence that removes the drawn lines: move up, clear to the end.
func (p *demoProgress) erase() string {
	if p.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", p.drawn)
}

// end clears the terminal for the table.
func (p *demoProgress) end() {
	if p.terminal != nil {
		_, _ = p.terminal.WriteString(p.erase())
		p.drawn = 0
	}
}

// demoLines returns the lines for a terminal, in ASCII, so that a line can be cut anywhere.
func demoLines(last, now demo.Progress) []string {
	lines := []string{demoElapsed(now.Elapsed)}
	seconds := (now.Elapsed - last.Elapsed).Seconds()
	for _, side := range []struct {
		name      string
		last, now demo.Counts
	}{{demoProtected, last.Protected, now.Protected}, {demoPlain, last.Plain, now.Plain}} {
		rate := float64(side.now.Payments-side.last.Payments) / seconds
		lines = append(lines,
			fmt.Sprintf("%-13s  %s, %.0f a second", side.name, demoCounts(side.now), rate),
			fmt.Sprintf("%-13s  dropped %d requests, %d answers; delayed %d; sent twice %d", "",
				side.now.LostRequests, side.now.LostAnswers, side.now.Delayed, side.now.Twice))
	}
	return lines
}

func demoElapsed(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func demoCounts(c demo.Counts) string {
	return fmt.Sprintf("%d payments, %d retries, killed %d servers, %d clients",
		c.Payments, c.Retried, c.ServersKilled, c.ClientsKilled)
}

// showDemo prints the table. Numbers are aligned on the right.
func showDemo(e *environment, r *demo.Report) error {
	var b strings.Builder
	row := func(name, protected, plain string) { fmt.Fprintf(&b, "%-22s %14s %14s\n", name, protected, plain) }
	count := func(name string, of func(*demo.Side) uint64) {
		row(name, number(of(r.Protected)), number(of(r.Plain)))
	}
	row("", demoProtected, demoPlain)
	count("requests dropped", func(c *demo.Side) uint64 { return c.LostRequests })
	count("answers dropped", func(c *demo.Side) uint64 { return c.LostAnswers })
	count("requests delayed", func(c *demo.Side) uint64 { return c.Delayed })
	count("requests sent twice", func(c *demo.Side) uint64 { return c.Twice })
	count("servers killed", func(c *demo.Side) uint64 { return c.ServersKilled })
	count("clients killed", func(c *demo.Side) uint64 { return c.ClientsKilled })
	b.WriteString("\n")
	count("payments attempted", func(c *demo.Side) uint64 { return c.Attempted })
	count("acknowledged", func(c *demo.Side) uint64 { return c.Acknowledged })
	count("retried", func(c *demo.Side) uint64 { return c.Retried })
	count("replayed", func(c *demo.Side) uint64 { return c.Replayed })
	count("found by audit", func(c *demo.Side) uint64 { return c.Found })
	row("amount acknowledged", amount(r.Protected.CentsAcknowledged), amount(r.Plain.CentsAcknowledged))
	row("amount found", amount(r.Protected.CentsFound), amount(r.Plain.CentsFound))
	count("duplicates", func(c *demo.Side) uint64 { return c.Duplicates })
	count("lost", func(c *demo.Side) uint64 { return c.Lost })
	count("never intended", func(c *demo.Side) uint64 { return c.Extra })
	fmt.Fprintf(&b, "\nseed %d\n", r.Seed)
	if r.Dir != "" {
		fmt.Fprintf(&b, "kept in %s\n", r.Dir)
	}
	_, err := fmt.Fprint(e.stdout, b.String())
	return err
}

// amount shows cents as money.
func amount(cents int64) string { return strconv.FormatFloat(float64(cents)/100, 'f', 2, 64) }
