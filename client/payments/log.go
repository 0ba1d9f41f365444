package payments

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/seqledger/seqledger/client/op"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Payment is a payment that the program intends to make, or has made.
type Payment struct {
	Tag   string // its name, without spaces
	Cents int64
	Paid  bool
}

// entityKey begins the key of every payment's entity.
const entityKey = "payment/"

// Operation writes the payment under its own key. It has no condition, so only the identity of the write prevents a
// second payment.
func (p *Payment) Operation() *seqledgerv1.Operation {
	return op.Set(entityKey+p.Tag, fmt.Append(nil, p.Cents))
}

// Of returns the payment in the operations of a write, and whether there is one.
func Of(operations []*seqledgerv1.Operation) (p Payment, ok bool) {
	if len(operations) != 1 {
		return p, false
	}
	set := operations[0].GetSetEntity()
	tag, ok := strings.CutPrefix(set.GetKey(), entityKey)
	cents, err := strconv.ParseInt(string(set.GetValue()), 10, 64)
	if !ok || err != nil {
		return p, false
	}
	return Payment{Tag: tag, Cents: cents}, true
}

// Log is the payment log, the program's own file: lines of "intended TAG CENTS", "paid TAG TX_ID"
// and "unsettled TAG". It is not safe for concurrent use.
type Log struct {
	file     *os.File
	sync     bool
	payments []*Payment
	byTag    map[string]*Payment
}

// OpenLog reads the payment log at path, or creates it. A last line without a newline was being written when the
// program was killed. It counts as not written and is cut off.
//
// With sync, what is recorded survives a power failure, as the journal does. Without it, it survives only a kill.
// That is enough for the demo, because it kills processes and not the machine.
func OpenLog(path string, sync bool) (*Log, error) {
	l, whole, err := readLog(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if l.file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err = l.file.Truncate(whole); err == nil {
		_, err = l.file.Seek(whole, 0)
	}
	if l.sync = sync; err == nil && sync {
		// Sync before use, because what was read may not be on disk yet.
		err = l.file.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, l.file.Close())
	}
	return l, nil
}

// ReadLog returns the payments of a payment log, in the order in which they were intended. It leaves the file as it is.
func ReadLog(path string) ([]*Payment, error) {
	l, _, err := readLog(path)
	return l.payments, err
}

// readLog also returns how many bytes of the file are whole lines.
func readLog(path string) (*Log, int64, error) {
	l := &Log{byTag: make(map[string]*Payment)}
	content, err := os.ReadFile(path)
	if err != nil {
		return l, 0, err
	}
	whole := content[:bytes.LastIndexByte(content, '\n')+1]
	number := 0
	for line := range bytes.Lines(whole) {
		number++
		if err := l.read(string(line)); err != nil {
			return l, 0, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
	}
	return l, int64(len(whole)), nil
}

// read parses one line. It accepts only the exact form that the log writes, because a damaged amount must not be read
// as another one.
func (l *Log) read(line string) error {
	verb, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	tag, detail, _ := strings.Cut(rest, " ")
	known := l.byTag[tag]
	switch {
	case verb == "intended" && tag != "" && known == nil:
		p := &Payment{Tag: tag}
		var err error
		if p.Cents, err = strconv.ParseInt(detail, 10, 64); err != nil {
			return fmt.Errorf("amount %q: %w", detail, err)
		}
		if p.line() != line {
			return fmt.Errorf("amount %q is not in the form that the payment log writes", detail)
		}
		l.add(p)
	case verb == "paid" && known != nil && detail != "" && !strings.Contains(detail, " "):
		known.Paid = true
	case verb == "unsettled" && known != nil && line == "unsettled "+tag+"\n":
	default:
		return fmt.Errorf("%q is not valid here", line)
	}
	return nil
}

// line returns the line for an intended payment.
func (p *Payment) line() string { return fmt.Sprintf("intended %s %d\n", p.Tag, p.Cents) }

func (l *Log) add(p *Payment) {
	l.payments = append(l.payments, p)
	l.byTag[p.Tag] = p
}

// Intend records payments before they are submitted.
func (l *Log) Intend(payments ...*Payment) error {
	var lines bytes.Buffer
	for _, p := range payments {
		lines.WriteString(p.line())
		l.add(p)
	}
	return l.write(lines.Bytes())
}

// Outcome is the outcome of a payment; TxID is empty if it is not known.
type Outcome struct{ Tag, TxID string }

// Note records outcomes, except those that the log already has.
func (l *Log) Note(outcomes ...Outcome) error {
	var lines bytes.Buffer
	for _, o := range outcomes {
		p := l.byTag[o.Tag]
		switch {
		case p == nil:
			return fmt.Errorf("payment %q is not in the payment log", o.Tag)
		case p.Paid:
		case o.TxID == "":
			fmt.Fprintf(&lines, "unsettled %s\n", o.Tag)
		default:
			p.Paid = true
			fmt.Fprintf(&lines, "paid %s %s\n", o.Tag, o.TxID)
		}
	}
	return l.write(lines.Bytes())
}

func (l *Log) write(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if _, err := l.file.Write(lines); err != nil || !l.sync {
		return err
	}
	return l.file.Sync()
}

// Unpaid returns the payments that are intended and not known to be paid.
func (l *Log) Unpaid() []*Payment {
	var open []*Payment
	for _, p := range l.payments {
		if !p.Paid {
			open = append(open, p)
		}
	}
	return open
}

// Payments returns all payments, in the order in which they were intended.
func (l *Log) Payments() []*Payment { return l.payments }

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }
