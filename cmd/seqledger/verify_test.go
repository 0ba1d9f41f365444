package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// writeAppends opens the ledger in a directory, commits writes of a client, and closes it.
func writeAppends(t *testing.T, data string, from, to uint64, what string) {
	t.Helper()
	l := must.Get(ledger.Open(t.Context(), ledger.Options{Dir: data}))(t)
	for sequence := from; sequence <= to; sequence++ {
		must.Get(l.Write(t.Context(), &machine.Write{
			Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: "c", Actor: "a", Sequence: sequence,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte(what)}},
		}))(t)
	}
	must.Do(t, l.Close())
}

// Two directories are checked and compared, and a difference is named.
func TestVerifyComparesDirectories(t *testing.T) {
	t.Parallel()
	one, other := filepath.Join(t.TempDir(), "n1"), filepath.Join(t.TempDir(), "n2")
	writeAppends(t, one, 1, 3, "same")
	must.Do(t, os.CopyFS(other, os.DirFS(one)))
	seqledger(t, "verify", "--data", one, "--compare", other).expect(t, exitDone, one, other, "up to index 4",
		"differences  0")
	writeAppends(t, one, 4, 5, "more")
	seqledger(t, "verify", "--data", one, "--compare", other, "--json").expect(t, exitDone, `"differences":"0"`,
		`"comparedBlocks":"1"`)
	writeAppends(t, other, 4, 5, "other")
	seqledger(t, "verify", "--data", one, "--compare", other).expect(t, exitFailed, "block 4 of acme main", "differ",
		"joins again")
	seqledger(t, "verify", "--data", one, "--compare", other, "--archive", "x").expect(t, exitUsage, "--compare")
	seqledger(t, "verify", "--data", one, "--compare", one).expect(t, exitUsage, "--compare")
}
