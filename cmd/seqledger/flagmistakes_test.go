package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFlagsThatDoNotGoTogether: every command says which of its flags are wrong, before it connects to a server or
// makes a file.
func TestFlagsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, "file", "x")
	absent := filepath.Join(dir, "absent")
	short, empty := writeFile(t, "token", "too short\n"), writeFile(t, "empty", " \n")
	guard := writeFile(t, "guard.yaml", "tools:\n  pay: {key: \"{id}\"}\n")
	wrong := writeFile(t, "wrong.yaml", "server: p\ntools:\n  pay: {windw: 1h}\n")
	stream := "--scope a --client-id c --server 127.0.0.1:1 "
	gateway := "gateway --check --upstream http://127.0.0.1:1 "
	for _, test := range []struct {
		args string
		says []string
	}{
		{"verify --archive A --backup B", []string{"--archive and --backup do not go together"}},
		{"verify --compare ./seqledger-data", []string{"--compare names the directory of --data"}},
		{"verify --compare B --archive A", []string{"--compare does not go together with --archive or --backup"}},
		{"verify --compare B --backup A", []string{"--compare does not go together with --archive or --backup"}},
		{"restore", []string{"nothing to restore", "--from-directory"}},
		{"restore A --from-directory B", []string{"the backup", "--from-directory: give one of them"}},
		{"restore " + file + " --ledger-time 1950-01-01T00:00:00Z", []string{"--ledger-time 1950", "after 1970"}},
		{"restore " + file + " --ledger-time 2199-01-01T00:00:00Z", []string{"--ledger-time 2199",
			"not in the future"}},
		{"restore - --to-index 7", []string{"--to-time choose from an archive"}},
		{"restore . --to-time tomorrow", []string{"without an archive"}},
		{"restore " + dir, []string{dir + " is a directory", "--from-directory"}},
		{"verify --backup " + dir, []string{dir + " is a directory"}},
		{"list relationships --scope a --relation r", []string{"--relation needs --resource"}},
		{"status --ready --watch", []string{"--ready and --watch do not go together"}},
		{"status --watch --interval 99ms", []string{"--interval must be at least 100ms"}},
		{"status --timeout 0s", []string{"--timeout must be more than 0"}},
		{"mcp --timeout 0s", []string{"--timeout must be more than 0"}},
		{"mcp --server ftp://x", []string{"--server ftp://x", "must be http"}},
		{"status --tls-cert A", []string{"--tls-cert and --tls-key belong together"}},
		{"status --tls-key A", []string{"--tls-cert and --tls-key belong together"}},
		{"status --token x --token-file " + file, []string{"--token", "--token-file say the same thing"}},
		{"status --token-file " + absent, []string{"--token-file: ", "no such file"}},
		{"status --token-file " + dir, []string{"--token-file", dir}},
		{"status --token-file " + empty, []string{"--token-file " + empty + ": is empty"}},
		{"status --token a\x01b", []string{"seqledger: --token, $SEQLEDGER_TOKEN", "has a character that is not"}},
		{"bench --streams 0", []string{"--streams 0: must be from 1 to"}},
		{"bench --payload 0", []string{"--payload 0: must be from 1 to"}},
		{"bench --duration 0s", []string{"--duration must be more than 0"}},
		{"bench --streams 1000000", []string{"--streams 1000000: must be from 1 to"}},
		{"bench --payload 2000000", []string{"--payload 2000000: must be from 1 to"}},
		{"bench --rate=-1", []string{"--rate must be from 0 to"}},
		{"bench --rate inf", []string{"--rate must be from 0 to"}},
		{"bench --timeout 0s", []string{"--timeout must be more than 0"}},
		{"demo --duration 0s", []string{"--duration and --clients must be more than 0"}},
		{"demo --clients 33", []string{"33 clients"}},
		{"demo-client", []string{"--server"}},
		{"demo --clients 0", []string{"--duration and --clients must be more than 0"}},
		{"conformance --only (", []string{"--only: "}},
		{"conformance --only no-such-case", []string{"--only no-such-case: no case has such a name"}},
		{"conformance --timeout 0s", []string{"--timeout: must be more than 0"}},
		{"conformance --parallel 0", []string{"--parallel: must be at least 1"}},
		{"write " + stream + "--operations - --append x", []string{"--operations takes the place of --append"}},
		{"write " + stream + "--operations " + absent, []string{"--operations " + absent, "no such file"}},
		{"write " + stream + "--file " + file + " --append x", []string{"--file takes whole writes",
			"--append does not go"}},
		{"write " + stream + "--file " + absent, []string{"--file", "no such file"}},
		{"write " + stream + "--file " + empty, []string{"--file " + empty}},
		{"write " + stream + "--append x --key 12", []string{`--key "12": must be a UUID`}},
		{"session open " + stream + "--attempt-id zz", []string{"must have 32 hex digits"}},
		{"import " + stream + dir, []string{dir, "must be a regular file"}},
		{"import " + stream + absent, []string{absent, "no such file"}},
		{"config set --server 127.0.0.1:1 no-such-setting 1", []string{`unknown setting "no-such-setting"`,
			"receipt"}},
		{"outbox postgres --dsn postgres://127.0.0.1:1/x --scope a", []string{"--scope: the rows need a vault"}},
		{"auth new-key --id a --scope a --role writer --client-id c --expires 2001-01-01T00:00:00Z", []string{
			"--expires 2001-01-01T00:00:00Z: is in the past"}},
		{"config set x -1", []string{"<value> -1: no number here is negative"}},
		{"config set -1 x", []string{"<name> -1: no number here is negative"}},
		{"config set client_ttl -1.5h --json", []string{"<value> -1.5h: no number here is negative"}},
		{"cluster remove -1", []string{"<id> -1: no number here is negative"}},
		{"get --scope a -1", []string{"<key> -1: ", "text that begins with - goes behind --"}},
		{"status --watch -3s", []string{"unknown flag -3\n"}},
		{"status --timeout 99999999999999h", []string{"--timeout: ", "up to 2562047h"}},
		{"config set client_ttl 9999999h", []string{"client_ttl: ", "up to 2562047h"}},

		{"verify --data " + absent, []string{"--data: ", absent, "no such file"}},
		{"verify --compare " + absent + " --data " + dir, []string{"--compare: ", absent, "no such file"}},
		{"verify --archive " + absent + " --data " + dir, []string{"--archive: ", absent, "no such file"}},
		{"verify --backup " + absent, []string{absent, "no such file"}},
		{"recover --data " + absent, []string{"--data: ", absent, "no such file"}},
		{"restore " + absent, []string{absent, "no such file"}},
		{"restore --from-directory " + absent + " --data " + absent, []string{"--from-directory: ", "no such file"}},
		{"journal show " + absent, []string{absent, "no such file"}},
		{"archive verify " + absent, []string{absent, "no such file", "mount its file system"}},
		{"archive cat --scope a " + absent, []string{absent, "no such file"}},
		{"status --config " + file, []string{"--config: " + file}},

		{"serve --key-ttl 10ms", []string{"--key-ttl: must be from"}},
		{"serve --client-ttl 5s", []string{"unknown flag --client-ttl: it is a setting of the ledger; seqledger " +
			"config set client_ttl VALUE changes it"}},
		{"serve --retain_bytes=5", []string{"config set retain_bytes VALUE"}},
		{"serve --join 127.0.0.1:1", []string{"--join", "need --peer-listen"}},
		{"serve --peer-advertise 127.0.0.1:1", []string{"--peer-advertise", "need --peer-listen"}},
		{"serve --peer-insecure", []string{"--peer-insecure", "need --peer-listen"}},
		{"serve --peer-cert A", []string{"--peer-cert", "need --peer-listen"}},
		{"serve --peer-listen 127.0.0.1", []string{"--peer-listen 127.0.0.1: must be a host and a port"}},
		{"serve --peer-listen 127.0.0.1:99999", []string{"--peer-listen 127.0.0.1:99999", "from 0 to 65535"}},
		{"serve --peer-listen 127.0.0.1:0 --peer-advertise node",
			[]string{"--peer-advertise node: must be a host and a port"}},
		{"serve --peer-listen 127.0.0.1:0 --advertise node", []string{"--advertise node: must be a host and a port"}},
		{"serve --peer-listen 127.0.0.1:0 --join node", []string{"--join node: must be the host and the port"}},
		{"serve --peer-listen 127.0.0.1:0 --join a:1 --join b", []string{"--join b: must be"}},
		{"serve --peer-listen 127.0.0.1:0 --peer-cert A --peer-key B", []string{"belong together"}},
		{"serve --peer-listen 127.0.0.1:0 --peer-ca A", []string{"belong together"}},
		{"serve --peer-listen 127.0.0.1:0 --peer-cert " + absent + " --peer-key B --peer-ca C", []string{absent}},
		{"serve --peer-listen 0.0.0.0:0", []string{"--peer-listen 0.0.0.0:0: is not a loopback address",
			"--peer-insecure"}},
		{"serve --peer-listen 127.0.0.1:0 --join-token short", []string{"--join-token: must have at least 16"}},
		{"serve --peer-listen 127.0.0.1:0 --join-token-file " + short, []string{"--join-token-file " + short,
			"must have at least 16"}},
		{"serve --peer-listen 127.0.0.1:0 --join-token-file " + dir, []string{"--join-token-file: "}},
		{"serve --peer-listen 127.0.0.1:0 --join-token 0123456789abcdef --join-token-file " + short,
			[]string{"--join-token or --join-token-file, not both"}},

		{"gateway --check --wait 1s", []string{"--upstream: is required"}},
		{gateway + "--wait 61s", []string{"--wait: must be from"}}, // package gateway has the other settings
		{gateway + "--max-requests 0", []string{"--max-requests: must be at least 1"}},
		{gateway + "--max-requests-per-principal=-1", []string{"--max-requests-per-principal: must not be negative"}},
		{gateway + "--max-requests-per-peer=-1", []string{"--max-requests-per-peer: must not be negative"}},
		{gateway + "--debug-listen 0.0.0.0:0", []string{"--debug-listen 0.0.0.0:0: is not a loopback address"}},
		{gateway + "--ledger-token-file A", []string{"--ledger-token-file needs --ledger"}},
		{gateway + "--ledger a:1 --ledger-listen 127.0.0.1:0", []string{"--ledger-listen: is for the ledger in this"}},
		{gateway + "--ledger-auth A", []string{"--ledger-auth needs --ledger-listen"}},
		{gateway + "--max-keys-per-principal 0", []string{"--max-keys-per-principal: must be at least 1"}},
		{gateway + "--store memory: --max-entries 0", []string{"--max-entries: must be at least 1"}},
		{gateway + "--store memory: --cleanup-interval 1us", []string{"--cleanup-interval: must be at least 1ms"}},
		{gateway + "--store mysql://app:secret@db/x", []string{`--store: "mysql" names no store`, "postgres://"}},
		{gateway + "--store memory: --ledger a:1", []string{"--ledger: is for the store ledger"}},
		{gateway + "--store memory: --ledger-listen 127.0.0.1:0", []string{"--ledger-listen: is for the store ledger"}},
		{gateway + "--store memory: --max-keys-per-principal 5", []string{"--max-keys-per-principal: only the ledger"}},
		{gateway + "--drain-timeout 0s", []string{"--drain-timeout: must be more than 0"}},
		{gateway + "--ledger-listen 0.0.0.0:0", []string{"--ledger-listen 0.0.0.0:0: is not a loopback address"}},
		{gateway + "--max-requests 0 --drain-timeout 0s --ledger-token-file A", // all of them at once
			[]string{"--max-requests: ", "--drain-timeout: ", "--ledger-token-file "}},

		{"mcp guard -- true", []string{"--config is missing"}},
		{"mcp guard --config " + guard + " --upstream a:1", []string{"--upstream a:1: must be an http or https URL"}},
		{"mcp guard --config " + guard + " --upstream http://", []string{"--upstream http://: must be an http"}},
		{"mcp guard --config " + guard + " --upstream-token-file A -- true",
			[]string{"--upstream-token-file needs --upstream"}},
		{"mcp guard --config " + guard + " --upstream http://example.com --upstream-token-file " + file,
			[]string{"--upstream-token-file: the token would go to example.com in clear"}},
		{"mcp guard --config " + guard + " --max-calls 0 -- true", []string{"--max-calls: must be at least 1"}},
		{"mcp guard --config " + guard + " --lease 1ms -- true", []string{"--lease: must be from"}},
		{"mcp guard --config " + guard + " --wait 1000h -- true", []string{"--wait: must be from"}},
		{"mcp guard --config " + guard + " --key-window 1ms -- true", []string{"--key-window: must be from"}},
		{"mcp guard --config " + guard + " --principal " + strings.Repeat("p", 1000) + " -- true",
			[]string{"--principal: must have at most"}},
		{"mcp guard --config " + guard + " --drain-timeout 0s -- true", []string{"--drain-timeout: must be more"}},
		{"mcp guard --config " + guard + " --scope a/b/c -- true", []string{"--scope a/b/c has more than one slash"}},
		{"mcp guard --config " + guard + " --ledger-token-file A -- true", []string{"--ledger-token-file needs"}},
		{"mcp guard --config " + wrong + " -- touch " + filepath.Join(dir, "ran"),
			[]string{"--config: " + wrong + ":3: tools.pay.windw is an unknown field"}},
		{"mcp guard --config " + absent + " -- true", []string{"--config: ", "no such file"}},
	} {
		args := strings.Fields(test.args)
		if args[0] == "serve" {
			args = append(args, "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "data"))
		}
		t.Run(strings.Join(args[:min(len(args), 6)], " "), func(t *testing.T) {
			t.Parallel()
			mustSay(t, args, exitUsage, test.says...)
		})
	}
	for _, server := range [][]string{nil, {"--upstream", "http://a", "--", "true"}} {
		seqledger(t, append([]string{"mcp", "guard", "--config", guard}, server...)...).expect(t, exitUsage,
			"name one server: a command behind --, or --upstream URL")
	}
	seqledger(t, "restore", file, "--ledger-time", "noon").expect(t, exitUsage, `--ledger-time: "noon" is not a time`)
	t.Cleanup(func() {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	})
}

