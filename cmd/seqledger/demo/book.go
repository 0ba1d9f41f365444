package demo

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// payment is a payment that a client intends to make, or has made.
type payment struct {
	tag   string
	cents int64
	paid  bool
}

// operation appends the payment to the ledger. It has no condition and no entity key, so that
// only the write's identity keeps it from being booked twice.
func (p *payment) operation() *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
		Append: &seqledgerv1.Append{Payload: fmt.Appendf(nil, "payment %s %d", p.tag, p.cents)},
	}}
}

// paymentOf reads a payment from a write, and reports whether it has one.
func paymentOf(operations []*seqledgerv1.Operation) (payment, bool) {
	if len(operations) != 1 {
		return payment{}, false
	}
	var p payment
	_, err := fmt.Sscanf(string(operations[0].GetAppend().GetPayload()), "payment %s %d", &p.tag, &p.cents)
	return p, err == nil
}

// book is a client's own file: lines of "intended TAG CENTS" and "paid TAG".
// Nothing waits for the disk, because the demo kills processes and not the
// machine: what was written before a SIGKILL is there afterwards.
type book struct {
	file     *os.File
	payments []*payment
	byTag    map[string]*payment
}

// openBook reads the book at path, or creates it. A last line without its end was being written
// when the client was killed, and counts as not written.
func openBook(path string) (*book, error) {
	b, whole, err := readBook(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if b.file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err = b.file.Truncate(whole); err == nil {
		_, err = b.file.Seek(whole, 0)
	}
	if err != nil {
		return nil, errors.Join(err, b.file.Close())
	}
	return b, nil
}

// readBook reads a book and returns how many bytes of it are whole lines.
func readBook(path string) (*book, int64, error) {
	b := &book{byTag: make(map[string]*payment)}
	content, err := os.ReadFile(path)
	if err != nil {
		return b, 0, err
	}
	whole := content[:bytes.LastIndexByte(content, '\n')+1]
	number := 0
	for line := range bytes.Lines(whole) {
		number++
		if err := b.read(string(line)); err != nil {
			return b, 0, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
	}
	return b, int64(len(whole)), nil
}

// read takes one line, exactly as it is written.
func (b *book) read(line string) error {
	p := new(payment)
	_, err := fmt.Sscanf(line, "intended %s %d\n", &p.tag, &p.cents)
	if err == nil && p.intended() == line && b.byTag[p.tag] == nil {
		b.add(p)
		return nil
	}
	_, err = fmt.Sscanf(line, "paid %s\n", &p.tag)
	if known := b.byTag[p.tag]; err == nil && known != nil && known.noted() == line {
		known.paid = true
		return nil
	}
	return fmt.Errorf("%q makes no sense here", line)
}

// intended and noted are the lines about a payment.
func (p *payment) intended() string { return fmt.Sprintf("intended %s %d\n", p.tag, p.cents) }
func (p *payment) noted() string    { return fmt.Sprintf("paid %s\n", p.tag) }

func (b *book) add(p *payment) {
	b.payments = append(b.payments, p)
	b.byTag[p.tag] = p
}

// intend records payments before they are sent.
func (b *book) intend(payments []*payment) error {
	var lines bytes.Buffer
	for _, p := range payments {
		lines.WriteString(p.intended())
		b.add(p)
	}
	_, err := b.file.Write(lines.Bytes())
	return err
}

// note records acknowledged payments, except those that the book already has.
func (b *book) note(tags ...string) error {
	var lines bytes.Buffer
	for _, tag := range tags {
		p := b.byTag[tag]
		if p == nil {
			return fmt.Errorf("payment %q is not in the book", tag)
		}
		if !p.paid {
			p.paid = true
			lines.WriteString(p.noted())
		}
	}
	_, err := b.file.Write(lines.Bytes())
	return err
}

// unpaid returns the payments that are intended and not known to be paid.
func (b *book) unpaid() []*payment {
	var open []*payment
	for _, p := range b.payments {
		if !p.paid {
			open = append(open, p)
		}
	}
	return open
}

func (b *book) close() error { return b.file.Close() }
