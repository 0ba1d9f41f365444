package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// once runs a command once, in the directory of the cluster.
func (c *pageCluster) once(words ...string) result {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), binary, words...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.environment...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code says it
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestLostMajority runs the commands of the operations page about a lost majority as they are written there. Two of
// three nodes are killed and their disks are gone, the third becomes a ledger of its own, old clients are told, and two
// new nodes join it.
func TestLostMajority(t *testing.T) {
	t.Parallel()
	sections := clusterSections(t)
	lines := sections["A lost majority"]
	must.Equal(t, len(lines), 6, "docs/operations.md says %q: %v", lines)
	pid := os.Getpid()
	c := &pageCluster{
		t: t, dir: t.TempDir(), nodes: map[string]*process{},
		host: fmt.Sprintf("127.%d.%d.%d", 128+pid>>16&63, pid>>8&255, pid&255),
	}
	for _, line := range sections["Three nodes"] {
		c.run(line)
	}
	c.awaitVoters(1, 2, 3)
	c.write("before")
	opened := c.once("session", "open", "--scope", "acme", "--client-id", "w", "--json").expect(t, exitDone)
	session := opened.field(t, "state").(map[string]any)["session"].(string)
	ledgerID := c.once("status", "--json").expect(t, exitDone).field(t, "ledgerId")
	c.once("recover", "--data", "n1").expect(t, exitFailed, "in use")
	// The survivor has every acknowledged write, because it leads.
	c.client("cluster", "transfer", "1")
	c.write("led-by-1")
	for _, name := range []string{"n2", "n3"} {
		c.stop(name, syscall.SIGKILL)
		must.Do(t, os.RemoveAll(filepath.Join(c.dir, name)))
	}
	c.stop("n1", syscall.SIGKILL)

	looked := c.once(strings.Fields(lines[0])...).expect(t, exitRefused, "nothing was changed", "may be missing",
		"log ends", c.host+":7461")
	if strings.Contains(looked.stdout, "recovered") {
		t.Error(looked)
	}
	var found survivorResult
	said := c.once(append(strings.Fields(lines[0]), "--json")...).expect(t, exitRefused).stdout
	if err := json.Unmarshal([]byte(said), &found); err != nil || found.LedgerID != ledgerID || found.Node != 1 ||
		len(found.Members) != 3 || found.LastIndex == 0 {
		t.Errorf("%s: %v", said, err)
	}
	for _, line := range lines[1:] {
		c.run(line)
	}
	c.environment = append(c.environment, "SEQLEDGER_SERVER="+c.host+":7450,"+c.host+":7460,"+c.host+":7470")
	c.awaitVoters(1, 4, 5)
	if now := c.once("status", "--json").expect(t, exitDone).field(t, "ledgerId"); now == ledgerID {
		t.Errorf("it is still ledger %s", now)
	}
	c.once("write", "--scope", "acme", "--client-id", "w", "--session", session, "--sequence", "1", "--append", "x").
		expect(t, exitRefused, "SESSION_EXPIRED")
	for _, client := range []string{"before", "led-by-1"} {
		c.once("get", client, "--scope", "acme", "--server", c.host+":7470").expect(t, exitDone, "1")
	}
	c.write("after")
	c.stop("n1", syscall.SIGKILL) // the new nodes have a majority without it
	c.write("after-again")
}

// TestRecoverRefusesToStart: a directory that is not of a cluster is refused, and an interrupted recovery says what to
// do.
func TestRecoverRefusesToStart(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.kill()
	seqledger(t, "recover", "--data", s.data).expect(t, exitRefused, "no other node", "seqledger serve")
	seqledger(t, "recover", "--data", s.data, "--accept-lost-writes").expect(t, exitRefused, "no other node")
	seqledger(t, "recover", "--data", filepath.Join(s.data, "none")).expect(t, exitUsage, "no such file")
	must.Do(t, os.WriteFile(filepath.Join(s.data, "RECOVERING"), nil, 0o600))
	for _, command := range []string{"serve --listen 127.0.0.1:0", "verify", "recover"} {
		seqledger(t, append(strings.Fields(command), "--data", s.data)...).
			expect(t, exitFailed, "interrupted", "--accept-lost-writes again")
	}
	seqledger(t, "recover", "--data", s.data, "--accept-lost-writes", "--json").expect(t, exitDone, `"node":"1"`)
	seqledger(t, "verify", "--data", s.data).expect(t, exitDone, "problems       0")
}
