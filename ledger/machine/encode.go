package machine

import (
	"encoding/binary"
	"fmt"
)

// Command is a valid write in the form of the log, with what the look for a
// retry needs of it. An [Encoder] makes it. Nothing checks, encodes or changes
// it afterwards, so that what is decided is what was checked.
type Command struct {
	write       Write  // without its operations
	encoded     []byte // as the log has it
	operations  []byte // the end of encoded: what the request hash covers
	count       int    // of operations
	comparisons int
	expiring    int
	bytes       int
}

// Write returns the write without its operations. It must not be changed.
func (c *Command) Write() *Write { return &c.write }

// Encoded returns the command as [AppendWrite] encodes it. It must not be
// changed.
func (c *Command) Encoded() []byte { return c.encoded }

// RequestHash returns the hash of the operations.
func (c *Command) RequestHash() RequestHash { return hashOperations(c.operations) }

// Operations returns how many operations the write has.
func (c *Command) Operations() int { return c.count }

// Comparisons returns how many of the operations compare a value.
func (c *Command) Comparisons() int { return c.comparisons }

// Expiring returns how many of the operations set an entity that expires.
func (c *Command) Expiring() int { return c.expiring }

// OperationBytes returns how many bytes the keys, values and payloads of the
// operations have together.
func (c *Command) OperationBytes() int { return c.bytes }

// Encode validates a write and encodes it. The command has strings of the write,
// and appends its bytes to memory; it returns the memory for the next one. The
// error is a *FieldError.
func (w *Write) Encode(memory []byte) (c Command, rest []byte, err error) {
	var e Encoder
	if err := e.Begin(memory, w, len(w.Operations)); err != nil {
		return c, memory, err
	}
	for i := range w.Operations {
		if err := e.Add(&w.Operations[i]); err != nil {
			return c, memory, err
		}
	}
	return e.End()
}

// Encoder validates a write and encodes it in one pass, operation by operation,
// so that they need not all be in memory in another form. The zero value is ready.
type Encoder struct {
	// TextIsUTF8 says that the keys, relations and subjects were decoded from
	// protobuf or JSON, whose decoders refuse text that is not UTF-8.
	TextIsUTF8 bool

	memory  []byte // before the command
	encoded []byte // memory and the command so far
	start   int    // of the operations in encoded
	command Command
	want    int // operations
}

// Begin begins a command with the given number of operations; those of w are ignored. The command is appended to
// memory. The error is a *FieldError.
func (e *Encoder) Begin(memory []byte, w *Write, operations int) error {
	if err := w.validateHead(); err != nil {
		return err
	}
	if err := validateOperationCount(operations); err != nil {
		return err
	}
	e.command = Command{write: *w, count: operations}
	e.command.write.Operations = nil
	e.memory, e.want = memory, operations
	e.encoded = appendWriteHead(memory, w)
	e.start = len(e.encoded)
	e.encoded = binary.AppendUvarint(e.encoded, uint64(operations))
	return nil
}

// Add adds the next operation. The error is a *FieldError, and the command must
// then be abandoned.
func (e *Encoder) Add(op *Operation) error {
	if err := op.validate(e.TextIsUTF8); err != nil {
		err.Field = fmt.Sprintf("operations[%d]%s", e.command.count-e.want, err.Field)
		return err
	}
	e.want--
	if op.Condition.Kind == ConditionValueEquals {
		e.command.comparisons++
	}
	if op.ExpiresAt != 0 {
		e.command.expiring++
	}
	e.command.bytes += op.bytes()
	e.encoded = appendOperation(e.encoded, op)
	return nil
}

// End returns the command once all its operations were added, and the memory
// with its bytes, for the next one. The error is a *FieldError.
func (e *Encoder) End() (c Command, memory []byte, err error) {
	if e.want != 0 {
		panic(fmt.Sprintf("machine: a command lacks %d operations", e.want))
	}
	if err := validateOperationBytes(e.command.bytes); err != nil {
		return c, e.memory, err
	}
	c, memory = e.command, e.encoded
	// Clipped, so that what is appended to the memory next never changes the command.
	c.encoded, c.operations = memory[len(e.memory):len(memory):len(memory)], memory[e.start:len(memory):len(memory)]
	*e = Encoder{TextIsUTF8: e.TextIsUTF8}
	return c, memory, nil
}

// Commands validates and encodes writes. The error wraps a *FieldError and
// begins with the place of the write.
func Commands(writes ...*Write) ([]Command, error) {
	commands := make([]Command, len(writes))
	var memory []byte
	for i, w := range writes {
		var err error
		if commands[i], memory, err = w.Encode(memory); err != nil {
			return nil, fmt.Errorf("writes[%d]: %w", i, err)
		}
	}
	return commands, nil
}
