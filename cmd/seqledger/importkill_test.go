package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestImportSurvivesKills kills imports and servers at random moments and then
// expects every line in the ledger exactly once, in order.
func TestImportSurvivesKills(t *testing.T) {
	t.Parallel()
	const lines = 12_000
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))

	input := numberedLines(t, lines)
	s := serve(t)
	killed := 0
	// The moments spread over all of an import: before the session, around it,
	// and while lines are under way.
	for range 40 {
		if killed == 8 {
			break
		}
		p := start(t, "import", "--server", s.address, "--scope", "acme/main", "--client-id", "loader", "--json", input)
		moment := time.NewTimer(time.Duration(random.IntN(200)) * time.Millisecond)
		select {
		case <-moment.C:
		case <-p.ended:
		}
		if random.IntN(3) == 0 {
			s.kill()
			// Sometimes the import goes first, sometimes it meets the new server.
			if random.IntN(2) == 0 {
				p.kill()
			}
			s = serveOn(t, s.data, s.address)
		}
		p.kill()
		if p.cmd.ProcessState.ExitCode() == -1 {
			killed++
			continue
		}
		if code := p.cmd.ProcessState.ExitCode(); code != exitDone {
			t.Fatalf("an import that was not killed ended with %d: %s", code, p.stderr.String())
		}
		break
	}
	if killed == 0 {
		t.Error("no import was killed: the test says nothing")
	}
	done := s.do(t, "import", "--scope", "acme/main", "--client-id", "loader", "--json", input).expect(t, exitDone)
	if first, last := done.field(t, "firstSequence"), done.field(t, "lastSequence"); first != "1" ||
		last != fmt.Sprint(lines) {
		t.Errorf("want the sequences 1 to %d, got %v to %v", lines, first, last)
	}
	t.Logf("%d imports killed", killed)
	audit(t, s, "acme/main", lines)

	s.kill()
	seqledger(t, "verify", "--data", s.data).expect(t, exitDone, "problems")
}

// numberedLines writes an input whose line n appends "line n".
func numberedLines(t *testing.T, lines int) string {
	t.Helper()
	var b strings.Builder
	for n := range lines {
		fmt.Fprintf(&b, "{\"append\": \"line %d\"}\n", n+1)
	}
	return writeFile(t, "events.ndjson", b.String())
}

// audit reads every transaction of a scope through the binary and expects
// exactly the lines of numberedLines.
func audit(t *testing.T, s *testServer, scope string, lines uint64) {
	t.Helper()
	next, last := uint64(1), map[string]uint64{} // by client id
	organization, vault, _ := strings.Cut(scope, "/")
	request := &seqledgerv1.WatchRequest{Scope: &seqledgerv1.Scope{Organization: organization, Vault: vault}}
	heights := strings.Count(s.do(t, "list", "blocks", "--scope", scope, "--json").expect(t, exitDone).stdout, "\n")
	for block, err := range s.client(t).Watch(t.Context(), request) {
		must.Do(t, err)
		for _, tx := range block.GetTransactions() {
			payload := string(tx.GetOperations()[0].GetAppend().GetPayload())
			last[tx.GetClientId()]++
			sequence := last[tx.GetClientId()]
			if want := fmt.Sprintf("line %d", next); tx.GetSequence() != sequence || payload != want {
				t.Fatalf("want sequence %d with %q, got sequence %d with %q", sequence, want, tx.GetSequence(), payload)
			}
			next++
		}
		if block.GetHeader().GetHeight() == uint64(heights) {
			break
		}
	}
	if next != lines+1 {
		t.Fatalf("want %d transactions, got %d", lines, next-1)
	}
}
