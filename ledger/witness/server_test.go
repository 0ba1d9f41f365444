package witness_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	formats "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

// tree is a log of package tlog.
type tree []tlog.Hash

// newTree returns a tree of leaves whose text begins with branch from the leaf of a number on.
func newTree(t testing.TB, size, from int, branch string) *tree {
	t.Helper()
	l := new(tree)
	for i := range size {
		leaf := fmt.Sprint("leaf ", i)
		if i >= from {
			leaf = branch + leaf
		}
		*l = append(*l, must.Get(tlog.StoredHashes(int64(i), []byte(leaf), l))(t)...)
	}
	return l
}

func (l *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	for i, n := range indexes {
		hashes[i] = (*l)[n]
	}
	return hashes, nil
}

// text returns the text of a checkpoint.
func (l *tree) text(t testing.TB, size int64) string {
	t.Helper()
	root := tlog.Hash(sha256.Sum256(nil))
	if size > 0 {
		root = must.Get(tlog.TreeHash(size, l))(t)
	}
	return witness.Checkpoint{Origin: origin, Tree: tlog.Tree{N: size, Hash: root}}.String()
}

// prove returns the proof between two sizes, which is empty where none is due.
func (l *tree) prove(t testing.TB, old, size int64) tlog.TreeProof {
	t.Helper()
	if old == 0 || old == size {
		return nil
	}
	return must.Get(tlog.ProveTree(size, old, l))(t)
}

// bed is a witness of one log.
type bed struct {
	*parties
	*witness.Witness

	dir  string
	said bytes.Buffer // its log
}

func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{parties: newParties(t, 1), dir: filepath.Join(t.TempDir(), "new", "state")}
	b.open(t)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func (b *bed) tryOpen(t testing.TB) (*witness.Witness, error) {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(&b.said, nil))
	return witness.Open(b.dir, b.witnesses[0], b.policy(t, "quorum none\n"), logger)
}

func (b *bed) open(t testing.TB) {
	t.Helper()
	b.Witness = must.Get(b.tryOpen(t))(t)
}

// request makes a request of a body and returns the status and the answer.
func (b *bed) request(body []byte) (status int, answer string) {
	r := httptest.NewRequest(http.MethodPost, "/add-checkpoint", bytes.NewReader(body))
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	if w.Code == http.StatusConflict != (w.Header().Get("Content-Type") == "text/x.tlog.size") {
		return -1, "a wrong Content-Type"
	}
	return w.Code, w.Body.String()
}

// add asks for a cosignature of a tree of a size.
func (b *bed) add(t testing.TB, l *tree, old, size int64) (status int, answer string) {
	t.Helper()
	return b.request(witness.FormatRequest(old, l.prove(t, old, size), signed(t, l.text(t, size), b.log)))
}

