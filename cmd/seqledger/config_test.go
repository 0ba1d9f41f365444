package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// parseServe runs the grammar over a serve command and returns what it got.
func parseServe(t *testing.T, args ...string) (*commandLine, error) {
	t.Helper()
	var out bytes.Buffer
	cli, source := new(commandLine), new(configSource)
	parser, err := newParser(cli, new(operation.Flags), source, &out, &out)
	must.Do(t, err)
	_, err = parser.Parse(append([]string{"serve"}, args...))
	if err != nil {
		err = source.locate(err)
	}
	return cli, err
}

// TestPrecedence expects flags over environment over file over defaults. It
// sets the environment, so that it cannot run in parallel.
func TestPrecedence(t *testing.T) {
	file := writeFile(t, "c.yaml", "listen: 127.0.0.1:1003\ndata: /file\nkey-ttl: 3h\nbackup-rate: 33\n")
	t.Setenv("SEQLEDGER_LISTEN", "127.0.0.1:1002")
	t.Setenv("SEQLEDGER_DATA", "/environment")
	t.Setenv("SEQLEDGER_CONFIG", file)
	cli, err := parseServe(t, "--listen", "127.0.0.1:1001")
	must.Do(t, err)
	check.Equal(t, cli.Serve.Listen, "127.0.0.1:1001", "want --listen from the command line: got %s")
	check.Equal(t, cli.Serve.Data, "/environment", "want --data from the environment: got %s")
	check.Equal(t, cli.Serve.KeyTTL.Hours(), 3, "want --key-ttl from the file, got %v hours")
	check.Equal(t, cli.Serve.DiskReserve, -1, "want --disk-reserve from the defaults: got %d")
	// The flag's file takes the place of the environment's.
	cli, err = parseServe(t, "--config", writeFile(t, "d.yaml", "backup-rate: 44\n"))
	if err != nil || cli.Serve.BackupRate != 44 || cli.Serve.KeyTTL.Hours() != 24 {
		t.Errorf("want a rate of 44 from the flag's file and the ttl's default, got %d, %v, %v",
			cli.Serve.BackupRate, cli.Serve.KeyTTL, err)
	}
}

// TestScopePrecedence: the two ways to name a scope are one choice, and the
// command line's wins as a whole.
func TestScopePrecedence(t *testing.T) {
	t.Setenv("SEQLEDGER_SCOPE", "environment")
	parse := func(args ...string) scopeFlags {
		t.Helper()
		var cli commandLine
		var out bytes.Buffer
		parser := must.Get(newParser(&cli, new(operation.Flags), new(configSource), &out, &out))(t)
		must.Get(parser.Parse(append([]string{"get", "k"}, args...)))(t)
		return cli.Get.scopeFlags
	}
	check.Equal(t, parse(), scopeFlags{Scope: "environment"}, "want the environment's scope: got %+v")
	check.Equal(t, parse("--organization", "a/b", "--vault", "c"), scopeFlags{Organization: "a/b", Vault: "c"},
		"want the command line's organization alone: got %+v")
	t.Setenv("SEQLEDGER_SCOPE", "")
	t.Setenv("SEQLEDGER_ORGANIZATION", "environment")
	check.Equal(t, parse("--scope", "a/b"), scopeFlags{Scope: "a/b"}, "want the command line's scope alone: got %+v")
}

func TestConfigFile(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, content string
		says          []string // of the error; none for a good file
	}{
		{"empty", "", nil},
		{"comment", "# nothing\n", nil},
		{"key of another command", "client-id: loader\nscope: acme/main\n", nil},
		{"quoted and plain", "json: true\nlog-format: \"json\"\n", nil},
		{"unknown key", "listen: 127.0.0.1:1\nlisten-at: x\n", []string{"c.yaml:2", "listen-at"}},
		{"a setting", "retain_blocks: 1h\n", []string{"c.yaml:1", "retain-blocks: it is a setting of the ledger"}},
		{"underscore", "key_ttl: 3h\n", nil},
		{"twice, with an underscore", "key-ttl: 3h\nkey_ttl: 3h\n", []string{"c.yaml:2", "key_ttl", "line 1"}},
		{"a list for a list", "cors-origin: [https://a.example, https://b.example]\n", nil},
		{"a list of lists", "cors-origin: [[a]]\n", []string{"c.yaml:1", "cors-origin", "plain value"}},
		{"the gateway's routes", "routes: [{path: /a}]\n", nil},
		{"what must be said each time", "\nsequence: 5\n", []string{"c.yaml:2", "sequence"}},
		{"itself", "config: other.yaml\n", []string{"c.yaml:1", "config"}},
		{"twice", "data: a\ndata: b\n", []string{"c.yaml:2", "data", "line 1"}},
		{"a list", "data: [a, b]\n", []string{"c.yaml:1", "data", "plain value"}},
		{"nothing", "data:\n", []string{"c.yaml:1", "data", "plain value"}},
		{"no mapping", "- data\n", []string{"c.yaml:1", "flag-name: value"}},
		{"no YAML", "data: [\n", []string{"c.yaml"}},
		{"bad duration", "data: x\nkey-ttl: soon\n", []string{"c.yaml:2", "--key-ttl", "soon"}},
		{"bad number", "backup-rate: -x\n", []string{"c.yaml:1", "--backup-rate"}},
		{"bad choice", "log-format: xml\n", []string{"c.yaml:1", "--log-format", "xml"}},
	} {
		_, err := parseServe(t, "--config", writeFile(t, "c.yaml", test.content))
		if (err == nil) != (test.says == nil) {
			t.Errorf("%s: want an error: %v, got %v", test.name, test.says != nil, err)
		}
		for _, text := range test.says {
			if err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: want %q in the error, got %v", test.name, text, err)
			}
		}
	}
	if _, err := parseServe(t, "--config", "/no/such/file.yaml"); err == nil ||
		!strings.Contains(err.Error(), "--config") {
		t.Errorf("want an error about --config, got %v", err)
	}
}

// TestConfigReachesProcess goes through the real program.
func TestConfigReachesProcess(t *testing.T) {
	t.Parallel()
	s := serve(t)
	config := writeFile(t, "c.yaml", "server: "+s.address+"\nscope: acme\nclient-id: c\njson: true\n")
	r := seqledger(t, "SEQLEDGER_CONFIG="+config, "SEQLEDGER_SCOPE=other/vault",
		"write", "--append", "x").expect(t, exitDone)
	if r.field(t, "sequence") != "1" {
		t.Errorf("want the receipt of sequence 1 in JSON, got %v", r)
	}
	s.do(t, "list", "clients").expect(t, exitDone, "other/vault")
}
