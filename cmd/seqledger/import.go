package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gofrs/flock"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type importCommand struct {
	streamFlags `embed:""`
	clientFlags `embed:""`
	File        string `arg:"" help:"Input; a regular file, because it is read twice." type:"path"`
	AppendLines bool   `help:"Append each line of any text file as it is, instead of reading operations." env:"-"`
	Journal     string `help:"Journal with the place of the import. Default: FILE.seqledger-import." type:"path" env:"-" placeholder:"FILE"`
}

func (*importCommand) Help() string {
	return `Each line is one write: an operation in JSON, or an array of operations that commit together. Line n becomes
sequence n of the stream, which must be new. No line may be blank. All lines are checked before the first one is
written.

Killed at any moment, on either side, run the same command again: it continues after the last committed line, and
every line is committed once. A journal beside the input, like that of any client, has the ledger, the stream, the
writes without an answer and the input's digest. Keep it until the import is done, because without it nothing tells
which lines are committed. Each file has a --client-id of its own: without the journal, a stream that has writes is
refused, but only until it is evicted (24 idle hours, if client_ttl is unchanged). The import is refused when the
input, the ledger or the stream is no longer the same. What is appended to the input after an import began is not a
part of it: put that into a new file, and import it under another --client-id. --timeout bounds how long it waits
without any progress.

A line that the ledger refuses, for instance because a condition fails, stops the import. Either repair what it
needs and run the command again, or put that line, corrected, and the later ones into a new file, and import that under
another --client-id.

    seqledger import --scope acme/main --client-id loader events.ndjson
    seqledger import --scope acme/main --client-id log-1 --append-lines /var/log/app.log

` + operation.Help
}

// mode is how the input is read.
func (c *importCommand) mode() string {
	if c.AppendLines {
		return modeLines
	}
	return modeOperations
}

func (c *importCommand) Run(e *environment) (err error) {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	c.Journal = cmp.Or(c.Journal, c.File+".seqledger-import")
	if err := checkParent("--journal", c.Journal); err != nil {
		return err
	}
	input, unlock, err := openInput(c.File)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	var summary inputSummary
	_, absent := os.Stat(c.Journal)
	if absent != nil { // it is not made for an input with a bad line
		if summary, err = c.survey(e, importPlace{}, input); err != nil {
			return err
		}
	}
	j, err := c.openJournal()
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, j.Close()) }() // Close repeats the error of a journal that failed
	place, err := placeOf(j.Streams())
	if err != nil {
		return fail(exitRefused, "give this import its own --journal", "%s: %w", c.Journal, err)
	}
	if absent == nil {
		if summary, err = c.survey(e, place, input); err != nil {
			return err
		}
	}
	if err := c.belongs(scope, place, summary); err != nil {
		return err
	}
	began, first := time.Now(), place.committed
	if place.committed < summary.Lines {
		if _, err := input.Seek(0, io.SeekStart); err != nil {
			return err
		}
		err = c.connected(e, func(conn *client.Client) error {
			place, err = c.resume(e, conn, j, place, summary, input)
			return err
		})
		if err != nil {
			return err
		}
	}
	err = c.finished(e, place, summary, place.committed-first, time.Since(began))
	if err != nil {
		return err
	}
	// At the end, because the file may grow all the time.
	return c.noticeGrowth(e, summary, input)
}

