package decide

import "github.com/seqledger/seqledger/ledger/machine"

// A log entry ends with the command that reaches one of these. A receipt is
// read out of the record of its whole entry, so that an entry must not be
// large; see EntryCommands, too.
const (
	MaxEntryCommands = 2_048
	MaxEntryBytes    = 512 << 10
)

// Entry is a log entry that is being filled.
type Entry struct {
	Commands int // so far
	Bytes    int // of these commands
	limit    int
}

// NewEntry begins an entry of at most so many commands.
func NewEntry(commands int) Entry { return Entry{limit: commands} }

// Take counts the next command in, if it fits. The first one always does. Once
// one did not fit, the entry is full, so that no later command overtakes it.
func (e *Entry) Take(size int) bool {
	if e.Commands > 0 && e.Bytes+size > MaxEntryBytes {
		e.limit = e.Commands
	}
	if e.Full() {
		return false
	}
	e.Commands++
	e.Bytes += size
	return true
}

// Full tells whether the entry takes no more.
func (e *Entry) Full() bool { return e.Commands >= e.limit }

// EntryCommands returns how many commands an entry may have, so that what a
// round of eviction adds to the blocks of an entry stays within bounds whatever
// the configuration says: a round removes up to eviction_limit entities.
func EntryCommands(c machine.Config) int64 {
	const maxEvictions = 20_000
	rounds := max(maxEvictions/c.EvictionLimit, 1)
	return int64(min(rounds*c.EvictionInterval, MaxEntryCommands))
}
