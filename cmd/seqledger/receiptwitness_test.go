package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestReceiptWitnesses: a server whose policy wants two witnesses, one of which is killed and started again, gives
// receipts that verify with the policy and without a server. A copy of its directory that goes on under the same key
// and origin is refused by the witnesses.
func TestReceiptWitnesses(t *testing.T) {
	t.Parallel()
	const origin = "log.example/test"
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) string {
		must.Do(t, os.WriteFile(in(name), []byte(text), 0o600))
		return in(name)
	}
	s := serve(t)
	keyed := strings.TrimSpace(seqledger(t, "receipt", "keygen", origin+"/"+s.ledgerID, in("key")).
		expect(t, exitDone).stdout)
	put("witness", "log "+keyed+"\nquorum none\n")
	address := make([]string, 2)
	start := func(i int) *process {
		w := launch(t, exec.Command(binary, "witness", "--json", "--listen", address[i], "--state",
			in(fmt.Sprint("state", i)), "--policy", in("witness"), "--key", in(fmt.Sprint("w", i))))
		var ready witnessReady
		must.Do(t, json.Unmarshal([]byte(w.line(t)), &ready), w.stderr)
		return w
	}
	policy := "log " + keyed + "\n"
	witnesses := make([]*process, 2)
	for i := range witnesses {
		address[i] = must.Get(freeport.Address())(t)
		w := seqledger(t, "witness", "keygen", fmt.Sprint("w.example/", i), in(fmt.Sprint("w", i))).expect(t, exitDone)
		policy += fmt.Sprintf("witness w%d %s http://%s\n", i, strings.TrimSpace(w.stdout), address[i])
		witnesses[i] = start(i)
	}
	policy += "group both all w0 w1\nquorum both\n"
	put("policy", policy)
	flags := []string{"--receipt-key", in("key"), "--receipt-origin", origin, "--receipt-interval", "100ms"}
	serveCosigned := func(data string) *testServer {
		return serveOn(t, data, "127.0.0.1:0", append(flags, "--receipt-policy", in("policy"))...)
	}
	write := func(s *testServer, client string) string {
		id, _ := s.do(t, "write", "--scope", "acme/main", "--client-id", client, "--json", "--append", "x").
			expect(t, exitDone).field(t, "txId").(string)
		return id
	}
	verified := func(s *testServer, id string) result {
		t.Helper()
		s.do(t, "receipt", "get", id, "-o", in("receipt")).expect(t, exitDone)
		return seqledger(t, "receipt", "verify", in("receipt"), "--policy", in("policy"))
	}
	s.kill()
	// The policy must be this ledger's. Before there is one, its name must fit.
	for name, of := range map[string]string{
		"foreign": origin + "/0123456789abcdef", "old": "log.example/x/1", "wrong": origin + "/" + s.ledgerID,
	} {
		vkey := strings.TrimSpace(seqledger(t, "receipt", "keygen", of, in(name+".key")).expect(t, exitDone).stdout)
		args := append([]string{"serve", "--data", s.data, "--listen", "127.0.0.1:0", "--receipt-policy",
			put(name, strings.Replace(policy, keyed, vkey, 1))}, flags...)
		seqledger(t, args...).expect(t, exitUsage, "--receipt-policy "+in(name)+": log: no line")
	}
	args := append([]string{"serve", "--data", s.data, "--listen", "127.0.0.1:0", "--receipt-policy", in("foreign"),
		"--receipt-key", in("foreign.key")}, flags...)
	seqledger(t, args...).expect(t, exitUsage, "--receipt-policy "+in("foreign")+": log: ", origin+"/"+s.ledgerID+"+")

	s = serveCosigned(s.data)
	first := write(s, "till-1")
	verified(s, first).expect(t, exitDone, "w0 at 20", "w1 at 20")
	witnesses[1].kill()
	second := write(s, "till-2")
	verified(s, second).expect(t, exitFailed, "the quorum both is not met: 1 of 2 witnesses")
	verified(s, first).expect(t, exitDone, "w1 at 20")
	witnesses[1] = start(1)
	must.Await(t, func() bool { return verified(s, second).code == exitDone }, s.stderr)

	s.kill()
	copied := in("copied")
	must.Do(t, os.CopyFS(copied, os.DirFS(s.data)))
	s = serveCosigned(s.data)
	third := write(s, "till-3")
	must.Await(t, func() bool { return verified(s, third).code == exitDone }, s.stderr)
	twin := serveCosigned(copied)
	forked := write(twin, "till-4")
	verified(twin, forked).expect(t, exitFailed, "the quorum both is not met: 0 of 2 witnesses")
	check.Equal(t, strings.Contains(twin.stderr.String(), "another tree of the size"), true, "%s: %v", twin.stderr)
	said := witnesses[0].stderr.String()
	check.Equal(t, strings.Contains(said, "not consistent"), true, "%s: %v", said)
	verified(s, third).expect(t, exitDone, "w0 at 20", "w1 at 20")
	s.kill()
	twin.kill()
	for i, w := range witnesses {
		w.kill()
		if c, err := net.Dial("tcp", address[i]); err == nil {
			t.Error("a witness is still there", c.Close())
		}
	}
	seqledger(t, "receipt", "verify", in("receipt"), "--policy", in("policy")).expect(t, exitDone, "w0 at", "w1 at")
}
