package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"text/tabwriter"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/conformance"
)

type conformanceCommand struct {
	Client   string        `help:"Shell command that starts the client. Default: the client of this program." placeholder:"COMMAND" env:"-"`
	Only     string        `help:"Run the cases whose names match this regular expression." placeholder:"REGEXP" env:"-"`
	List     bool          `help:"List the cases, and run none." env:"-"`
	Seed     uint64        `help:"Decides the random faults and kills; 0 takes a new one." default:"0" env:"-"`
	Timeout  time.Duration `help:"How long a case may be silent. It may take five times as long." default:"2m" env:"-"`
	Parallel int           `help:"How many cases run at once." default:"1" env:"-"`
	Short    bool          `help:"Kill the client less often." env:"-"`
	Keep     bool          `help:"Keep the directory with the ledgers, journals and logs, and say where it is." env:"-"`
}

func (*conformanceCommand) Help() string {
	return `Every client has duties: number by one, repeat under the same number, believe a refusal only when no copy can
be under way, stop when another program has the stream. For each case this starts a server, a proxy that loses,
holds back and copies what passes, and the client, a program that gets commands on its standard input and says
what becomes of its writes on its standard output, both as lines of JSON. The client is killed and started again.
In the end every write must be in the ledger once or not at all, as the client has said.

docs/conformance.md of the source has the protocol, which takes a hundred lines in most languages. Without
--client it is this program's own client, in Go.

Exit code 1 says that the client falls short of a case.

    seqledger conformance
    seqledger conformance --client './my-client --verbose'
    seqledger conformance --client ./my-client --only 'refusal|crash' --keep`
}

func (c *conformanceCommand) Run(e *environment) error {
	if c.List {
		return c.list(e)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	options := conformance.Options{
		Program: program, Command: []string{program, "conformance-client"}, Seed: c.Seed, Timeout: c.Timeout,
		Parallel: c.Parallel, Short: c.Short, Keep: c.Keep,
	}
	if c.Client != "" {
		// The shell interprets the quotes; exec leaves no shell between this program and the client.
		options.Command = []string{"sh", "-c", "exec " + c.Client}
	}
	if options.Only, err = regexp.Compile(c.Only); err != nil {
		return usage("--only: %w", err)
	}
	if c.Timeout <= 0 {
		return usage("--timeout: must be more than 0")
	}
	if c.Parallel < 1 {
		return usage("--parallel: must be at least 1")
	}
	for options.Seed == 0 {
		options.Seed = rand.Uint64()
	}
	if !e.json {
		options.Progress = func(r conformance.Result) { showConformance(e, r) }
	}
	report, err := conformance.Run(e.ctx, options)
	if err != nil {
		return err
	}
	if len(report.Results) == 0 {
		return usage("--only %s: no case has such a name; --list shows them", c.Only)
	}
	if e.json {
		err = e.showObject(report)
	}
	if c.Keep {
		e.notice("everything is kept in %s", report.Dir)
	}
	failed := report.Failed()
	if failed == 0 {
		return err
	}
	return errors.Join(err, fail(exitFailed, fmt.Sprintf("run it again with --seed %d --keep, and look at the logs",
		report.Seed), "the client falls short of %d of %d cases", failed, len(report.Results)))
}

// showConformance prints a line of the table.
func showConformance(e *environment, r conformance.Result) {
	verdict := "ok  "
	if r.Problem != "" {
		verdict = "FAIL"
	}
	_, _ = fmt.Fprintf(e.stdout, "%s  %-24s %6.1fs  %s\n", verdict, r.Name, r.Seconds, r.Duty)
	if r.Problem != "" {
		_, _ = fmt.Fprintf(e.stdout, "      %s\n", oneLine(r.Problem))
	}
}

// list prints the cases.
func (*conformanceCommand) list(e *environment) error {
	if e.json {
		for _, c := range conformance.Cases() {
			if err := e.showObject(c); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	for _, c := range conformance.Cases() {
		_, _ = fmt.Fprintf(w, "%s\t%s\n", c.Name, c.Duty)
	}
	return w.Flush()
}

type conformanceClientCommand struct{}

func (*conformanceClientCommand) Run(e *environment) error {
	return conformance.Drive(e.ctx, e.stdin, e.stdout)
}
