package witness

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gofrs/flock"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/internal/private"
)

const (
	maxRequest = 128 << 10 // a proof and sixteen signatures of the largest kind, which tlog-witness asks for
	maxProof   = 63        // hashes

	lockName    = "witness.lock"
	stateHeader = "seqledger witness 1 %x\n" // and the SHA-256 of all that follows
)

// Witness cosigns the checkpoints of logs, each of which must be consistent with the one before. It is the
// [http.Handler] of add-checkpoint and of requests for the newest checkpoint.
type Witness struct {
	http.Handler

	key    *Key
	lock   *flock.Flock
	logs   map[string]*remembered // by the hash of the origin
	logger *slog.Logger
	write  func(path string, content []byte) error
}

// remembered is the checkpoint of a log that was cosigned last.
type remembered struct {
	keys []Party
	path string

	mu         sync.Mutex // held from the comparison until the new one is durable
	Checkpoint            // of size 0 if there was none
	signed     []byte     // nil if there was none
}

// Open opens a witness for the logs of a policy. What it has cosigned it remembers in a directory, which is not opened
// while another process has it, nor when a file in it is damaged: a witness that has forgotten could cosign what
// contradicts it.
func Open(dir string, key *Key, p *Policy, logger *slog.Logger) (*Witness, error) {
	if err := durable.MakeDirectory(dir); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(dir, lockName), flock.SetPermissions(private.File))
	if locked, err := lock.TryLock(); err != nil || !locked {
		return nil, errors.Join(fmt.Errorf("%s is in use by another process", dir), err)
	}
	w := &Witness{key: key, lock: lock, logs: map[string]*remembered{}, logger: logger, write: durable.WriteFile}
	// An earlier process may have been killed between a rename and this. What is served must not vanish afterwards.
	err := durable.SyncDir(dir)
	for _, l := range p.Logs {
		hash := originHash(l.Name)
		if w.logs[hash] == nil {
			w.logs[hash] = &remembered{path: filepath.Join(dir, hash)}
			err = errors.Join(err, w.logs[hash].load(l.Name))
		}
		w.logs[hash].keys = append(w.logs[hash].keys, l)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add-checkpoint", w.addCheckpoint)
	mux.HandleFunc("GET /{hash}/checkpoint", w.getCheckpoint)
	w.Handler = mux
	return w, nil
}

// Close lets another process have the directory. No request may be under way.
func (w *Witness) Close() error { return w.lock.Unlock() }

func originHash(origin string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(origin))) }

func (r *remembered) load(origin string) error {
	content, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, r.signed, _ = bytes.Cut(content, []byte("\n"))
	_, r.Checkpoint, err = unverified(r.signed)
	if err != nil || !bytes.Equal(content, stateOf(r.signed)) || r.Origin != origin {
		return fmt.Errorf("%s is damaged, or of another version: without the checkpoint of %s that was cosigned last, "+
			"this witness must not cosign another one", r.path, origin)
	}
	return nil
}

// stateOf returns the content of the file for a cosigned checkpoint.
func stateOf(signed []byte) []byte {
	return append(fmt.Appendf(nil, stateHeader, sha256.Sum256(signed)), signed...)
}

func (w *Witness) addCheckpoint(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxRequest))
	status, answer := http.StatusBadRequest, fmt.Sprint(err)
	if err == nil {
		status, answer = w.cosign(body)
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if status == http.StatusConflict {
		rw.Header().Set("Content-Type", "text/x.tlog.size")
	}
	rw.WriteHeader(status)
	_, _ = io.WriteString(rw, answer+"\n") // the client may have gone
}

