package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
)

// commandLine is the whole command line.
type commandLine struct {
	Config    configFile `help:"YAML file with values for flags, one 'flag-name: value' a line." placeholder:"FILE"`
	JSON      bool       `help:"Answer in JSON: one object, or one a line for lists and streams. Errors and notices on standard error are objects too."`
	LogLevel  slog.Level `help:"Lowest level to log: debug, info, warn or error." default:"info"`
	LogFormat string     `help:"Format of the log on standard error: text or json." enum:"text,json" default:"text"`

	PrintVersion versionFlag `name:"version" help:"Print the version." env:"-"`

	Serve   serveCommand       `cmd:"" help:"Serve a ledger."`
	Write   writeCommand       `cmd:"" help:"Commit one write, once."`
	Import  importCommand      `cmd:"" help:"Commit every line of a file once, across kills and restarts."`
	Get     getCommand         `cmd:"" help:"Read one entity."`
	List    listCommand        `cmd:"" help:"List entities, relationships, blocks or clients."`
	Tx      txCommand          `cmd:"" help:"Read one transaction."`
	Receipt receiptCommand     `cmd:"" help:"Receipts that verify offline."`
	Block   blockCommand       `cmd:"" help:"Read one block."`
	Watch   watchCommand       `cmd:"" help:"Follow the blocks of a scope."`
	State   stateCommand       `cmd:"" help:"Show the state of a client's stream."`
	Session sessionCommand     `cmd:"" help:"Open a session."`
	Gateway gatewayCommand     `cmd:"" help:"Reverse proxy that runs requests with an Idempotency-Key once."`
	MCP     mcpCommand         `cmd:"" name:"mcp" help:"Tools of the ledger for agents, and a guard for MCP servers."`
	Key     keyCommand         `cmd:"" help:"Look up, purge and resolve records of requests with a key."`
	Store   storeCommand       `cmd:"" help:"Prepare a store of keys in your database."`
	Outbox  outboxCommand      `cmd:"" help:"Write the rows of a table in your database to the ledger once."`
	Status  statusCommand      `cmd:"" help:"Describe a running server."`
	Update  configCommand      `cmd:"" name:"config" help:"Show and change the replicated configuration."`
	Cluster clusterCommand     `cmd:"" help:"Show and change the nodes of the ledger."`
	Bench   benchCommand       `cmd:"" help:"Measure a running server under load."`
	Auth    authCommand        `cmd:"" help:"Create API keys and check auth files."`
	Backup  backupCommand      `cmd:"" help:"Back up a running server's ledger."`
	Restore restoreCommand     `cmd:"" help:"Create a data directory from a backup."`
	Recover recoverCommand     `cmd:"" help:"Turn one node of a cluster that lost its majority into a ledger."`
	Verify  verifyCommand      `cmd:"" help:"Check a data directory that no server has open, or a backup."`
	Archive archiveCommand     `cmd:"" help:"Show and verify the archive of a ledger's history."`
	Witness witnessCommand     `cmd:"" help:"Cosign the checkpoints of ledgers, so that none can show two histories."`
	Journal journalCommand     `cmd:"" help:"Show the journal of a client."`
	Demo    demoCommand        `cmd:"" help:"Run a server and clients under faults, and count what is paid twice."`
	Conform conformanceCommand `cmd:"" name:"conformance" help:"Test a client program against the duties of a client."`
	Version versionCommand     `cmd:"" help:"Print the version."`

	Help       helpCommand       `cmd:"" help:"Show the help of a command."`
	Completion completionCommand `cmd:"" help:"Print the completion script of a shell."`

	DemoClient demoClientCommand `cmd:"" name:"demo-client" hidden:"" help:"A client of the demo, which starts it."`

	ConformanceClient conformanceClientCommand `cmd:"" name:"conformance-client" hidden:"" help:"A client of conformance."`
}

const description = `A ledger that makes retries safe.

Every flag that shows a variable such as $SEQLEDGER_SERVER takes its value from the command line, else
from that variable, else from the file named by --config, else from its default.

Exit codes:

    0  done
    1  failed: no connection, no answer, an error of a file, or damage was found
    2  the command line or the configuration file is wrong, or what they name is not there
    3  refused: the ledger decided against it, or has no such thing; nothing was changed
    4  outcome unknown: the write may have been committed; repeat it with the same sequence and key
    130, 143  stopped by SIGINT or SIGTERM before the end; watch, status --watch, serve, gateway, witness and outbox
              postgres end with 0`

// environment is what a command works with.
type environment struct {
	ctx    context.Context //nolint:containedctx // It is the life of the process, made once by run.
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	json   bool
	log    *slog.Logger
	// parse parses the command line again, with the files and the environment as they are now.
	parse func() (*commandLine, *configSource, error)
}

// noticeReport is the line that notice prints with --json.
type noticeReport struct {
	Notice string `json:"notice"`
}

// notice prints a message on standard error, as a JSON object with --json. It returns no error, because a closed
// standard error must not stop a command.
func (e *environment) notice(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if e.json {
		_ = (&environment{stdout: e.stderr}).showObject(noticeReport{text})
		return
	}
	_, _ = fmt.Fprintln(e.stderr, text)
}