// newest returns the checkpoint that the witness serves.
func (b *bed) newest() (status int, signed string) {
	path := fmt.Sprintf("/%x/checkpoint", sha256.Sum256([]byte(origin)))
	w := httptest.NewRecorder()
	b.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// mustHave ends the test unless a witness has cosigned a checkpoint last.
func (b *bed) mustHave(t testing.TB, text string) {
	t.Helper()
	status, newest := b.newest()
	must.Equal(t, status, http.StatusOK)
	theirs := must.Get(formats.NewVerifierForCosignatureV1(b.witnesses[0].String()))(t)
	log := must.Get(note.NewVerifier(b.log.String()))(t)
	n := must.Get(note.Open([]byte(newest), note.VerifierList(theirs, log)))(t)
	must.Equal(t, n.Text, text)
	must.Equal(t, len(n.Sigs), 2)
}

// A log that grows is cosigned at each step, and so is a checkpoint that is asked for again.
func TestWitness(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	l := newTree(t, 300, 300, "")
	status, _ := b.newest()
	check.Equal(t, status, http.StatusNotFound)
	old := int64(0)
	for _, size := range []int64{0, 0, 1, 2, 2, 3, 7, 8, 64, 100, 255, 256, 257, 300, 300} {
		status, answer := b.add(t, l, old, size)
		must.Equal(t, status, http.StatusOK, "%d: %s: %d", size, answer)
		n := must.Get(note.Open([]byte(l.text(t, size)+"\n"+answer), note.VerifierList(b.witnesses[0])))(t)
		check.Equal(t, len(n.Sigs), 1)
		b.mustHave(t, l.text(t, size))
		old = size
		if size%3 == 0 { // what it has cosigned outlives it
			must.Do(t, b.Close())
			b.open(t)
			b.mustHave(t, l.text(t, size))
		}
	}
	// Extensions are signed and say nothing of the tree; signatures that nobody here knows are left out.
	text := l.text(t, 300) + "an extension\n"
	strangers := []note.Signer{b.log}
	for range 99 {
		strangers = append(strangers, newKey(t, witness.LogKey, origin))
	}
	status, _ = b.request(witness.FormatRequest(300, nil, signed(t, text, strangers...)))
	check.Equal(t, status, http.StatusOK)
	b.mustHave(t, text)
	// A signature may be there twice.
	twice := witness.FormatRequest(300, nil, signed(t, text, b.log))
	twice = append(twice, twice[bytes.LastIndex(twice, []byte("— ")):]...)
	check.Equal(t, first(b.request(twice)), http.StatusOK)
	b.mustHave(t, text)
	// All that the log has signed is kept: with a new key the old one signs, too.
	log2 := newKey(t, witness.LogKey, origin)
	b.lines += fmt.Sprintf("log %s\n", log2)
	must.Do(t, b.Close())
	b.open(t)
	both := signed(t, text, b.log, log2)
	check.Equal(t, status, first(b.request(witness.FormatRequest(300, nil, both))))
	_, newest := b.newest()
	check.Equal(t, strings.HasPrefix(newest, string(both)), true, "%s: %v", newest)
}

func first[A, B any](a A, _ B) A { return a }

// Whatever contradicts the checkpoint that was cosigned last is refused and leaves it as it is.
func TestWitnessRefuses(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	l, fork := newTree(t, 40, 40, ""), newTree(t, 40, 5, "fork ")
	must.Equal(t, first(b.add(t, l, 0, 10)), http.StatusOK)
	good := signed(t, l.text(t, 20), b.log)
	other := newKey(t, witness.LogKey, "other.example/log")
	from := func(old, size int64, l *tree) []byte {
		return witness.FormatRequest(10, l.prove(t, old, size), signed(t, l.text(t, size), b.log))
	}
	with := func(old, new string) []byte {
		return bytes.Replace(witness.FormatRequest(10, l.prove(t, 10, 20), good), []byte(old), []byte(new), 1)
	}
	of := func(text string, by ...note.Signer) []byte {
		return witness.FormatRequest(10, l.prove(t, 10, 20), signed(t, text, by...))
	}
	sized := func(size int64) []byte {
		text := strings.Replace(l.text(t, 20), "\n20\n", fmt.Sprintf("\n%d\n", size), 1)
		return witness.FormatRequest(10, make(tlog.TreeProof, 63), signed(t, text, b.log))
	}
	for _, test := range []struct {
		name   string
		body   []byte
		status int
		says   string
	}{
		{"a fork", from(10, 20, fork), 422, "proof"},
		{"a fork with a proof of the other", of(fork.text(t, 20), b.log), 422, "proof"},
		{"a fork of the same size", from(10, 10, fork), 422, "another tree of the size 10"},
		{"a fork as the first", witness.FormatRequest(0, nil, signed(t, fork.text(t, 20), b.log)), 409, "10\n"},
		{"a shortened log", witness.FormatRequest(0, nil, signed(t, l.text(t, 9), b.log)), 409, "10\n"},
		{"an emptied log", witness.FormatRequest(0, nil, signed(t, l.text(t, 0), b.log)), 409, "10\n"},
		{"a larger old size", witness.FormatRequest(10, nil, signed(t, l.text(t, 9), b.log)), 400, "old size"},
		{"a size of before", witness.FormatRequest(9, l.prove(t, 9, 20), good), 409, "10\n"},
		{"a size that was never", witness.FormatRequest(11, l.prove(t, 11, 20), good), 409, "10\n"},
		{"no proof", witness.FormatRequest(10, nil, good), 422, "proof"},
		{"a proof of another size", from(9, 20, l), 422, "proof"},
		{"a proof too long", witness.FormatRequest(10, append(l.prove(t, 10, 20), tlog.Hash{}), good), 422, "proof"},
		{"a proof that is not due", witness.FormatRequest(10, l.prove(t, 10, 20), signed(t, l.text(t, 10), b.log)), 422,
			"must be empty"},
		{"64 hashes", witness.FormatRequest(10, make(tlog.TreeProof, 64), good), 400, "up to 63"},
		{"the largest size", sized(1 << 62), 422, "proof"},
		{"a larger size", sized(1<<62 + 1), 400, "the size"},
		{"the largest number", sized(math.MaxInt64), 400, "the size"},
		{"an overflow", with("\n20\n", "\n18446744073709551636\n"), 403, "invalid signature"},
		{"an old size that overflows", with("old 10", "old 18446744073709551626"), 400, "the size"},
		{"an old size with zeros", with("old 10", "old 010"), 400, "the size"},
		{"a negative old size", with("old 10", "old -10"), 400, "the size"},
		{"no old size", with("old 10\n", ""), 400, "must begin"},
		{"a carriage return", with("old 10\n", "old 10\r\n"), 400, "the size"},
		{"a hash cut", with("=\n", "\n"), 400, "the hash"},
		{"no empty line", with("\n\n", "\n"), 400, "the hash"},
		{"an empty body", nil, 400, "must begin"},
		{"no checkpoint", []byte("old 10\n"), 400, "must begin"},
		{"no note", []byte("old 0\n\n" + origin + "\n"), 400, "malformed"},
		{"no signature", with("\n\n— ", "\n— "), 400, "malformed"},
		{"another origin", of(strings.Replace(l.text(t, 20), origin, other.Name(), 1), other), 404, "unknown"},
		{"a path as its origin", of(strings.Replace(l.text(t, 20), origin, "../passwd", 1), b.log), 404, "unknown"},
		{"an empty origin", of(strings.Replace(l.text(t, 20), origin, "", 1), b.log), 404, "unknown"},
		{"a stranger's key", of(l.text(t, 20), newKey(t, witness.LogKey, origin)), 403, "no verifiable"},
		{"another log's key", of(l.text(t, 20), other.As(origin)), 403, "no verifiable"},
		{"the witness's own key", of(l.text(t, 20), b.witnesses[0]), 403, "no verifiable"},
		{"a forged signature", with("\n20\n", "\n21\n"), 403, "invalid signature"},
		{"an empty line", of(l.text(t, 20)+"\nmore\n", b.log), 400, "no empty line"},
		{"a text without a hash", of(origin+"\n20\n", b.log), 400, "must have lines"},
		{"more than the bound", append(with("", ""), make([]byte, 128<<10)...), 400, "too large"},
	} {
		status, answer := b.request(test.body)
		check.Equal(t, status, test.status, "%s: %s: %d", test.name, answer)
		check.Contains(t, answer, test.says, test.name)
	}
	b.mustHave(t, l.text(t, 10))
	check.Equal(t, first(b.add(t, l, 10, 20)), http.StatusOK)
	// A log that has become smaller is told to whoever runs the witness.
	b.said.Reset()
	check.Equal(t, first(b.add(t, l, 0, 10)), http.StatusConflict)
	check.Contains(t, b.said.String(), "the tree is smaller")
	b.said.Reset()
	check.Equal(t, first(b.add(t, l, 10, 30)), http.StatusConflict)
	check.Equal(t, b.said.Len(), 0)
	// What the log has signed twice is told, and nothing that others have added to it.
	b.said.Reset()
	body := witness.FormatRequest(20, nil, signed(t, fork.text(t, 20), b.log))
	body = append(body, bytes.Repeat([]byte("— x AAAAAAAA\n"), 90)...)
	check.Equal(t, first(b.request(body)), 422)
	for _, both := range []*tree{l, fork} {
		check.Contains(t, b.said.String(), strings.Split(both.text(t, 20), "\n")[2])
	}
	check.Equal(t, b.said.Len() < 2000, true, "%s: %v", b.said.String())

	// An empty tree has one root hash.
	b = newBed(t)
	text := strings.Replace(l.text(t, 20), "\n20\n", "\n0\n", 1)
	status, answer := b.request(witness.FormatRequest(0, nil, signed(t, text, b.log)))
	check.Equal(t, status, 422, "%s: %d", answer)
	status, _ = b.request(witness.FormatRequest(0, l.prove(t, 10, 20), signed(t, l.text(t, 20), b.log)))
	check.Equal(t, status, 422)
	// 101 signatures
	body = append(body, bytes.Repeat([]byte("— x AAAAAAAA\n"), 10)...)
	status, _ = b.request(body)
	check.Equal(t, status, 400)
	status, _ = b.newest()
	check.Equal(t, status, http.StatusNotFound)
}

// What is not add-checkpoint or the checkpoint of a log is not there, whatever its path.
func TestWitnessPaths(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	must.Equal(t, first(b.add(t, newTree(t, 1, 1, ""), 0, 1)), http.StatusOK)
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(origin)))
	for path, want := range map[string]int{
		"/" + hash + "/checkpoint": 200, "/" + strings.ToUpper(hash) + "/checkpoint": 404, "/" + hash: 404, "/": 404,
		"/witness.lock/checkpoint": 404, "/..%2f" + filepath.Base(b.dir) + "%2f" + hash + "/checkpoint": 404,
		"/%2e%2e/checkpoint": 404, "/add-checkpoint": 405, "/" + hash + ".new/checkpoint": 404,
	} {
		w := httptest.NewRecorder()
		b.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		check.Equal(t, w.Code, want, "%s: %d", path)
	}
}

