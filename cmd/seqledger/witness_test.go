package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

const witnessedOrigin = "ledger.example/0123"

// witnessed is a log with a witness of its own, seqledger witness.
type witnessed struct {
	*process
	witnessReady

	log    *witness.Key
	args   []string
	hashes []tlog.Hash
}

func newWitnessed(t *testing.T) *witnessed {
	t.Helper()
	dir := t.TempDir()
	w := &witnessed{log: must.Get(witness.NewKey(witness.LogKey, witnessedOrigin))(t)}
	key := filepath.Join(dir, "w.key")
	seqledger(t, "witness", "keygen", "witness.example/w1", key).expect(t, exitDone, "witness.example/w1+")
	policy := writeFile(t, "policy", fmt.Sprintf("log %s\nquorum none\n", w.log))
	w.args = []string{"witness", "--json", "--listen", "127.0.0.1:0", "--state", filepath.Join(dir, "state"),
		"--policy", policy, "--key", key}
	for i := range int64(40) {
		leaf := fmt.Sprint("leaf ", i)
		w.hashes = append(w.hashes, must.Get(tlog.StoredHashes(i, []byte(leaf), w))(t)...)
	}
	return w
}

// ReadHashes implements tlog.HashReader.
func (w *witnessed) ReadHashes(indexes []int64) (hashes []tlog.Hash, err error) {
	for _, i := range indexes {
		hashes = append(hashes, w.hashes[i])
	}
	return hashes, nil
}

// start starts the witness, perhaps under another program.
func (w *witnessed) start(t *testing.T, under ...string) {
	t.Helper()
	args := append(append(under, binary), w.args...)
	w.process = launch(t, exec.Command(args[0], args[1:]...))
	if line := w.line(t); json.Unmarshal([]byte(line), &w.witnessReady) != nil {
		t.Fatalf("witness said %q; stderr:\n%s", line, w.stderr)
	}
}

func (w *witnessed) text(t *testing.T, size int64) string {
	t.Helper()
	root := must.Get(tlog.TreeHash(size, w))(t)
	return witness.Checkpoint{Origin: witnessedOrigin, Tree: tlog.Tree{N: size, Hash: root}}.String()
}

// add asks for a cosignature, and returns the status; 0 is no answer.
func (w *witnessed) add(t *testing.T, old, size int64) int {
	t.Helper()
	body := fmt.Sprintf("old %d\n", old)
	if old > 0 && old < size {
		for _, h := range must.Get(tlog.ProveTree(size, old, w))(t) {
			body += h.String() + "\n"
		}
	}
	signed := must.Get(note.Sign(&note.Note{Text: w.text(t, size)}, w.log))(t)
	response, err := http.Post("http://"+w.Address+"/add-checkpoint", "", strings.NewReader(body+"\n"+string(signed)))
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if _, err := io.ReadAll(response.Body); err != nil {
		return 0
	}
	return response.StatusCode
}

// newest returns the size of the checkpoint that the witness serves, after a look at its signatures.
func (w *witnessed) newest(t *testing.T) int64 {
	t.Helper()
	response := must.Get(http.Get(fmt.Sprintf("http://%s/%x/checkpoint", w.Address,
		sha256.Sum256([]byte(witnessedOrigin)))))(t)
	defer response.Body.Close()
	key := must.Get(witness.ParseKey(w.Key))(t)
	n := must.Get(note.Open(must.Get(io.ReadAll(response.Body))(t), note.VerifierList(w.log, key)))(t)
	must.Equal(t, len(n.Sigs), 2)
	c := must.Get(witness.ParseCheckpoint(n.Text))(t)
	must.Equal(t, n.Text, w.text(t, c.N))
	return c.N
}

// A witness answers, ends with a signal, remembers what it has cosigned, and refuses what it must not be given.
func TestWitness(t *testing.T) {
	t.Parallel()
	w := newWitnessed(t)
	w.start(t)
	check.Equal(t, w.Logs, 1)
	check.Equal(t, w.add(t, 0, 10), http.StatusOK)
	check.Equal(t, w.add(t, 0, 9), http.StatusConflict)
	seqledger(t, w.args...).expect(t, exitFailed, "--state: ", "is in use by another process")
	must.Do(t, w.cmd.Process.Signal(syscall.SIGTERM))
	check.Equal(t, w.wait(t), exitDone, "%s: %d", w.stderr)
	w.start(t)
	check.Equal(t, w.newest(t), 10)
	check.Equal(t, w.add(t, 10, 20), http.StatusOK)
	w.kill()
	w.start(t)
	check.Equal(t, w.newest(t), 20)
	w.kill()
	state := filepath.Join(w.args[5], fmt.Sprintf("%x", sha256.Sum256([]byte(witnessedOrigin))))
	must.Do(t, os.Truncate(state, 99))
	seqledger(t, w.args...).expect(t, exitFailed, "--state: "+state+" is damaged")
}

func TestWitnessMistakes(t *testing.T) {
	t.Parallel()
	w := newWitnessed(t)
	w.args = append(w.args, "--listen", "127.0.0.1:1")
	wrong := func(flag, value string) []string { return append(w.args[:len(w.args):len(w.args)], flag, value) }
	logKey := filepath.Join(t.TempDir(), "log.key")
	must.Do(t, w.log.Create(logKey))
	for _, test := range []struct {
		args []string
		says string
	}{
		{wrong("--policy", writeFile(t, "p", "quorum none\n")), "has no log line"},
		{wrong("--policy", writeFile(t, "p", "log x\n")), "p: line 1: log: vkey: must be a name"},
		{wrong("--policy", logKey+"x"), "--policy: open"},
		{wrong("--key", logKey), "log.key: the signature type must be 0x04 and is 0x01"},
		{wrong("--key", logKey+"x"), "--key: open"},
		{wrong("--listen", "here"), "--listen here: must be a host"},
		{wrong("--tls-key", logKey), "--tls-cert and --tls-key belong together"},
		{[]string{"witness", "keygen", "a b", filepath.Join(t.TempDir(), "k")}, `the name "a b" must be text`},
		{[]string{"witness", "keygen", "a", filepath.Join(logKey, "k")}, "log.key is not a directory"},
	} {
		seqledger(t, test.args...).expect(t, exitUsage, test.says)
	}
	seqledger(t, "witness", "keygen", "a", logKey).expect(t, exitFailed, "file exists")
	made := seqledger(t, "witness", "keygen", "--json", "a", filepath.Join(t.TempDir(), "k")).expect(t, exitDone)
	must.Get(witness.ParseKey(made.field(t, "key").(string)))(t)
}