func main() {
	// By default the runtime ends the process when a pipe of its output is closed, even in the
	// middle of a write. Ignoring the signal turns that into an ordinary error.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var cli commandLine
	operations := new(operation.Flags)
	config := new(configSource)
	parser, err := newParser(&cli, operations, config, stdout, stderr)
	if err != nil {
		return report(stderr, wantsJSON(args), fmt.Errorf("the command line's own definition: %w", err))
	}
	if completed := completeLine(parser); completed {
		return exitDone
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		err = withHelp(config.locate(usage("%w", plainParseError(err))), selected(parsed, err))
		return report(stderr, wantsJSON(args), err)
	}
	ctx, stop := untilSignal(context.Background())
	defer stop()
	// Create the logger after parsing, because flags set its level and format.
	e := &environment{
		ctx: ctx, stdin: interruptible{ctx, stdin}, stdout: stdout, stderr: stderr,
		json: cli.JSON, log: newLogger(stderr, cli.LogLevel, cli.LogFormat),
	}
	e.parse = func() (*commandLine, *configSource, error) {
		cli, config := new(commandLine), new(configSource)
		parser, err := newParser(cli, new(operation.Flags), config, io.Discard, io.Discard)
		if err == nil {
			_, err = parser.Parse(args)
		}
		return cli, config, config.locate(err)
	}
	if unknown := unknownVariables(parser.Model, os.Environ()); len(unknown) > 0 {
		e.log.Warn("no flag takes its value from these variables; --help of a command shows those that it has",
			"variables", unknown)
	}
	err = config.locate(parsed.Run(e, operations)) // some values are only checked there
	return signalCode(ctx, err, report(stderr, cli.JSON, withHelp(err, parsed.Selected())))
}

// selected returns the command that a command line names, nil for none.
func selected(parsed *kong.Context, err error) *kong.Node {
	if failed, ok := errors.AsType[*kong.ParseError](err); ok {
		parsed = failed.Context
	}
	if parsed == nil {
		return nil
	}
	return parsed.Selected()
}

// signalCode returns the exit code of a command that a signal has ended, otherwise code. An
// unknown outcome or a refusal is more important and keeps its code.
func signalCode(ctx context.Context, err error, code int) int {
	interrupted, ok := errors.AsType[interruptedError](context.Cause(ctx))
	if !ok || code != exitFailed || !errors.Is(err, context.Canceled) {
		return code
	}
	return interrupted.code()
}

// newParser builds the grammar. operations receives the operation flags of a
// write in the order of the command line, config the configuration file.
func newParser(cli *commandLine, operations *operation.Flags, config *configSource, stdout,
	stderr io.Writer) (*kong.Kong, error) {
	config.shared = &sharedVariables{used: map[string]string{}}
	return kong.New(cli, append(flagValues(),
		kong.Name("seqledger"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 100}),
		kong.NamedMapper("operation", operations),
		kong.DefaultEnvars("SEQLEDGER"),
		kong.PostBuild(refuseEmpty),
		kong.Bind(config),
		kong.Resolvers(config.shared),
		kong.ValueFormatter(config.shared.help),
	)...)
}

// newLogger logs to standard error; standard output is for answers.
func newLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// echoTime is how long after a signal another one counts as the same, because a Ctrl-C reaches the
// process from the terminal and again from make, go run or a supervisor that forwards it.
const echoTime = time.Second

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. The
// next one, unless it comes within echoTime, ends the process at once.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done, ended := make(chan struct{}), make(chan struct{})
	// Ended by the returned function, which waits for it.
	go func() {
		defer close(ended)
		awaitSignals(signals, done, func(s os.Signal) { cancel(interruptedError{s}) }, func(s os.Signal) {
			fmt.Fprintln(os.Stderr, "seqledger: second signal, leaving at once")
			os.Exit(interruptedError{s}.code())
		})
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		<-ended
		cancel(nil)
	}
}

// awaitSignals calls stop for the first signal and leave for the next, until
// done is closed.
func awaitSignals(signals <-chan os.Signal, done <-chan struct{}, stop, leave func(os.Signal)) {
	var stopped time.Time
	for {
		select {
		case s := <-signals:
			switch {
			case stopped.IsZero():
				stopped = time.Now()
				stop(s)
			case time.Since(stopped) >= echoTime:
				leave(s)
				return
			}
		case <-done:
			return
		}
	}
}

// interruptedError is the cause of a command context that a signal has ended.
type interruptedError struct{ signal os.Signal }

// code returns what a shell reports for a process that the signal has ended.
func (e interruptedError) code() int {
	if s, ok := e.signal.(syscall.Signal); ok {
		return exitSignal + int(s)
	}
	return exitFailed
}

func (e interruptedError) Error() string { return "stopped by signal: " + e.signal.String() }

// Is makes it match context.Canceled.
func (interruptedError) Is(target error) bool { return target == context.Canceled }

// oneLine makes a foreign message safe for the layout.
func oneLine(s string) string { return harmless(strings.Join(strings.Fields(s), " ")) }
