package legacy

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"
)

// fsm adapts a Machine to raft.FSM. Raft calls Apply, Snapshot and Restore from
// one goroutine, so that covered needs no lock.
type fsm struct {
	machine  Machine
	identity []byte
	failed   func() error
	covered  Position // last command applied, or known to be in the machine's store
}

// notApplied is the result of a command that reached a failed machine.
type notApplied struct{ cause error }

// Apply implements raft.FSM.
func (f *fsm) Apply(entry *raft.Log) any {
	// A machine that has failed must not see another command: it may have lost
	// the one before.
	if err := f.failed(); err != nil {
		return notApplied{err}
	}
	at := Position{Index: entry.Index, Term: entry.Term}
	result := f.machine.Apply(at, entry.Data)
	if err := f.failed(); err != nil {
		return notApplied{err}
	}
	// A replay may begin below what the machine's store held at the start.
	if at.Index > f.covered.Index {
		f.covered = at
	}
	return result
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.failed(); err != nil {
		return nil, err
	}
	return &fsmSnapshot{machine: f.machine, payload: snapshotPayload{identity: f.identity, covered: f.covered}}, nil
}

// Restore implements raft.FSM. A snapshot of this package names a position and
// holds no state, so that there is nothing to restore from one.
func (f *fsm) Restore(body io.ReadCloser) error {
	return errors.Join(
		errors.New("legacy: this node is too far behind to follow the log, and a snapshot carries no state: "+
			"start it from a backup of another node"),
		body.Close())
}

type fsmSnapshot struct {
	machine Machine
	payload snapshotPayload
}

// Persist implements raft.FSMSnapshot. Raft truncates the log when it returns,
// so it returns only once the machine needs nothing of what is cut off.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if s.payload.covered.Index > 0 {
		if err := s.machine.Checkpoint(s.payload.covered); err != nil {
			return errors.Join(err, sink.Cancel())
		}
	}
	if _, err := sink.Write(s.payload.encode()); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() {}