// Of requests with the same old size one is cosigned, the others are told the new size; of two histories one is.
func TestWitnessRaces(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.SetWrite(func(path string, content []byte) error {
		for range 100 {
			runtime.Gosched() // to whatever else is under way
		}
		return durable.WriteFile(path, content)
	})
	trees := []*tree{newTree(t, 60, 60, ""), newTree(t, 60, 0, "fork ")}
	var mu sync.Mutex
	var cosigned []string
	var racing sync.WaitGroup
	for i := range 8 {
		racing.Go(func() { // ends by itself
			l, old := trees[i%2], int64(0)
			for size := int64(1); size <= 60; size++ {
				status, answer := b.add(t, l, old, size)
				switch status {
				case http.StatusOK:
					mu.Lock()
					cosigned = append(cosigned, fmt.Sprint(old, " ", l.text(t, size)))
					mu.Unlock()
					old = size
				case http.StatusConflict:
					_, _ = fmt.Sscan(answer, &old)
					size = max(size, old)
				case http.StatusUnprocessableEntity: // of the other history
				default:
					t.Errorf("%d %s", status, answer)
				}
			}
		})
	}
	racing.Wait()
	history := trees[0]
	if strings.Contains(cosigned[0], trees[1].text(t, 1)) {
		history = trees[1]
	}
	olds := map[string]bool{}
	for _, c := range cosigned {
		var old, size int64
		var name string
		must.Get(fmt.Sscan(c, &old, &name, &size))(t)
		check.Equal(t, c, fmt.Sprint(old, " ", history.text(t, size)))
		if old != size { // each step was made once
			key := fmt.Sprint(old)
			check.Equal(t, olds[key], false, "two of the old size %s: %v", key)
			olds[key] = true
		}
	}
	b.mustHave(t, history.text(t, 60))
}