// openInput opens a file and locks it against other imports, because two imports would fence each other
// in turns.
func openInput(path string) (*os.File, func() error, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, usage("%w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, usage("%s: must be a regular file, because it is read twice", path)
	}
	lock := flock.New(path, flock.SetFlag(os.O_RDONLY))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, nil, fmt.Errorf("lock of %s: %w", path, err)
	}
	if !locked {
		return nil, nil, fail(exitFailed, "wait for it, or stop it and run this one again",
			"another import of %s is running", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	return f, func() error { return errors.Join(f.Close(), lock.Close()) }, nil
}

// openJournal opens the journal of the import.
func (c *importCommand) openJournal() (*journal.File, error) {
	if info, err := os.Stat(c.Journal); err == nil {
		if !info.Mode().IsRegular() {
			return nil, usage("--journal %s: is a directory or not a regular file: name another path", c.Journal)
		}
		if input, err := os.Stat(c.File); err == nil && os.SameFile(info, input) {
			return nil, usage("--journal %s: is the input: name another path", c.Journal)
		}
	}
	j, err := journal.Open(c.Journal, journal.Options{})
	switch {
	case errors.Is(err, journal.ErrLocked):
		return nil, fail(exitFailed, "wait for it, stop it, or give this one its own --journal",
			"another import has %s open: %w", c.Journal, err)
	case isA[*journal.DamageError](err):
		return nil, fail(exitFailed, "restore it; if no line was imported, name another path with --journal", "%w", err)
	case err != nil:
		return nil, fail(exitFailed, "keep it, because it tells which lines are committed; repair the cause, and run "+
			"the same command again", "%w", err)
	}
	return j, nil
}

// importPlace is how far an import is, as its journal says.
type importPlace struct {
	name            journal.Name // of the stream; empty if there is none
	ledger, session uint64
	// input is what the import began with; nil while no line was sent. It is the tag of the first line, which stays in
	// the journal because it is not acknowledged.
	input *inputSummary
	// sent counts the lines that may have been sent, committed those that are known to be committed.
	sent, committed uint64
}

// placeOf reads the place of an import.
func placeOf(streams []journal.State) (importPlace, error) {
	other := errors.New("it is not the journal of an import")
	switch len(streams) {
	case 0:
		return importPlace{}, nil
	case 1:
	default:
		return importPlace{}, other
	}
	s := &streams[0]
	p := importPlace{name: s.Name, ledger: s.Head.Ledger, session: s.Head.Session}
	if len(s.Entries) == 0 {
		return p, nil
	}
	p.input = new(inputSummary)
	if err := json.Unmarshal([]byte(s.Entries[0].Tag), p.input); err != nil || s.Entries[0].Sequence != 1 {
		return importPlace{}, other
	}
	p.sent = s.Head.NextSequence - 1
	p.committed = p.sent - uint64(len(s.Unsettled()))
	return p, nil
}

// noticeGrowth reports what was appended to the input since the import began, and how to import
// that too.
func (c *importCommand) noticeGrowth(e *environment, begun inputSummary, input *os.File) error {
	info, err := input.Stat()
	if err != nil {
		return err
	}
	more := info.Size() - begun.Size
	if more <= 0 {
		return nil
	}
	last := []byte{'\n'}
	if begun.Size > 0 {
		if _, err := input.ReadAt(last, begun.Size-1); err != nil {
			return err
		}
	}
	e.notice("the file has grown by %d bytes since the import began; only its first %d bytes are imported. "+
		"Import the rest as a new file, under another --client-id: tail -c +%d %s > NEW", more, begun.Size,
		begun.Size+1, c.File)
	if last[0] != '\n' {
		e.notice("line %d was imported without its end, which was not there yet: the rest begins with it", begun.Lines)
	}
	return nil
}

// survey reads the input of an import, and checks its lines unless some may have been sent.
func (c *importCommand) survey(e *environment, place importPlace, input *os.File) (summary inputSummary, err error) {
	info, err := input.Stat()
	if err != nil {
		return summary, err
	}
	// Only the size at the beginning counts, because a file may grow while it is imported.
	size, past := info.Size(), pastExpiries{now: time.Now()}
	look := past.look
	if place.input != nil {
		size, look = place.input.Size, nil
	}
	summary, err = surveyInput(e.ctx, io.LimitReader(input, size), c.mode(), look)
	if bad, ok := errors.AsType[*lineError](err); ok {
		hint := "correct the line and run it again; nothing was written"
		if place.input != nil {
			hint = "the file has changed since the import began: restore it"
		}
		return summary, fail(exitUsage, hint, "%s: %w", c.File, bad)
	}
	if err != nil {
		return summary, fmt.Errorf("%s: %w", c.File, err)
	}
	if past.lines > 0 {
		e.notice("warning: on %d lines, line %d the first of them, expires_at is in the past: "+
			"the entity is absent at once", past.lines, past.first)
	}
	return summary, nil
}

// belongs refuses a journal of another import.
func (c *importCommand) belongs(scope *seqledgerv1.Scope, place importPlace, summary inputSummary) error {
	if err := place.differs(c.stream(scope), summary); err != nil {
		hint := "restore the settings that the import began with; for another import, use another file or --journal"
		if errors.Is(err, errOtherInput) {
			hint = "restore the file that the import began with; its lines may be committed, and a new import would " +
				"write them a second time"
		}
		return fail(exitRefused, hint, "%s does not belong to this import: %w", c.Journal, err)
	}
	return nil
}

// stream returns the name of the stream.
func (c *importCommand) stream(scope *seqledgerv1.Scope) journal.Name {
	return journal.Name{Organization: scope.GetOrganization(), Vault: scope.GetVault(), ClientID: c.ClientID}
}

// pastExpiries counts the lines of an import that set an entity that has already expired.
type pastExpiries struct {
	now          time.Time
	lines, first uint64
}

// look is the callback for survey.
func (p *pastExpiries) look(line uint64, operations []*seqledgerv1.Operation) {
	if operation.Expired(operations, p.now) == nil {
		return
	}
	if p.lines++; p.lines == 1 {
		p.first = line
	}
}

// errOtherInput is the one difference that another journal does not solve, because its import would send lines that are
// already committed.
var errOtherInput = errors.New("the input has changed")

// differs returns why the journal belongs to another import, or nil.
func (p *importPlace) differs(stream journal.Name, input inputSummary) error {
	scope := func(n journal.Name) string {
		return scopeName(&seqledgerv1.Scope{Organization: n.Organization, Vault: n.Vault})
	}
	switch {
	case p.name == journal.Name{}:
		return nil
	case scope(p.name) != scope(stream):
		return fmt.Errorf("it was begun in the scope %s, not %s", scope(p.name), scope(stream))
	case p.name.ClientID != stream.ClientID:
		return fmt.Errorf("it was begun with --client-id %s, not %s", p.name.ClientID, stream.ClientID)
	case p.input == nil:
		return nil
	case p.input.Mode != input.Mode:
		return fmt.Errorf("it was begun with the lines read as %s, not as %s", p.input.Mode, input.Mode)
	case *p.input != input:
		return fmt.Errorf("%w: its first %d bytes had SHA-256 %.16s…, now there are %d with SHA-256 %.16s…",
			errOtherInput, p.input.Size, p.input.SHA256, input.Size, input.SHA256)
	case p.sent == 0:
		return errors.New("the stream was evicted, and its sequences no longer show which lines are committed")
	}
	return nil
}

// importResult is printed with --json.
type importResult struct {
	Lines         uint64  `json:"lines,string"` // of the input
	Sent          uint64  `json:"sent,string"`  // by this run
	FirstSequence uint64  `json:"firstSequence,string"`
	LastSequence  uint64  `json:"lastSequence,string"`
	Session       uint64  `json:"session,string"`
	LedgerID      string  `json:"ledgerId"`
	Seconds       float64 `json:"seconds"`
}

// finished reports a complete import.
func (c *importCommand) finished(
	e *environment, place importPlace, input inputSummary, sent uint64, took time.Duration,
) (err error) {
	result := importResult{
		Lines: input.Lines, Sent: sent, FirstSequence: min(1, input.Lines), LastSequence: input.Lines,
		Session: place.session, LedgerID: fmt.Sprintf("%016x", place.ledger), Seconds: took.Seconds(),
	}
	switch {
	case e.json:
		return e.showObject(result)
	case input.Lines == 0:
		_, err = fmt.Fprintf(e.stdout, "%s is empty: nothing to import\n", c.File)
	case sent == 0:
		_, err = fmt.Fprintf(e.stdout,
			"already imported: all %d lines of %s were committed as sequences 1 to %d on ledger %s; %s says so, and "+
				"no server was asked\n",
			input.Lines, c.File, input.Lines, result.LedgerID, c.Journal)
	default:
		_, err = fmt.Fprintf(e.stdout,
			"imported: all %d lines of %s are committed as sequences 1 to %d; this run sent %d in %s (%.0f a second)\n",
			input.Lines, c.File, input.Lines, sent, took.Round(time.Millisecond), float64(sent)/took.Seconds())
	}
	return err
}
