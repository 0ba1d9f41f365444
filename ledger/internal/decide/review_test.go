package decide

import (
	"fmt"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// TestReviewConfigurationChangesWithinAnEntry: what an entry evicts stays within
// bounds, also when the configuration changes in it. The commit loop knows the
// configuration of the last entry that was applied, and has filled this one, and
// another one behind it, by that.
func TestReviewConfigurationChangesWithinAnEntry(t *testing.T) {
	t.Parallel()
	const backlog, start, limit = 60_000, int64(1e18), uint64(20_000)
	mem := machine.NewMemory()
	m, err := machine.Open(mem)
	if err != nil {
		t.Fatal(err)
	}
	apply := func(now int64, commands ...[]byte) {
		t.Helper()
		if _, err := m.Apply(mem, machine.AppendEntry(nil, now, commands...)); err != nil {
			t.Fatal(err)
		}
	}
	sequence := uint64(0)
	write := func(operations ...machine.Operation) []byte {
		sequence++
		return machine.AppendWrite(nil, &machine.Write{
			Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "a", Sequence: sequence, Operations: operations,
		})
	}
	config := machine.DefaultConfig()
	apply(start, machine.AppendCreate(nil, 1, 1, config))
	for first := 0; first < backlog; first += machine.MaxOperations {
		var sets []machine.Operation
		for i := range machine.MaxOperations {
			sets = append(sets, machine.Operation{
				Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "%08d", first+i), ExpiresAt: start + 1,
			})
		}
		apply(start, write(sets...))
	}

	change := &machine.ConfigUpdate{EvictionInterval: new(uint64(1)), EvictionLimit: new(limit)}
	commands := [][]byte{machine.AppendUpdateConfig(nil, change, "a")}
	for int64(len(commands)) < EntryCommands(config) { // as the commit loop fills it
		commands = append(commands, write(machine.Operation{Kind: machine.OpAppend}))
	}
	before := m.Evictions().Entities
	apply(start+2, commands...)
	// Neither the old configuration (2 to 3 rounds of 2,000) nor the new one (one
	// command an entry, one round) would remove more than 20,000 in an entry.
	if got := m.Evictions().Entities - before; got > limit {
		t.Errorf("one entry of %d commands has expired %d entities, want at most %d", len(commands), got, limit)
	}
}