// A checkpoint that is not stored is not cosigned, not served and not remembered.
func TestWitnessFailsToStore(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	l, fork := newTree(t, 20, 20, ""), newTree(t, 20, 10, "fork ")
	must.Equal(t, first(b.add(t, l, 0, 10)), http.StatusOK)
	b.SetWrite(func(string, []byte) error { return errors.New("the disk is full") })
	status, answer := b.add(t, l, 10, 20)
	check.Equal(t, status, http.StatusInternalServerError)
	check.Equal(t, strings.Contains(answer, "—"), false)
	b.mustHave(t, l.text(t, 10))
	b.SetWrite(durable.WriteFile)
	check.Equal(t, first(b.add(t, fork, 10, 20)), http.StatusOK) // nothing else was cosigned
}

// Damage of any byte of what is remembered is refused, and so are a cut, another log's file and a second process.
func TestWitnessState(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	must.Equal(t, first(b.add(t, newTree(t, 9, 9, ""), 0, 9)), http.StatusOK)
	_, err := b.tryOpen(t)
	check.ErrorContains(t, err, "in use by another process")
	must.Do(t, b.Close())
	path := filepath.Join(b.dir, fmt.Sprintf("%x", sha256.Sum256([]byte(origin))))
	good := must.Get(os.ReadFile(path))(t)
	check.Equal(t, must.Get(os.Stat(path))(t).Mode().Perm(), 0o600)
	refused := func(content []byte, what ...any) {
		t.Helper()
		must.Do(t, os.WriteFile(path, content, 0o600))
		w, err := b.tryOpen(t)
		check.ErrorContains(t, err, path+" is damaged", "%v", fmt.Sprint(what...))
		if err == nil {
			must.Do(t, w.Close())
		}
		check.Equal(t, string(must.Get(os.ReadFile(path))(t)), string(content), "it was changed: %q")
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		refused(bad, "byte ", i)
		refused(good[:i], "cut at ", i)
	}
	refused(append(bytes.Clone(good), 0), "a byte more")
	otherLog := bytes.ReplaceAll(good, []byte(origin), []byte("other.example/log"))
	_, signed, _ := bytes.Cut(otherLog, []byte("\n"))
	refused(append(fmt.Appendf(nil, "seqledger witness 1 %x\n", sha256.Sum256(signed)), signed...), "another log")
	must.Do(t, os.Remove(path))
	must.Do(t, os.Mkdir(path, 0o700))
	_, err = b.tryOpen(t)
	check.ErrorContains(t, err, path)
	must.Do(t, os.Remove(path))
	// A file that a killed process has not finished is none.
	must.Do(t, os.WriteFile(path, good, 0o600))
	must.Do(t, os.WriteFile(path+durable.Suffix, good[:9], 0o600))
	b.open(t)
	b.mustHave(t, newTree(t, 9, 9, "").text(t, 9))
}

