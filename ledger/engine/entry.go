package engine

import "github.com/seqledger/seqledger/ledger/machine"

// A log entry ends with the command that reaches one of these. A receipt is
// read out of the record of its whole entry, so that an entry must not be
// large; see EntryCommands, too.
const (
	MaxEntryCommands = 2_048
	MaxEntryBytes    = 512 << 10
	// MaxEntryWork bounds what the commands of an entry cost when they are
	// applied, in units of some five microseconds: see [Work].
	MaxEntryWork = 8_192
	// maxEntryPassWork bounds in the same way what the eviction passes of an
	// entry cost.
	maxEntryPassWork = 5_000
	// maxEntryPasses bounds how often an entry may have to step over the same deleted keys of
	// the expiry index, which no unit counts: up to 65,536 of 20 to 100 ns before a checkpoint.
	maxEntryPasses = 8
)

// Work returns what a write costs the applier in units of [MaxEntryWork]. A
// comparison of values counts as several, because it may read a block. An entity that expires counts
// twice, because it changes the expiry index too.
func Work(operations []machine.Operation) int {
	comparisons, expiring := 0, 0
	for i := range operations {
		if operations[i].Condition.Kind == machine.ConditionValueEquals {
			comparisons++
		}
		if operations[i].ExpiresAt != 0 {
			expiring++
		}
	}
	return work(len(operations), comparisons, expiring)
}

// CommandWork is [Work] of an encoded write.
func CommandWork(c *machine.Command) int { return work(c.Operations(), c.Comparisons(), c.Expiring()) }

func work(operations, comparisons, expiring int) int {
	const compare = 8
	return operations + comparisons*(compare-1) + expiring
}

// Entry is a log entry that is being filled.
type Entry struct {
	Commands int // so far
	Bytes    int // of these commands
	work     int // of these commands
	limit    int
}

// NewEntry begins an entry of at most this number of commands.
func NewEntry(commands int) Entry { return Entry{limit: commands} }

// Take counts the next command in, if it fits. The first one always does. Once
// one did not fit, the entry is full, so that no later command overtakes it.
func (e *Entry) Take(size, work int) bool {
	if e.Commands > 0 && (e.Bytes+size > MaxEntryBytes || e.work+work > MaxEntryWork) {
		e.limit = e.Commands
	}
	if e.Full() {
		return false
	}
	e.Commands++
	e.Bytes += size
	e.work += work
	return true
}

// Full reports whether the entry takes no more.
func (e *Entry) Full() bool { return e.Commands >= e.limit }

// EntryCommands returns how many commands an entry may have, so that the
// eviction passes that the interval brings stay within bounds whatever the
// configuration says. Each may follow one that left a backlog, and so do as much as
// a pass ever does. Passes that follow what the commands add to the expiry index are
// bounded by MaxEntryWork and MaxEntryBytes.
func EntryCommands(c machine.Config) int {
	pass := min(c.EvictionLimit*machine.BacklogFactor, machine.MaxPassWork)
	passes := min(max(maxEntryPassWork/pass, 1), maxEntryPasses)
	return int(min(passes*c.EvictionInterval, MaxEntryCommands))
}
