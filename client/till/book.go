package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// payment is a payment that the till intends to make, or has made.
type payment struct {
	tag   string
	cents int64
	paid  bool
}

// book is the till's own file: lines of "intended TAG CENTS", "paid TAG TX_ID"
// and "unsettled TAG".
type book struct {
	file     *os.File
	payments []*payment
	byTag    map[string]*payment
}

// openBook reads the book at path. A last line without its end was being
// written when the till was killed, and counts as not written.
func openBook(path string) (*book, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	b := &book{byTag: make(map[string]*payment)}
	whole := content[:bytes.LastIndexByte(content, '\n')+1]
	number := 0
	for line := range bytes.Lines(whole) {
		number++
		if err := b.read(string(line)); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
	}
	if b.file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err = b.file.Truncate(int64(len(whole))); err == nil {
		_, err = b.file.Seek(int64(len(whole)), 0)
	}
	if err == nil {
		// Sync before use: what was read may not be on disk yet.
		err = b.file.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, b.file.Close())
	}
	return b, nil
}

// read takes one line, exactly as it is written: a damaged amount must not be
// read as another one.
func (b *book) read(line string) error {
	verb, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	tag, detail, _ := strings.Cut(rest, " ")
	known := b.byTag[tag]
	switch {
	case verb == "intended" && tag != "" && known == nil:
		p := &payment{tag: tag}
		var err error
		if p.cents, err = strconv.ParseInt(detail, 10, 64); err != nil {
			return fmt.Errorf("amount %q: %w", detail, err)
		}
		if p.line() != line {
			return fmt.Errorf("amount %q is not in the form that the book writes", detail)
		}
		b.add(p)
	case verb == "paid" && known != nil && detail != "" && !strings.Contains(detail, " "):
		known.paid = true
	case verb == "unsettled" && known != nil && line == "unsettled "+tag+"\n":
	default:
		return fmt.Errorf("%q is not valid here", line)
	}
	return nil
}

// line returns the book's line for an intended payment.
func (p *payment) line() string { return fmt.Sprintf("intended %s %d\n", p.tag, p.cents) }

func (b *book) add(p *payment) {
	b.payments = append(b.payments, p)
	b.byTag[p.tag] = p
}

// intend durably records payments before they are submitted.
func (b *book) intend(payments ...*payment) error {
	var lines bytes.Buffer
	for _, p := range payments {
		lines.WriteString(p.line())
		b.add(p)
	}
	return b.write(lines.Bytes())
}

// outcome is the outcome of a payment; txID is empty if it is not known.
type outcome struct{ tag, txID string }

// note durably records outcomes, except those that the book already has.
func (b *book) note(outcomes ...outcome) error {
	var lines bytes.Buffer
	for _, o := range outcomes {
		p := b.byTag[o.tag]
		switch {
		case p == nil:
			return fmt.Errorf("payment %q is not in the book", o.tag)
		case p.paid:
		case o.txID == "":
			fmt.Fprintf(&lines, "unsettled %s\n", o.tag)
		default:
			p.paid = true
			fmt.Fprintf(&lines, "paid %s %s\n", o.tag, o.txID)
		}
	}
	return b.write(lines.Bytes())
}

func (b *book) write(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if _, err := b.file.Write(lines); err != nil {
		return err
	}
	return b.file.Sync()
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