// cosign returns the status and the line that answer a request.
func (w *Witness) cosign(body []byte) (status int, answer string) {
	old, proof, signed, err := parseRequest(body)
	if err != nil {
		return http.StatusBadRequest, err.Error()
	}
	origin, _, _ := bytes.Cut(signed, []byte("\n"))
	log := w.logs[originHash(string(origin))]
	if log == nil {
		return http.StatusNotFound, fmt.Sprintf("the log %.200q is unknown to this witness", origin)
	}
	n, err := open(signed, log.keys)
	_, isUnsigned := errors.AsType[*note.UnverifiedNoteError](err)
	_, isForged := errors.AsType[*note.InvalidSignatureError](err)
	if isUnsigned || isForged {
		return http.StatusForbidden, err.Error()
	}
	var c Checkpoint
	if err == nil {
		c, err = ParseCheckpoint(n.Text)
	}
	if err == nil && old > c.N {
		err = fmt.Errorf("the old size %d is larger than that of the checkpoint, %d", old, c.N)
	}
	if err != nil {
		return http.StatusBadRequest, err.Error()
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	n.UnverifiedSigs = nil // anybody can add them
	switch {
	case c.N < log.N:
		err = errors.New("the tree is smaller: the log was cut, or this is what it signed before")
	case old == log.N:
		err = log.check(c, proof)
	}
	if err != nil {
		refused, _ := note.Sign(n) // it was read
		w.logger.Warn("a checkpoint is not consistent with the one that was cosigned last, or the proof is wrong",
			"origin", c.Origin, "cosigned", string(log.signed), "refused", string(refused), "error", err)
	}
	switch {
	case old != log.N:
		return http.StatusConflict, fmt.Sprint(log.N)
	case err != nil:
		return http.StatusUnprocessableEntity, err.Error()
	}
	cosigned, err := note.Sign(n, w.key)
	if err == nil {
		err = w.write(log.path, stateOf(cosigned))
	}
	if err != nil {
		w.logger.Error("a cosigned checkpoint could not be stored", "origin", c.Origin, "error", err)
		return http.StatusInternalServerError, "the witness cannot store the checkpoint"
	}
	log.Checkpoint, log.signed = c, cosigned
	lines := strings.Split(string(cosigned), "\n")
	return http.StatusOK, lines[len(lines)-2]
}

// check compares a checkpoint with the one before.
func (r *remembered) check(c Checkpoint, proof tlog.TreeProof) error {
	switch {
	case c.N == 0 && c.Hash != sha256.Sum256(nil):
		return errors.New("the root hash is not that of an empty tree")
	case c.N == r.N && r.N > 0 && c.Hash != r.Hash:
		return fmt.Errorf("another tree of the size %d was cosigned before", c.N)
	case c.N != r.N && r.N > 0:
		return tlog.CheckTree(proof, c.N, c.Hash, r.N, r.Hash)
	case len(proof) > 0:
		return errors.New("the consistency proof must be empty")
	}
	return nil
}

func (w *Witness) getCheckpoint(rw http.ResponseWriter, r *http.Request) {
	var signed []byte
	if log := w.logs[r.PathValue("hash")]; log != nil {
		log.mu.Lock()
		signed = log.signed
		log.mu.Unlock()
	}
	if signed == nil {
		http.Error(rw, "this witness has cosigned no checkpoint of such a log", http.StatusNotFound)
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = rw.Write(signed) // the client may have gone
}

// parseRequest reads the body of add-checkpoint.
func parseRequest(body []byte) (old int64, proof tlog.TreeProof, signed []byte, err error) {
	head, signed, ends := bytes.Cut(body, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	size, is := strings.CutPrefix(lines[0], "old ")
	if !is || !ends || len(lines) > 1+maxProof {
		return 0, nil, nil, fmt.Errorf("must begin with old SIZE, a line for each of up to %d hashes, and an empty one",
			maxProof)
	}
	old, err = parseSize(size)
	for _, line := range lines[1:] {
		h, invalid := parseHash(line)
		proof, err = append(proof, h), errors.Join(err, invalid)
	}
	return old, proof, signed, err
}

// formatRequest returns the body of add-checkpoint.
func formatRequest(old int64, proof tlog.TreeProof, signed []byte) []byte {
	body := fmt.Appendf(nil, "old %d\n", old)
	for _, h := range proof {
		body = fmt.Appendln(body, h)
	}
	return append(append(body, '\n'), signed...)
}

// unverified reads a signed checkpoint without its signatures being verified.
func unverified(signed []byte) (*note.Note, Checkpoint, error) {
	_, err := note.Open(signed, nil)
	u, is := errors.AsType[*note.UnverifiedNoteError](err)
	if !is {
		return nil, Checkpoint{}, err
	}
	c, err := ParseCheckpoint(u.Note.Text)
	return u.Note, c, err
}
