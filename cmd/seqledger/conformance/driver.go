package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// maxSubmits bounds the submitted writes that wait for space in the Writer.
const maxSubmits = 4096

// driver is the client under test for package client/writer.
type driver struct {
	ctx context.Context //nolint:containedctx // It ends with standard input, or with the process.

	mu      sync.Mutex
	out     *json.Encoder
	pending map[string]*writer.Pending

	client  *client.Client
	journal *journal.File
	writer  *writer.Writer
	submits chan command
	waits   sync.WaitGroup
}

// Drive runs a client under test with a Writer and a journal. It executes the commands on in, and returns when it is
// told to close or when in ends.
func Drive(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	d := &driver{
		ctx: ctx, out: json.NewEncoder(out), pending: make(map[string]*writer.Pending),
		submits: make(chan command, maxSubmits),
	}
	defer d.waits.Wait()
	defer func() {
		cancel()
		if d.client != nil {
			_ = d.client.Close() // this ends the Writer; what is unsettled has been reported
		}
	}()
	commands := make(chan command)
	failed := make(chan error, 1)
	// Ends with in, or, if the client is told to close before that, with the process.
	go func() {
		defer cancel()
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			var c command
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				failed <- err
				return
			}
			commands <- c
		}
	}()
	for {
		select {
		case err := <-failed:
			return err
		case c := <-commands:
			if c.Do == "close" {
				return d.close()
			}
			if err := d.obey(c); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil // the harness has ended
		}
	}
}

func (d *driver) obey(c command) error {
	switch c.Do {
	default:
		return fmt.Errorf("no such command %q", c.Do)
	case "open":
		return d.open(c)
	case "submit":
		d.submits <- c
	case "acknowledge":
		d.mu.Lock()
		p := d.pending[c.ID]
		d.mu.Unlock()
		if p == nil {
			return fmt.Errorf("acknowledge: %q was never submitted", c.ID)
		}
		return p.Acknowledge()
	case "resume":
		if d.writer == nil {
			return errors.New("resume before open")
		}
		if err := d.writer.Resume(d.ctx); err != nil {
			return err
		}
		d.say(event{Event: "resumed"})
	}
	return nil
}

func (d *driver) say(e event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.out.Encode(e) // the harness may have ended
}

// open opens the Writer, however long that takes, or reports that it may not.
func (d *driver) open(c command) (err error) {
	if d.client, err = client.New(client.Options{Server: c.Server}); err != nil {
		return err
	}
	if d.journal, err = journal.Open(c.Journal, journal.Options{MaxBytes: c.JournalBytes}); err != nil {
		d.ended(err)
		return nil
	}
	for {
		d.writer, err = writer.Open(d.ctx, d.client, writer.Options{
			Scope:    &seqledgerv1.Scope{Organization: c.Organization, Vault: c.Vault},
			ClientID: c.ClientID, Journal: d.journal,
		})
		if err == nil {
			break
		}
		if !errors.Is(err, failure.ErrUnavailable) {
			d.ended(err)
			return nil
		}
		if !child.Pause(d.ctx, 50*time.Millisecond) {
			return nil
		}
	}
	recovered := d.writer.Recovered()
	var tags []string
	for _, p := range recovered {
		tags = append(tags, p.Tag())
	}
	d.say(event{Event: "opened", Recovered: tags})
	for _, p := range recovered {
		d.follow(p)
	}
	// This one ends with ctx, and the other one with the Writer, which Drive ends.
	d.waits.Go(func() {
		for {
			select {
			case c := <-d.submits:
				d.submit(c)
			case <-d.ctx.Done():
				return
			}
		}
	})
	d.waits.Go(func() {
		<-d.writer.Done()
		if err := d.writer.Err(); !errors.Is(err, failure.ErrClosed) {
			d.ended(err)
		}
	})
	return nil
}

// submit submits a write. It waits while the Writer has no space.
func (d *driver) submit(c command) {
	text := []byte(c.ID + strings.Repeat(" ", max(0, c.Bytes-len(c.ID))))
	operation := op.Append(text)
	switch {
	case c.Set != "" && c.If == "absent":
		operation = op.Set(c.Set, text, op.IfAbsent())
	case c.Set != "" && c.If == "present":
		operation = op.Set(c.Set, text, op.IfPresent())
	case c.Set != "":
		operation = op.Set(c.Set, text)
	}
	p, err := d.writer.SubmitTagged(d.ctx, c.ID, operation)
	switch {
	case errors.Is(err, journal.ErrTagInUse):
		d.say(event{Event: "outcome", ID: c.ID, Outcome: known})
	case err != nil:
		d.outcome(c.ID, nil, err)
	default:
		d.follow(p)
	}
}

// follow reports the outcome of a write.
func (d *driver) follow(p *writer.Pending) {
	d.mu.Lock()
	d.pending[p.Tag()] = p
	d.mu.Unlock()
	// Ends when the write is settled, at the latest when the Writer ends.
	d.waits.Go(func() {
		receipt, err := p.Wait(context.Background())
		d.outcome(p.Tag(), receipt, err)
	})
}

func (d *driver) outcome(id string, receipt *seqledgerv1.Receipt, err error) {
	e := event{Event: "outcome", ID: id, Outcome: committed, Sequence: receipt.GetSequence(), TxID: receipt.GetTxId()}
	if err != nil {
		e.Outcome, e.Code, e.Message = unknown, codeOf(err), err.Error()
	}
	if errors.Is(err, failure.ErrNotExecuted) {
		e.Outcome = notExecuted
	}
	d.say(e)
}

// ended reports why the Writer has ended, or could not be opened.
func (d *driver) ended(err error) {
	e := event{Event: "ended", Code: codeOf(err), Message: err.Error()}
	if unsettled, ok := errors.AsType[*writer.UnsettledError](err); ok {
		for _, p := range unsettled.Writes {
			e.Unsettled = append(e.Unsettled, p.Tag())
		}
	}
	d.say(e)
}

// codeOf returns the name of the refusal in an error.
func codeOf(err error) string {
	code := failure.CodeOf(err)
	if code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED {
		return ""
	}
	return strings.TrimPrefix(code.String(), "WRITE_ERROR_CODE_")
}

// close ends the Writer once its writes are settled.
func (d *driver) close() error {
	if d.writer != nil {
		_ = d.writer.Close(d.ctx) // what is unsettled has been reported
	}
	if d.journal == nil {
		return nil
	}
	return d.journal.Close()
}
