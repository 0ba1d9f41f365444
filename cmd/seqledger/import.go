package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gofrs/flock"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/cmd/seqledger/importing"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// importCommand commits the lines of a file.
type importCommand struct {
	streamFlags `embed:""`
	clientFlags `embed:""`
	File        string `arg:"" help:"Input; a regular file, because it is read twice." type:"path"`
	AppendLines bool   `help:"Append each line of any text file as it is, instead of reading operations." env:"-"`
	StateFile   string `help:"File with the progress of the import. Default: FILE.seqledger-import." type:"path" env:"-" placeholder:"FILE"`
	TakeSession uint64 `help:"Continue from this session although the state file has another or none. Use only if you know what was written under it and nothing writes under it now." env:"-" placeholder:"N"`
}

func (*importCommand) Help() string {
	return `Each line is one write: an operation in JSON, or an array of operations that commit together. Line n becomes
sequence n of the stream, which must be new. No line may be blank. All lines are checked before the first one is
written.

Killed at any moment, on either side, run the same command again: it goes on behind the last committed line,
and every line is there once. A state file beside the input remembers the ledger, the stream, its session
and the input's digest; keep it until the import is done, because without it nothing tells which lines are
committed. Each file has a --client-id of its own: a stream that has writes is refused without the state file,
unless --take-session says that none of them is a line of this file.
It refuses to go on when the input, the ledger or the stream is no longer the same. What is appended to the
input after an import began is not a part of it: put that into a new file, and import it then, under another
--client-id. --timeout bounds how long it waits without any progress.

A line that the ledger refuses, for instance because a condition fails, stops the import. Either repair what it
needs and run the command again, or put that line, corrected, and those behind it into a new file, and import
that under another --client-id.

    seqledger import --scope acme/main --client-id loader events.ndjson
    seqledger import --scope acme/main --client-id log-1 --append-lines /var/log/app.log

` + operation.Help
}

// mode is how the input is read.
func (c *importCommand) mode() string {
	if c.AppendLines {
		return importing.ModeLines
	}
	return importing.ModeOperations
}

func (c *importCommand) Run(e *environment) (err error) {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	if c.StateFile == "" {
		c.StateFile = c.File + ".seqledger-import"
	}
	if err := checkStateFile(c.StateFile); err != nil {
		return err
	}
	input, unlock, err := openInput(c.File)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	unlockState, err := importing.Lock(c.StateFile)
	if errors.Is(err, importing.ErrInUse) {
		err = fail(exitFailed, "wait for it, stop it, or give this one its own --state-file", "%w %s", err, c.StateFile)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlockState()) }()
	state, err := c.begin(e, scope, input)
	if err != nil {
		return err
	}
	// Check at the end, because the file may grow all the time.
	defer func() {
		if err == nil {
			err = c.noticeGrowth(e, state, input)
		}
	}()
	if state.Done || state.Lines == 0 {
		return c.finished(e, state, 0, 0)
	}
	if _, err := input.Seek(0, io.SeekStart); err != nil {
		return err
	}
	began := time.Now()
	var sent uint64
	err = c.connected(e, func(conn *client.Client) error {
		sent, err = c.resume(e, conn, scope, state, input)
		return err
	})
	if err != nil {
		return err
	}
	return c.finished(e, state, sent, time.Since(began))
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

// checkStateFile refuses a path that cannot be a state file.
func checkStateFile(path string) error {
	if err := checkParent("--state-file", path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return usage("--state-file %s: is a directory or not a regular file: name another path", path)
	}
	return nil // an error shows again when it is read
}

// noticeGrowth reports what was appended to the input since the import began, and how to import
// that too.
func (c *importCommand) noticeGrowth(e *environment, state *importing.State, input *os.File) error {
	info, err := input.Stat()
	if err != nil {
		return err
	}
	more := info.Size() - state.Size
	if more <= 0 {
		return nil
	}
	last := []byte{'\n'}
	if state.Size > 0 {
		if _, err := input.ReadAt(last, state.Size-1); err != nil {
			return err
		}
	}
	e.notice("the file has grown by %d bytes since the import began; only its first %d bytes are imported. "+
		"Import the rest as a new file, under another --client-id: tail -c +%d %s > NEW", more, state.Size,
		state.Size+1, c.File)
	if last[0] != '\n' {
		e.notice("line %d was imported without its end, which was not there yet: the rest begins with it", state.Lines)
	}
	return nil
}

