package importing

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
)

// Format is the version of the state file.
const Format = 1

// State is what an import needs after a kill. It is written before each step whose
// repetition would otherwise be a second import:
//
//  1. before OpenSession, with AttemptID: a repeat of the same attempt gets the
//     same session instead of fencing itself. This includes the Writer's own later
//     sessions, with which it makes a refusal final,
//  2. before the first line is sent, with Session and Base and without
//     AttemptID: the next run opens with Session as the expected one, which
//     succeeds only if no other client has written since.
//
// It does not say which lines are committed. The ledger does: the last committed sequence of
// the stream is Base plus the number of committed lines.
type State struct {
	Format       int    `json:"format"`
	LedgerID     string `json:"ledger_id"`
	Organization string `json:"organization"`
	Vault        string `json:"vault,omitempty"`
	ClientID     string `json:"client_id"`
	Server       string `json:"server"` // for messages; only the ledger id is compared
	Mode         string `json:"mode"`
	Summary
	// AttemptID is the attempt_id of the OpenSession that may be under way, in hex.
	AttemptID string `json:"attempt_id,omitempty"`
	// Session is the last opened session, 0 before the first.
	Session uint64 `json:"session,omitempty"`
	// Base is the sequence before that of line 1; it is valid once Session is set.
	Base uint64 `json:"base"`
	Done bool   `json:"done,omitempty"`
}

// Load returns nil if there is no file.
func Load(path string) (*State, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	state := new(State)
	decoder := json.NewDecoder(bytes.NewReader(content))
	// Refuse unknown fields: one that matters must not be ignored in a file of a newer version.
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(state); err != nil {
		return nil, fmt.Errorf("%s is not a state file of an import, or is damaged: %w", path,
			explainState(content, err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s is damaged: something follows its end", path)
	}
	if state.Format != Format {
		return nil, fmt.Errorf("%s has format %d and this program reads format %d", path, state.Format, Format)
	}
	if n, err := hex.DecodeString(state.AttemptID); err != nil || len(n) != 0 && len(n) != 16 {
		return nil, fmt.Errorf("%s is damaged: its attempt_id has not 32 hex digits", path)
	}
	return state, nil
}

// explainState describes a mistake in a state file in terms of JSON.
func explainState(content []byte, err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case ok && wrong.Field != "":
		return fmt.Errorf("%s cannot be a %s", wrong.Field, wrong.Value)
	case ok:
		return errors.New("it must be a JSON object")
	}
	return operation.ExplainJSON(content, errors.New(strings.TrimPrefix(err.Error(), "json: ")))
}

// ErrInUse reports that another import has locked the state file.
var ErrInUse = errors.New("another import is using the state file")

// Lock locks a state file against other imports, because it can describe only one.
// The lock is on a separate file, because Save replaces the state file itself.
func Lock(path string) (unlock func() error, err error) {
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock of %s: %w", path, err)
	}
	if locked {
		// Look again, because the previous holder may have removed the lock file between open and lock. Then
		// another import could lock a new file at the same time.
		ours, ourErr := lock.Stat()
		there, err := os.Stat(lock.Path())
		if ourErr == nil && err == nil && os.SameFile(ours, there) {
			return func() error {
				_ = os.Remove(lock.Path()) // while it is locked; a leftover does no harm
				return lock.Close()
			}, nil
		}
	}
	return nil, errors.Join(ErrInUse, lock.Close())
}

// Save replaces the file atomically, and returns once it is on disk. The temporary name is fixed, so that kills leave
// at most one such file; Lock keeps other imports from using it.
func (s *State) Save(path string) (err error) {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temporary := path + ".tmp"
	// Only for its owner, because a change could make an import start again.
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(content, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	// Sync the directory, because until it is on disk too, a power failure could bring the old
	// state back.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Attempt returns the attempt to open a session with: the one that may be under
// way, or a new one.
func (s *State) Attempt() []byte {
	if s.AttemptID == "" {
		id := make([]byte, 16)
		_, _ = rand.Read(id) // never fails: it ends the program instead
		s.AttemptID = hex.EncodeToString(id)
	}
	id, _ := hex.DecodeString(s.AttemptID) // checked when the file was loaded
	return id
}
