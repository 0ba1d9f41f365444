package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/ledger/datadir"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// buildProgram builds the command of a clone of this repository.
func buildProgram(t *testing.T, root string, flags ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "seqledger")
	build := exec.CommandContext(t.Context(), "go", append([]string{"build", "-ldflags", buildFlags, "-o", program},
		append(flags, "./cmd/seqledger")...)...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", root, err, out)
	}
	return program
}

// programOfBefore builds the program of the commit UPGRADE_FROM. Not every commit has a program that knows clusters,
// so none is chosen here. It skips the test without Git and in a clone that has no such commit.
func programOfBefore(t *testing.T) string {
	t.Helper()
	revision := os.Getenv("UPGRADE_FROM")
	if revision == "" {
		t.Skip("no commit is named to upgrade from: make test-upgrade UPGRADE_FROM=HEAD^")
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "before.tar")
	git := exec.CommandContext(t.Context(), "git", "-C", "../..", "archive", "-o", archive, revision)
	if out, err := git.CombinedOutput(); err != nil {
		t.Skipf("git has no %s to build: %v: %s", revision, err, out)
	}
	root := filepath.Join(dir, "before")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", root).CombinedOutput(); err != nil {
		t.Skipf("no tar: %v: %s", err, out)
	}
	return buildProgram(t, root)
}

// programOfNextLevel builds this program with a format level more, which allows nothing else.
func programOfNextLevel(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "ledger", "machine", "command.go")
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	level := regexp.MustCompile(`(?m)^const Level = \d+$`)
	if len(level.FindAll(source, -1)) != 1 {
		t.Fatalf("%s does not say what the newest level is", file)
	}
	source = level.ReplaceAllFunc(source, func(line []byte) []byte { return fmt.Appendf(nil, "%s + 1", line) })
	overlay, err := json.Marshal(map[string]any{
		"Replace": map[string]string{file: writeFile(t, "command.go", string(source))},
	})
	if err != nil {
		t.Fatal(err)
	}
	return buildProgram(t, root, "-overlay", writeFile(t, "overlay.json", string(overlay)))
}

// upgraded is a cluster whose nodes get other programs, under the load of Writers that know nothing of it.
type upgraded struct {
	*testCluster

	t     *testing.T
	conn  *client.Client
	load  killLoad
	raise []string // what the nodes of before have said when they ended
}

// replace stops a node, starts it with a program, and lets it lead, so that each program reads what the other one
// has written. The load goes on.
func (u *upgraded) replace(n *clusterServer, program string) {
	u.t.Helper()
	u.stop(n)
	u.restartWith(u.t, program, u.conn, n)
	u.lead(n)
	for range 20 {
		<-u.load.progress
	}
}

// stop ends a node as an operator does.
func (u *upgraded) stop(n *clusterServer) {
	u.t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		u.t.Fatal(err)
	}
	if code := n.wait(u.t); code != exitDone {
		u.t.Fatalf("the node ended with %d\n%s", code, n.stderr.String())
	}
	u.raise = append(u.raise, n.stderr.String())
}

// lead makes a node the leader. It is tried again where an election comes between.
func (u *upgraded) lead(n *clusterServer) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), hangs)
	defer cancel()
	var err error
	for u.leader(u.t, u.conn) != n {
		s := u.await(u.t, u.conn, "a node leads", func(*seqledgerv1.Cluster) bool { return true })
		for _, m := range s.GetMembers() {
			if m.GetPeerAddress() == n.peer {
				_, err = admin.ChangeCluster(ctx, u.conn, &seqledgerv1.ChangeClusterRequest{
					Change: &seqledgerv1.ChangeClusterRequest_Transfer{Transfer: m.GetId()},
				})
			}
		}
		if ctx.Err() != nil {
			u.t.Fatalf("the node does not lead: %v", err)
		}
	}
}

// raised reports whether a node has said that it has raised the level.
func (u *upgraded) raised() bool {
	said := strings.Join(u.raise, "")
	for _, n := range u.nodes {
		said += n.stderr.String()
	}
	return strings.Contains(said, "the ledger has a newer format level")
}

// upgradeCluster replaces the programs of three nodes by a newer one, with steps back. Then calls check with the
// cluster, while the load goes on. In the end each acknowledged write is there once, and all nodes have the same.
func upgradeCluster(t *testing.T, before, after string, check func(u *upgraded)) {
	t.Helper()
	const writers = 3
	c := serveClusterWith(t, before, 3)
	u := &upgraded{testCluster: c, t: t, conn: c.client(t), load: killLoad{
		received: make([]map[uint64]*seqledgerv1.Receipt, writers), progress: make(chan struct{}, 1),
	}}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range writers {
		u.load.received[i] = map[uint64]*seqledgerv1.Receipt{}
		w, err := writer.Open(t.Context(), c.client(t), writer.Options{
			Scope: killScope(), ClientID: fmt.Sprint("writer-", i),
		})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { u.load.write(t, w, i, stop) }) // ends with stop
	}
	end := sync.OnceFunc(func() {
		close(stop)
		running.Wait()
	})
	defer end()
	for i, program := range []string{after, before, after} {
		u.replace(c.nodes[0], program)
		if i == 0 {
			u.replace(c.nodes[1], program)
		}
	}
	u.replace(c.nodes[1], before)
	u.replace(c.nodes[1], after)
	if u.raised() {
		t.Error("the level was raised while a node had the program of before")
	}
	u.replace(c.nodes[2], after)
	check(u)
	end()
	u.load.audit(t, u.conn)
	c.alike(t)
}

// TestUpgradeOfACluster replaces the program of the commit before by this one, node by node.
func TestUpgradeOfACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds another program, and takes half a minute")
	}
	upgradeCluster(t, programOfBefore(t), binary, func(*upgraded) {})
}

// TestUpgradeToANewerLevel replaces this program by one that knows a level more. The level rises once all nodes have
// it, and the program of before refuses the directory from then on.
func TestUpgradeToANewerLevel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds another program, and takes half a minute")
	}
	after := programOfNextLevel(t)
	upgradeCluster(t, binary, after, func(u *upgraded) {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for deadline := time.Now().Add(hangs); !u.raised(); <-ticker.C {
			if time.Now().After(deadline) {
				t.Fatal("the level was not raised")
			}
		}
		for range 50 {
			<-u.load.progress // behind the level, on all nodes
		}
		n := u.nodes[0]
		u.stop(n)
		seqledger(t, append([]string{"serve", "--listen", n.address, "--data", n.data}, n.args...)...).
			expect(t, exitFailed, "written by a newer version")
		u.restartWith(t, after, u.conn, n)
		joining := []string{
			"serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "node4"),
			"--join-token-file", filepath.Join(n.data, datadir.TokenName),
		}
		seqledger(t, append(joining, "--peer-listen", "127.0.0.1:0", "--join", n.peer)...).
			expect(t, exitFailed, "the program of the other nodes")
	})
}
