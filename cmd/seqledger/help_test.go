package main

import (
	"io"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// helpOf returns what a command line that asks for help prints, and its error otherwise. The parser ends the process
// behind the help; here it panics.
func helpOf(t *testing.T, args ...string) (text string) {
	t.Helper()
	var out strings.Builder
	parser := must.Get(newParser(new(commandLine), new(operation.Flags), new(configSource), &out, io.Discard))(t)
	const shown = "the help was shown"
	parser.Exit = func(int) { panic(shown) }
	defer func() {
		if r := recover(); r == shown {
			text = out.String()
		} else if r != nil {
			panic(r)
		}
	}()
	parsed := must.Get(parser.Parse(args))(t)
	return parsed.Run().Error()
}

// TestHelp expects examples in the help of every command, and that the codes are told.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"4  outcome unknown", "serve", "verify", "session open"} {
		check.Contains(t, helpOf(t, "--help"), text)
	}
	for _, command := range []string{
		"archive verify", "auth check", "backup", "bench", "block", "cluster remove", "completion", "config set",
		"conformance", "demo", "gateway", "get", "help", "import", "journal show", "key get", "list refusals",
		"mcp guard", "outbox postgres", "recover", "restore", "serve", "session open", "state", "status", "store init",
		"tx", "verify", "version", "watch", "witness serve", "witness keygen", "write",
	} {
		help := helpOf(t, append(strings.Fields(command), "--help")...)
		for _, text := range []string{"    seqledger " + strings.Fields(command)[0], "$SEQLEDGER_CONFIG"} {
			check.Contains(t, help, text, "%s", command)
		}
	}
}

// TestHelpCommand: help COMMAND shows what COMMAND --help shows.
func TestHelpCommand(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{}, {"write"}, {"auth", "check"}, {"help"}} {
		check.Equal(t, helpOf(t, append([]string{"help"}, command...)...), helpOf(t, append(command, "--help")...))
	}
	check.Equal(t, helpOf(t, "help", "fly"), `there is no command "fly"`)
	check.Equal(t, helpOf(t, "help", "auth", "fly"), `there is no command "auth fly"`)
	// Once as a process, which ends with the help.
	seqledger(t, "help", "write").expect(t, exitDone, "    seqledger write")
}
