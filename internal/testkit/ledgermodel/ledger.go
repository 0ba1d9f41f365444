package ledgermodel

import (
	"fmt"
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Ledger is the state machine with a state in memory. Each command is one log entry. It is safe for concurrent use.
type Ledger struct {
	clock func() time.Time

	mu      sync.Mutex
	ahead   time.Duration // of ledger time before the clock
	state   *machine.Memory
	machine *machine.Machine
	log     []entry
}

type entry struct {
	time    int64
	command any
}

// NewLedger makes a ledger whose time is the clock's.
func NewLedger(create Create, clock func() time.Time) *Ledger {
	l := &Ledger{clock: clock}
	l.empty()
	l.Apply(create)
	return l
}

// empty makes the ledger one that has not been created.
func (l *Ledger) empty() {
	l.state, l.log = machine.NewMemory(), nil
	m, err := machine.Open(l.state)
	must(err)
	l.machine = m
}

// must panics, because a state in memory has no errors that a test could cause.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("ledgermodel: %v", err))
	}
}

// Apply decides one command, of a type that Model.Apply takes.
func (l *Ledger) Apply(command any) machine.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.apply(entry{l.clock().Add(l.ahead).UnixNano(), command})
}

func (l *Ledger) apply(e entry) machine.Outcome {
	l.log = append(l.log, e)
	out, err := l.machine.Apply(l.state, machine.AppendEntry(nil, e.time, Encode(e.command)))
	must(err)
	return out[0]
}

// Advance moves ledger time ahead, and removes what is due then.
func (l *Ledger) Advance(by time.Duration) {
	l.mu.Lock()
	l.ahead += by
	l.mu.Unlock()
	l.Apply(Tick{})
}

// Rewrite makes the ledger one to which other commands have happened, at the same
// times: change returns what takes the place of a command.
func (l *Ledger) Rewrite(change func(command any) any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	log := l.log
	l.empty()
	for _, e := range log {
		l.apply(entry{e.time, change(e.command)})
	}
}

// View calls read with the state, which it must not use afterwards.
func (l *Ledger) View(read func(machine.View)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read(l.machine.View(l.state))
}

// Encode returns a command as a log entry contains it.
func Encode(command any) []byte {
	switch c := command.(type) {
	case *machine.Write:
		return machine.AppendWrite(nil, c)
	case *machine.OpenSession:
		return machine.AppendOpenSession(nil, c)
	case *machine.ConfigUpdate:
		return machine.AppendUpdateConfig(nil, c, "system:test")
	case *machine.KeyedCommand:
		return machine.AppendKeyed(nil, c)
	case *machine.KeyedWrite:
		return machine.AppendKeyedWrite(nil, c)
	case Create:
		return machine.AppendCreate(nil, c.ID, 77, c.Config)
	case Epoch:
		return machine.AppendEpoch(nil, c.ID, c.Time)
	case Tick:
		return machine.AppendTick(nil)
	}
	panic(fmt.Sprintf("there is no command %T", command))
}
