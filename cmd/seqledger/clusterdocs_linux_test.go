package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// pageCluster runs the commands of the operations page about a cluster in a directory of its own. It uses a loopback
// address that no other process has, so that the ports of the page are free.
type pageCluster struct {
	t           *testing.T
	dir, host   string
	environment []string
	nodes       map[string]*process // by the name of their directory on the page
}

var (
	pageWord    = regexp.MustCompile(`"[^"]*"|\S+`)
	pageSection = regexp.MustCompile(`(?m)^### (.*)\n`)
)

// clusterSections returns the command lines of each part of the page's section about clusters.
func clusterSections(t *testing.T) map[string][]string {
	t.Helper()
	content := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	_, page, found := strings.Cut(string(content), "\n## A cluster\n")
	if !found {
		t.Fatal("docs/operations.md has no section about a cluster")
	}
	page, _, _ = strings.Cut(page, "\n## ")
	page = strings.ReplaceAll(page, "\\\n", "") // a command may continue on the next line
	sections := map[string][]string{}
	titles := pageSection.FindAllStringSubmatch(page, -1)
	for i, text := range pageSection.Split(page, -1)[1:] {
		for line := range strings.Lines(text) {
			if command, found := strings.CutPrefix(strings.TrimSpace(line), "seqledger "); found &&
				strings.HasPrefix(line, "    ") {
				sections[titles[i][1]] = append(sections[titles[i][1]], command)
			} else if strings.HasPrefix(line, "    export ") {
				sections[titles[i][1]] = append(sections[titles[i][1]], strings.TrimSpace(line))
			}
		}
	}
	return sections
}

// run runs a line of the page until it ends or serves.
func (c *pageCluster) run(line string) {
	c.t.Helper()
	line = strings.ReplaceAll(line, "127.0.0.1", c.host)
	if variable, found := strings.CutPrefix(line, "export "); found {
		c.environment = append(c.environment, variable)
		return
	}
	words := pageWord.FindAllString(line, -1)
	for i := range words {
		words[i] = strings.Trim(words[i], `"`)
	}
	if words[0] == "serve" {
		c.serve(words)
		return
	}
	c.client(words...)
}

