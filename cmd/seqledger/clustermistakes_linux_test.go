package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// mistakenCluster is a cluster of three nodes, with directories and addresses as on the operations page.
func mistakenCluster(t *testing.T, network int) *pageCluster {
	t.Helper()
	pid := os.Getpid()
	c := &pageCluster{
		t: t, dir: t.TempDir(), nodes: map[string]*process{},
		host: fmt.Sprintf("127.%d.%d.%d", network+pid>>16&3, pid>>8&255, pid&255),
	}
	for i := 1; i <= 3; i++ {
		c.serve(c.words(i))
	}
	c.environment = []string{"SEQLEDGER_SERVER=" + c.host + ":7450," + c.host + ":7460," + c.host + ":7470"}
	c.awaitVoters(1, 2, 3)
	c.write("first")
	return c
}

// words are the command line of a node.
func (c *pageCluster) words(i int) []string {
	words := []string{
		"serve", "--data", fmt.Sprint("n", i), "--listen", fmt.Sprintf("%s:74%d0", c.host, 4+i),
		"--peer-listen", fmt.Sprintf("%s:74%d1", c.host, 4+i),
	}
	if i > 1 {
		words = append(words, "--join", c.host+":7451", "--join-token-file", "n1/JOIN-TOKEN")
	}
	return words
}

// logged waits until a node has logged something.
func (c *pageCluster) logged(name, text string) {
	c.t.Helper()
	awaitLog(c.t, c.nodes[name], text)
}

// ends waits for the end of a node that is started and must stop by itself, and wants to read some texts.
func (c *pageCluster) ends(words []string, texts ...string) {
	c.t.Helper()
	said := c.once(words...).expect(c.t, exitFailed, texts...).stderr
	if strings.Contains(said, "repair the disk") {
		c.t.Errorf("it is not the disk: %s", said)
	}
}

// TestWrongPeerAddress: a node that was started once under an address at which it is not comes back when it is started
// under the right one, and the cluster tolerates the loss of another node.
func TestWrongPeerAddress(t *testing.T) {
	t.Parallel()
	c := mistakenCluster(t, 4)
	c.client("cluster", "transfer", "1") // so that node 1 connects to node 2, not node 2 to it
	c.stop("n2", syscall.SIGTERM)
	c.serve(append(c.words(2), "--peer-advertise", c.host+":7471"))
	c.logged("n2", "is its --peer-advertise right?")
	check.Contains(t, c.client("cluster", "status", "--json"), c.host+":7461", "the address was committed")
	c.stop("n2", syscall.SIGTERM)
	c.serve(c.words(2))
	c.awaitVoters(1, 2, 3)
	c.stop("n3", syscall.SIGKILL)
	c.write("without-3")
}

// TestJoinOfAnotherLedger: a directory of another ledger is refused by name before anything is served, also while the
// cluster does not answer yet.
func TestJoinOfAnotherLedger(t *testing.T) {
	t.Parallel()
	c := mistakenCluster(t, 8)
	c.serve([]string{"serve", "--data", "other", "--listen", c.host + ":7490"})
	c.stop("other", syscall.SIGTERM)
	c.stop("n3", syscall.SIGTERM)
	words := c.words(3)
	words[2] = "other"
	c.ends(words, "the data directory holds ledger", "is of ledger", "name an empty directory with --data")
	for _, name := range []string{"n1", "n2"} {
		must.Do(t, c.nodes[name].cmd.Process.Signal(syscall.SIGSTOP))
	}
	frozen := make(chan result, 1)
	go func() { frozen <- c.once(words...) }() // ends with the process; read below
	time.AfterFunc(time.Second, func() {
		for _, name := range []string{"n1", "n2"} {
			_ = c.nodes[name].cmd.Process.Signal(syscall.SIGCONT)
		}
	})
	said := <-frozen
	said.expect(t, exitFailed, "is of ledger")
	if strings.Contains(said.stdout, "serving on") {
		t.Errorf("it was served: %s", said.stdout)
	}
	c.serve(c.words(3))
	c.awaitVoters(1, 2, 3)
}

// TestOldCopyOfANode: a node on an old copy of its directory stops, with the cause, and does not start on it again. The
// leader names the cause, too. With the directory that it had last, the node belongs to the cluster again.
func TestOldCopyOfANode(t *testing.T) {
	t.Parallel()
	c := mistakenCluster(t, 12)
	c.client("cluster", "transfer", "1")
	n3, last, old := filepath.Join(c.dir, "n3"), filepath.Join(c.dir, "n3.last"), filepath.Join(c.dir, "n3.old")
	c.stop("n3", syscall.SIGTERM)
	must.Do(t, os.CopyFS(old, os.DirFS(n3)))
	c.serve(c.words(3))
	c.awaitVoters(1, 2, 3)
	c.write("not-in-the-copy")
	c.awaitBehind(0)
	c.stop("n3", syscall.SIGTERM)
	must.Do(t, os.Rename(n3, last))
	must.Do(t, os.Rename(old, n3))
	c.ends(c.words(3), "old copy", "acknowledged the log up to index", "put back the directory")
	c.logged("n1", "old copy")
	c.ends(c.words(3), "old copy", "put back the directory")
	c.write("without-3")
	must.Do(t, os.RemoveAll(n3))
	must.Do(t, os.Rename(last, n3))
	c.serve(c.words(3))
	c.awaitVoters(1, 2, 3)
	c.client("cluster", "remove", "3")
	check.Equal(t, c.nodes["n3"].wait(t), exitFailed, "the node that was removed ended with %d")
	said := c.nodes["n3"].stderr.String()
	for _, wrong := range []string{"repair the disk", "storage failed", "error=<nil>", "no Host in request URL"} {
		if strings.Contains(c.logs(), wrong) {
			t.Errorf("a log says %q: %s", wrong, c.logs())
		}
	}
	if !strings.Contains(said, "was removed from the cluster") || !strings.Contains(said, "start it with --join") {
		t.Errorf("the node that was removed said %s", said)
	}
}

// awaitBehind waits until no node is behind the leader by more than a number of entries.
func (c *pageCluster) awaitBehind(most uint64) {
	c.t.Helper()
	must.Await(c.t, func() bool {
		s := c.status()
		for _, m := range s.Members {
			if m.Matched+most < s.Committed {
				return false
			}
		}
		return true
	}, "nodes that are not behind")
}
