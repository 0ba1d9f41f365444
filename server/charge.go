package server

import (
	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A committed command counts in its credential's account for about what the disk keeps of it, so that no kind of
// command fills the disk at a fraction of its price. What is kept is of two kinds: transactions, in blocks, and records
// of the state file, which take twice their bytes because its pages are half full. A record that is replaced counts
// again, because whether there was one is not known here. Nothing is given back when blocks are dropped or records
// expire.
const (
	// chargedOperation is what an operation takes beside its keys and values.
	chargedOperation = 16
	// chargedTransaction is what a transaction takes beside its operations and the names in it.
	chargedTransaction = 56
	// chargedBlock is what the first transaction of a block takes for the block and its record.
	chargedBlock = 136
	// chargedStream and chargedKeyed are the lengths of these records, and chargedChain is that of the record of a
	// scope's last block.
	chargedStream, chargedKeyed, chargedChain = 64, 160, 96
	// chargedNumber is what a time or a ledger index takes.
	chargedNumber = 9
	// chargedAttempt is what an attempt takes in an existing record.
	chargedAttempt = 64
	// chargedResult is what a record grows by when it gets its response.
	chargedResult = 96
	// inlineResponse is the size up to which a response is in its record. A longer one has pages of the state file to
	// itself, of which pageBytes may be empty.
	inlineResponse, pageBytes = 512, 4 << 10
	// inlineValue is the size up to which a value is also in the entity's record.
	inlineValue = 32
)

// inState returns what a record of the state file takes.
func inState(key, value int) int { return 2 * (key + value + chargedOperation) }

// scopeLength is the length of a scope in a key.
func scopeLength(scope *seqledgerv1.Scope) int {
	return 2 + len(scope.GetOrganization()) + len(scope.GetVault())
}

// charge is what a command takes.
type charge struct {
	// engine are the bytes of its operations, which it takes until it is decided.
	engine int
	// stored is what it stores if it changes something.
	stored int32
	// stream and scope are the lengths of the names of its stream and scope, which are stored, too, if they are new.
	// They are 0 if it has none.
	stream, scope uint16
}

// of returns what a command has stored that came to an outcome.
func (c charge) of(out *machine.Outcome) int {
	if out.Code != machine.Committed && (out.Keyed == nil || !out.Keyed.Changed) {
		return 0
	}
	n := int(c.stored)
	if c.stream > 0 && out.CreatedIndex == out.Index {
		n += inState(int(c.stream), chargedStream) + inState(int(c.stream)+chargedNumber, 0)
	}
	if c.scope > 0 && out.Receipt.Position == 0 {
		n += chargedBlock
		if out.Receipt.BlockHeight == 1 {
			n += inState(int(c.scope), chargedChain)
		}
	}
	return n
}

// chargeOfWrite returns the charge of a write by an actor.
func chargeOfWrite(m *seqledgerv1.WriteRequest, actor string) charge {
	scope := scopeLength(m.Scope)
	stored := chargedTransaction + scope + len(m.ClientId) + len(actor)
	engine := 0
	for _, o := range m.Operations {
		bytes, state := chargeOfOperation(o, scope)
		engine, stored = engine+bytes, stored+bytes+state
	}
	return charge{engine, int32(stored), uint16(scope + len(m.ClientId)), uint16(scope)}
}

// chargeOfOperation returns what an operation takes in a transaction, and in the state file.
func chargeOfOperation(m *seqledgerv1.Operation, scope int) (bytes, state int) {
	o, ok := message.ReadOperation(m)
	if !ok {
		return 0, 0 // it is not valid
	}
	bytes = chargedOperation + len(o.Key) + len(o.Relation) + len(o.Subject) + len(o.Value) +
		len(o.Condition.GetValueEquals())
	key := scope + len(o.Key) + len(o.Relation) + len(o.Subject)
	switch o.Kind {
	case message.SetEntity:
		value := chargedOperation
		if len(o.Value) <= inlineValue {
			value += len(o.Value)
		}
		state = inState(key, value)
		if o.ExpiresAt != nil { // another transaction expires it
			state += inState(key+chargedNumber, 0) + chargedOperation + len(o.Key)
		}
	case message.CreateRelationship:
		state = inState(key, chargedNumber)
	}
	return bytes, state
}

// chargeOfKeyedWrite returns the charge of a write that belongs to a key.
func chargeOfKeyedWrite(m *seqledgerv1.WriteRequest, id *machine.KeyedID, actor string) charge {
	c := chargeOfWrite(m, actor)
	c.stream, c.stored = 0, c.stored+int32(chargeOfRecord(id))
	return c
}

// chargeOfRecord returns what a keyed record takes, with what it may be alone in: the number of its principal's
// records.
func chargeOfRecord(id *machine.KeyedID) int {
	principal := 2 + len(id.Scope.Organization) + len(id.Scope.Vault) + 2 + len(id.Principal)
	key := principal + 1 + len(id.Namespace) + len(id.Key)
	return inState(key, chargedKeyed) + inState(key+chargedNumber, 0) + inState(principal, 1)
}

// chargeOfKeyed returns the charge of a command on a keyed record that came to an outcome.
func chargeOfKeyed(c *machine.KeyedCommand, out *machine.Outcome) int {
	if out.Keyed == nil || !out.Keyed.Changed {
		return 0
	}
	switch c.Kind {
	case keyed.Reserve:
		switch record := out.Keyed.Record; {
		case record == nil || record.Token != out.Index: // a repeat
			return 0
		case record.Attempts > 1:
			return chargedAttempt
		}
		return chargeOfRecord(&c.ID)
	case keyed.Complete, keyed.Reject, keyed.Resolve:
		return chargedResult + chargeOfAttachment(len(c.Response))
	case keyed.Checkpoint:
		return chargeOfAttachment(len(c.Data))
	}
	return 0
}

// chargeOfAttachment returns what a response or checkpoint takes.
func chargeOfAttachment(size int) int {
	if size <= inlineResponse {
		return 2 * size
	}
	return min(inState(8, size), size+pageBytes)
}

// chargeOfSession returns what an OpenSession has stored that came to an outcome.
func chargeOfSession(m *seqledgerv1.OpenSessionRequest, out *machine.Outcome) int {
	if out.Code != machine.Committed || out.Session != out.Index { // refused, or repeated
		return 0
	}
	return charge{stored: chargedAttempt, stream: uint16(scopeLength(m.Scope) + len(m.ClientId))}.of(out)
}
