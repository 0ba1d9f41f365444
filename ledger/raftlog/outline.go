package raftlog

import (
	"errors"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Outline is what a node that starts from another node's state must know of its previous log.
type Outline struct {
	// State holds the term and the vote, which the log that replaces this one must keep: a node that forgets its vote
	// may elect two leaders in one term.
	State State
	// Members are the members as of the end of the log. Its last entries need not be committed, so Members only says
	// where other nodes may be reached.
	Members Members

	files *segment.Log // with their index in memory
}

// ReadOutline reads a log that no process has open. It changes nothing.
func ReadOutline(dir string, identity []byte) (out Outline, err error) {
	o := Options{Dir: dir, Identity: identity}
	o.setReadOnly()
	if out.files, err = segment.Open(o.segments(true)); err != nil {
		return Outline{}, refusal(dir, err, "it cannot be opened")
	}
	defer func() { err = errors.Join(err, out.files.Abandon()) }()
	out.State = out.files.State()
	checkpoint := out.files.Checkpoint()
	if out.Members, _, err = core.DecodeMembers(checkpoint.Data); err != nil {
		return out, refusal(dir, err, "its checkpoint does not name the members")
	}
	err = visit(out.files, checkpoint.Index+1, out.files.Last().Index, func(e *segment.Entry) error {
		out.Members = out.Members.After(e)
		return nil
	})
	if err != nil {
		return out, refusal(dir, err, "its entries cannot be read")
	}
	return out, nil
}

// Last returns the last position in the log.
func (o *Outline) Last() Position { return Position(o.files.Last()) }

// Ahead reports whether the log contains the committed position at and entries after it. Other nodes may count on this
// node for those entries, and it must not drop them. If the log has another term at that index, the entries after it
// were never committed.
func (o *Outline) Ahead(at Position) bool {
	if o.files.Last().Index <= at.Index {
		return false
	}
	term, err := o.files.Term(at.Index)
	return err != nil || term == at.Term // an error means that the log begins after at
}