// client runs a command until it succeeds. Commands that change the cluster may be repeated: they fail briefly while
// the leader changes, which may happen at any time on a slow machine.
func (c *pageCluster) client(words ...string) string {
	c.t.Helper()
	const tries = 5
	var out []byte
	var err error
	for range tries {
		cmd := exec.CommandContext(c.t.Context(), binary, words...)
		cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.environment...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if out, err = cmd.Output(); err == nil {
			return string(out)
		}
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	c.t.Fatalf("seqledger %v: %v\n%s", words, err, c.logs())
	return ""
}

func (c *pageCluster) logs() string {
	var all strings.Builder
	for name, p := range c.nodes {
		fmt.Fprintf(&all, "== %s\n%s", name, p.stderr.String())
	}
	return all.String()
}

func (c *pageCluster) serve(words []string) {
	c.t.Helper()
	cmd := exec.Command(binary, words...)
	cmd.Dir = c.dir
	p := launch(c.t, cmd)
	c.nodes[words[2]] = p
	if said := p.line(c.t); !strings.HasPrefix(said, "serving on ") {
		c.t.Fatalf("seqledger %v said %q\n%s", words, said, c.logs())
	}
}

// awaitVoters waits until the leader hears from exactly these voters.
func (c *pageCluster) awaitVoters(want ...uint64) {
	c.t.Helper()
	must.Await(c.t, func() bool {
		var got []uint64
		members := c.status().Members
		for _, m := range members {
			if m.Voter && m.Active {
				got = append(got, m.ID)
			}
		}
		return slices.Equal(got, want) && len(members) == len(want)
	}, "the voters", want)
}

// clusterStatus is what cluster status --json says, in which 64-bit numbers are strings.
type clusterStatus struct {
	Committed uint64 `json:"committedIndex,string"`
	Members   []struct {
		ID      uint64 `json:"id,string"`
		Voter   bool   `json:"voter"`
		Active  bool   `json:"active"`
		Matched uint64 `json:"matchedIndex,string"`
	} `json:"members"`
}

func (c *pageCluster) status() (s clusterStatus) {
	c.t.Helper()
	must.Do(c.t, json.Unmarshal([]byte(c.client("cluster", "status", "--json")), &s))
	return s
}

// write commits a write on a stream of its own, which shows that the cluster takes writes.
func (c *pageCluster) write(client string) {
	c.t.Helper()
	c.client("write", "--scope", "acme", "--client-id", client, "--set", client+"=1")
}

// stop sends a node a signal and waits for its end.
func (c *pageCluster) stop(name string, signal syscall.Signal) {
	c.t.Helper()
	p := c.nodes[name]
	must.Do(c.t, p.cmd.Process.Signal(signal))
	if code := p.wait(c.t); signal == syscall.SIGTERM && code != exitDone {
		c.t.Fatalf("%s ended with %d\n%s", name, code, p.stderr.String())
	}
}

// changeToken runs the page's commands about the join token. The cluster takes writes after each restart: with two of
// the nodes on one side, whichever it is, and through each node's address, also that of a node that is cut off.
func (c *pageCluster) changeToken(lines []string) {
	c.t.Helper()
	const token = "another-token-than-before"
	must.Do(c.t, os.WriteFile(filepath.Join(c.dir, "new-token"), []byte(token+"\n"), 0o600))
	restarted := 0
	for _, line := range lines {
		if words := strings.Fields(line); words[0] == "serve" {
			c.stop(words[2], syscall.SIGTERM)
			restarted++
		}
		c.run(line)
		c.write(fmt.Sprint("token-", restarted))
	}
	for _, name := range []string{"n1", "n2", "n3"} {
		stored, err := os.ReadFile(filepath.Join(c.dir, name, "JOIN-TOKEN"))
		if err != nil || strings.TrimSpace(string(stored)) != token {
			c.t.Errorf("%s has the token %q, %v", name, stored, err)
		}
	}
	check.Equal(c.t, restarted, 3, "the page restarts %d nodes")
}

// TestClusterProcedures runs the commands of the operations page about a cluster as they are written there.
func TestClusterProcedures(t *testing.T) {
	t.Parallel()
	sections := clusterSections(t)
	pid := os.Getpid()
	c := &pageCluster{
		t: t, dir: t.TempDir(), nodes: map[string]*process{},
		host: fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&255),
	}
	part := func(title string) {
		t.Helper()
		if len(sections[title]) < 2 {
			t.Fatalf("docs/operations.md has no commands in %q", title)
		}
		for _, line := range sections[title] {
			c.run(line)
		}
		delete(sections, title)
	}
	part("Three nodes")
	c.awaitVoters(1, 2, 3)
	if testing.Short() {
		return // the rest takes some ten seconds
	}
	c.stop("n2", syscall.SIGTERM)
	c.write("without-2")
	part("A planned stop")
	c.awaitVoters(1, 2, 3)
	c.changeToken(sections["Another join token"])
	delete(sections, "Another join token")
	c.awaitVoters(1, 2, 3)
	c.stop("n3", syscall.SIGKILL)
	c.write("without-3")
	part("A dead node")
	c.awaitVoters(1, 2, 4)
	part("Taking a node out")
	c.environment = append(c.environment, "SEQLEDGER_SERVER="+c.host+":7460,"+c.host+":7480")
	c.awaitVoters(2, 4)
	check.Equal(t, c.nodes["n1"].wait(t), exitFailed, "the node that was removed ended with %d")
	c.write("without-1")
	// The nodes end before the restore, as the page requires.
	backup := sections["Backup of a cluster"]
	sections["Backup of a cluster"] = backup[:2]
	part("Backup of a cluster")
	c.stop("n2", syscall.SIGTERM)
	c.stop("n4", syscall.SIGTERM)
	c.environment = append(c.environment, "SEQLEDGER_SERVER="+c.host+":7450,"+c.host+":7460")
	sections["Restore"] = backup[2:]
	part("Restore")
	c.awaitVoters(1, 2)
	for _, client := range []string{"without-2", "without-3", "without-1"} {
		said := c.client("get", client, "--scope", "acme", "--server", c.host+":7460")
		check.Contains(t, said, "1", "%s", client)
	}
	delete(sections, "A lost majority") // TestLostMajority runs it
	for title := range sections {
		t.Errorf("%q of docs/operations.md is run by no test", title)
	}
}