// The proofs that are taken here verify with transparency-dev/merkle, and no others.
func TestProofsOfOthers(t *testing.T) {
	t.Parallel()
	l, fork := newTree(t, 70, 70, ""), newTree(t, 70, 11, "fork ")
	root := func(l *tree, size int64) []byte {
		hash := must.Get(tlog.TreeHash(size, l))(t)
		return hash[:]
	}
	for old := int64(1); old < 70; old += 5 {
		for size := old; size < 70; size += 9 {
			for _, to := range []*tree{l, fork} {
				b := newBed(t)
				must.Equal(t, first(b.add(t, l, 0, old)), http.StatusOK)
				var hashes [][]byte
				for _, h := range to.prove(t, old, size) {
					hashes = append(hashes, h[:])
				}
				theirs := proof.VerifyConsistency(rfc6962.DefaultHasher, uint64(old), uint64(size), hashes,
					root(l, old), root(to, size))
				status, answer := b.add(t, to, old, size)
				check.Equal(t, status == http.StatusOK, theirs == nil, "%d to %d: %s: %v", old, size, answer)
			}
		}
	}
}

// No body is cosigned that the log has not signed, and what is read of one is what is written.
func FuzzRequest(f *testing.F) {
	b := newBed(f)
	l := newTree(f, 20, 20, "")
	f.Add(witness.FormatRequest(0, nil, signed(f, l.text(f, 10), newKey(f, witness.LogKey, origin))))
	f.Add(witness.FormatRequest(10, l.prove(f, 10, 20), signed(f, l.text(f, 20), newKey(f, witness.LogKey, origin))))
	f.Fuzz(func(t *testing.T, body []byte) {
		if status, answer := b.request(body); status/100 != 4 {
			t.Errorf("%d %s", status, answer)
		}
		old, proof, signed, err := witness.ParseRequest(body)
		if again := witness.FormatRequest(old, proof, signed); err == nil && !bytes.Equal(again, body) {
			t.Errorf("%q becomes %q", body, again)
		}
	})
}

// No file of a state is taken but those that a witness has written.
func FuzzState(f *testing.F) {
	b := newBed(f)
	must.Equal(f, first(b.add(f, newTree(f, 9, 9, ""), 0, 9)), http.StatusOK)
	must.Do(f, b.Close())
	path := filepath.Join(b.dir, fmt.Sprintf("%x", sha256.Sum256([]byte(origin))))
	f.Add(must.Get(os.ReadFile(path))(f))
	f.Fuzz(func(t *testing.T, content []byte) {
		must.Do(t, os.WriteFile(path, content, 0o600))
		w, err := b.tryOpen(t)
		if err != nil {
			return
		}
		defer w.Close()
		_, newest := (&bed{Witness: w}).newest()
		_, signed, _ := strings.Cut(string(content), "\n")
		check.Equal(t, newest, signed)
	})
}