// TestEmptyValues: an empty value, as of a variable of a script that is not set, is refused by name: it does not mean
// the working directory or the default.
func TestEmptyValues(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "file", `{"append":"x"}`)
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"import", "--scope", "a", "--client-id", "c", "--journal", "", file}, "--journal: must not be empty"},
		{[]string{"import", "--scope", "a", "--client-id", "c", ""}, "<file>: must not be empty"},
		{[]string{"backup", ""}, "<file>: must not be empty"},
		{[]string{"restore", "", "--data", "d"}, "<source>]: must not be empty"},
		{[]string{"journal", "show", ""}, "<file>: must not be empty"},
		{[]string{"serve", "--data="}, "--data: must not be empty"},
		{[]string{"serve", "--auth", ""}, "--auth: must not be empty"},
		{[]string{"serve", "--archive", ""}, "--archive: must not be empty"},
		{[]string{"verify", "--backup", ""}, "--backup: must not be empty"},
		{[]string{"write", "--scope", "a", "--client-id", "c", "--key", ""}, "--key: must not be empty"},
		{[]string{"write", "--scope", "a", "--client-id", "c", "--file="}, "--file: must not be empty"},
		{[]string{"status", "--token-file", ""}, "--token-file: must not be empty"},
		{[]string{"SEQLEDGER_DATA=", "recover"}, "--data: must not be empty (from envar SEQLEDGER_DATA"},
	} {
		mustSay(t, test.args, exitUsage, test.says)
	}
}