// begin reads the input and the state file, and returns the state to continue from. It does not
// call the server.
func (c *importCommand) begin(e *environment, scope *seqledgerv1.Scope, input *os.File) (*importing.State, error) {
	state, err := importing.Load(c.StateFile)
	if err != nil {
		return nil, fail(exitFailed,
			"restore it; if you are sure that no line was imported, delete it", "state file: %w", err)
	}
	info, err := input.Stat()
	if err != nil {
		return nil, err
	}
	// Only its size at the beginning counts, because a file may grow while it is imported.
	size := info.Size()
	if state != nil {
		size = state.Size
	}
	past := pastExpiries{now: time.Now()}
	look := past.look
	if state != nil {
		look = nil
	}
	summary, err := importing.Survey(e.ctx, io.LimitReader(input, size), c.mode(), look)
	if bad, ok := errors.AsType[*importing.LineError](err); ok {
		hint := "correct the line and run it again; nothing was written"
		if state != nil {
			hint = "the file has changed since the import began: restore it"
		}
		return nil, fail(exitUsage, hint, "%s: %w", c.File, bad)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	if past.lines > 0 {
		e.notice("warning: on %d lines, line %d the first of them, expires_at is in the past: "+
			"the entity is absent at once", past.lines, past.first)
	}
	if state == nil {
		return &importing.State{
			Format: importing.Format, Organization: scope.GetOrganization(), Vault: scope.GetVault(),
			ClientID: c.ClientID, Mode: c.mode(), Summary: summary,
		}, nil
	}
	if err := sameImport(state, scope, c.ClientID, c.mode(), summary); err != nil {
		hint := "restore the settings that the import began with; for another import, use another file or --state-file"
		if errors.Is(err, errOtherInput) {
			hint = "restore the file that the import began with; its lines may be committed, and a new import would " +
				"write them a second time"
		}
		return nil, fail(exitRefused, hint, "%s does not belong to this import: %w", c.StateFile, err)
	}
	return state, nil
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

// errOtherInput is the one difference that another state file does not solve, because its import would
// send lines that are already committed.
var errOtherInput = errors.New("the input has changed")

// sameImport returns why a state file belongs to another import, or nil.
func sameImport(s *importing.State, scope *seqledgerv1.Scope, clientID, mode string, input importing.Summary) error {
	switch {
	case s.Organization != scope.GetOrganization() || s.Vault != scope.GetVault():
		return fmt.Errorf("it was begun in the scope %s, not %s",
			scopeName(&seqledgerv1.Scope{Organization: s.Organization, Vault: s.Vault}), scopeName(scope))
	case s.ClientID != clientID:
		return fmt.Errorf("it was begun with --client-id %s, not %s", s.ClientID, clientID)
	case s.Mode != mode:
		return fmt.Errorf("it was begun with the lines read as %s, not as %s", s.Mode, mode)
	case s.Summary != input:
		return fmt.Errorf("%w: its first %d bytes had SHA-256 %.16s…, now there are %d with SHA-256 %.16s…",
			errOtherInput, s.Size, s.SHA256, input.Size, input.SHA256)
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
func (c *importCommand) finished(e *environment, state *importing.State, sent uint64, took time.Duration) (err error) {
	switch {
	case e.json:
		result := importResult{
			Lines: state.Lines, Sent: sent, Session: state.Session, LedgerID: state.LedgerID, Seconds: took.Seconds(),
		}
		if state.Lines > 0 {
			result.FirstSequence, result.LastSequence = state.Base+1, state.Base+state.Lines
		}
		return e.showObject(result)
	case state.Lines == 0:
		_, err = fmt.Fprintf(e.stdout, "%s is empty: nothing to import\n", c.File)
	case sent == 0:
		_, err = fmt.Fprintf(e.stdout,
			"already imported: all %d lines of %s were committed as sequences %d to %d on ledger %s at %s; "+
				"%s says so, and no server was asked\n",
			state.Lines, c.File, state.Base+1, state.Base+state.Lines, state.LedgerID, state.Server, c.StateFile)
	default:
		_, err = fmt.Fprintf(e.stdout,
			"imported: all %d lines of %s are committed as sequences %d to %d; this run sent %d in %s (%.0f a "+
				"second)\n",
			state.Lines, c.File, state.Base+1, state.Base+state.Lines, sent, took.Round(time.Millisecond), float64(
				sent)/took.Seconds())
	}
	return err
}

// resume opens a session, decides which line is next, sends from there, and records the result.
// It returns how many lines it has sent.
func (c *importCommand) resume(e *environment, conn *client.Client, scope *seqledgerv1.Scope,
	state *importing.State, input io.Reader) (uint64, error) {
	w, err := c.openWriter(e, conn, scope, state)
	if err != nil {
		return 0, err
	}
	opened := w.State()
	last := opened.NextSequence - 1
	if state.Session == 0 {
		if err := c.checkUnused(last, opened.Session); err != nil {
			return 0, err
		}
		state.Base = last
	}
	// The expected session guarantees this already. Check it again, because a mistake would
	// write lines twice or skip some.
	if last < state.Base || last-state.Base > state.Lines {
		return 0, fail(exitRefused, "find out who else writes under --client-id "+c.ClientID,
			"the stream is no longer this import's: its last sequence is %d, and the import's are %d to %d",
			last, state.Base+1, state.Base+state.Lines)
	}
	state.Session, state.AttemptID = opened.Session, ""
	if err := state.Save(c.StateFile); err != nil {
		return 0, fmt.Errorf("state file: %w; no line of this run was sent", err)
	}
	progress := c.progress(e, state.Lines, last-state.Base)
	run := &importing.Run{
		Writer: w, State: state, Committed: last - state.Base, Timeout: c.Timeout,
		Progress: progress.To,
	}
	first := run.Committed
	sendErr := run.Send(e.ctx, input)
	progress.End()
	// Everything that can be settled is settled; the next run handles the rest.
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.Close(ended)

	state.Done = sendErr == nil
	// Nothing else changes the state any more: Close has waited for the Writer.
	if err := state.Save(c.StateFile); err != nil {
		sendErr = errors.Join(sendErr, fmt.Errorf("state file: %w", err))
	}
	if sendErr != nil {
		return 0, c.explainSend(run, sendErr)
	}
	return run.Committed - first, nil
}

// progress shows how far an import is: nothing with --json.
func (c *importCommand) progress(e *environment, total, first uint64) *importing.Progress {
	if e.json {
		return importing.NewProgress(e.stderr, nil, total, first)
	}
	return importing.NewProgress(e.stderr, e.notice, total, first)
}

// openWriter opens a session for the import, after it has recorded the attempt in the state
// file.
func (c *importCommand) openWriter(
	e *environment, conn *client.Client, scope *seqledgerv1.Scope, state *importing.State,
) (w *writer.Writer, err error) {
	err = c.within(e, func(ctx context.Context) error {
		status, err := conn.Status(ctx)
		if err != nil {
			return err
		}
		if state.LedgerID != "" && state.LedgerID != status.GetLedgerId() {
			return fail(exitRefused, otherLedgerHint(state),
				"the import was begun on ledger %s at %s, and %s serves ledger %s",
				state.LedgerID, state.Server, c.Server, status.GetLedgerId())
		}
		state.LedgerID, state.Server = status.GetLedgerId(), c.Server
		expected := state.Session
		if expected == 0 {
			// Before a session is opened, which would fence the stream's owner.
			request := &seqledgerv1.GetClientStateRequest{Scope: scope, ClientId: c.ClientID}
			there, err := conn.GetClientState(ctx, request)
			if err == nil {
				err = c.checkUnused(there.GetLastCommittedSequence(), there.GetSession())
			}
			if err != nil {
				return err
			}
		}
		if c.TakeSession != 0 && c.TakeSession != expected {
			expected, state.AttemptID = c.TakeSession, ""
			if state.Session != 0 {
				state.Session = expected
			}
		}
		attempt := state.Attempt()
		if err := state.Save(c.StateFile); err != nil {
			return fail(exitFailed, "make the file writable, or move it with --state-file; nothing was sent",
				"state file: %w", err)
		}
		w, err = writer.Open(ctx, conn, writer.Options{
			Scope: scope, ClientID: c.ClientID, AttemptID: attempt, ExpectedSession: expected, NoReopen: true,
			SaveSession: func(attempt []byte, session uint64) error {
				state.AttemptID = hex.EncodeToString(attempt)
				if session != 0 {
					state.Session = session
				}
				return state.Save(c.StateFile)
			},
		})
		if err != nil {
			return c.explainOpen(state, err)
		}
		return nil
	})
	return w, err
}

// checkUnused refuses a stream that has writes, for an import whose state says that no line was sent: a state file that
// was lost, or set back with a backup, says so of lines that are committed.
func (c *importCommand) checkUnused(last, session uint64) error {
	if last == 0 || c.TakeSession != 0 {
		return nil
	}
	hint := "restore the state file; if no line of the file was ever imported, use another --client-id"
	if session != 0 {
		hint += fmt.Sprintf(", or --take-session %d to import behind what is there", session)
	}
	return fail(exitRefused, hint, "%s says that no line was sent, and the stream of %q has %d writes: they may be "+
		"lines of this file", c.StateFile, c.ClientID, last)
}

// otherLedgerHint says what to do about another ledger id. A restored ledger has a new id, and
// may have lost lines that were committed after the backup.
func otherLedgerHint(state *importing.State) string {
	return fmt.Sprintf(
		"give the --server of that ledger; lines may be committed there. If this is that ledger, restored from a "+
			"backup: the last sequence that seqledger state shows, less %d, is the last line that is committed here; "+
			"check that line, and import those behind it from a new file under another --client-id", state.Base)
}

// explainOpen explains why no session could be opened.
func (c *importCommand) explainOpen(state *importing.State, err error) error {
	begunAnew := "no line of this run was sent; if you still want it, delete " + c.StateFile + " and start again"
	switch {
	case errors.Is(err, failure.ErrFenced) && state.Session == 0:
		return fail(exitRefused, begunAnew, "another process took over the stream before the first line: %w", err)
	case errors.Is(err, failure.ErrFenced):
		return fail(exitRefused, "find out what writes under --client-id "+c.ClientID+"; if you opened the session "+
			"that seqledger state shows, and nothing writes under it, continue with --take-session",
			"the stream is no longer this import's (it had session %d): %w", state.Session, err)
	case errors.Is(err, failure.ErrExpired):
		return fail(exitRefused,
			"find the last committed line with seqledger list blocks and block, and import those behind it from a "+
				"new file",
			"the stream was evicted since the last run, so its sequences no longer show which lines are committed: %w",
			err)
	}
	return err
}

// explainSend tells what has become of an import that has not reached its end.
func (c *importCommand) explainSend(run *importing.Run, err error) error {
	where := fmt.Sprintf("%s: %%w (%d of %d lines are committed)", c.File, run.Committed, run.State.Lines)
	again := "run the same command again; it goes on behind the last committed line"
	refusal, refused := errors.AsType[*failure.Error](err)
	_, notExecuted := errors.AsType[*failure.NotExecutedError](err)
	code := exitFailed
	// Interrupted, it is the next run that finds out, as after any interrupt.
	if _, interrupted := errors.AsType[interruptedError](err); run.Unknown && !interrupted {
		code = exitUnknown
	}
	switch {
	case errors.Is(err, importing.ErrInputChanged):
		return fail(exitFailed, "compare what is committed with the file: seqledger watch --json shows it", where, err)
	case errors.Is(err, failure.ErrFenced):
		return fail(exitRefused, "another process writes under --client-id "+c.ClientID+"; find out which one", where,
			err)
	case errors.Is(err, failure.ErrExpired):
		return fail(exitRefused, "the stream was evicted; compare what is committed with the file", where, err)
	case refused && notExecuted && refusal.Code != 0:
		return fail(exitCodeOf(refusal.Code), refusedLineHint(refusal), where, err)
	case errors.Is(err, importing.ErrStalled):
		return fail(code, "see that the server at "+c.Server+" is running, and "+again, where, err)
	}
	return fail(code, again, where, err)
}

// refusedLineHint says what to do about a line that was not executed.
func refusedLineHint(refusal *failure.Error) string {
	const rest = "and those behind it into a new file, and import that under another --client-id"
	switch next := nextStep(refusal); {
	case refusal.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT:
		// With the line corrected in its place, the input would no longer be the same.
		return "nothing of this line was written; correct " + cmp.Or(refusal.Field, "it") + ", put this line " + rest
	case exitCodeOf(refusal.Code) != exitRefused:
		return next // the line is correct
	case next == "":
		return "run the same command again, or put this line, corrected, " + rest
	default:
		return next + "; then run the same command again, or put this line, corrected, " + rest
	}
}
