package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// refused opens path both ways and expects the same refusal: of the given kind,
// with the path and an advice in its text.
func refused(t *testing.T, path string, identity []byte, want error, advice string) {
	t.Helper()
	rw, errRW := Open(path, Options{Identity: identity, NoSync: true})
	ro, errRO := OpenReadOnly(path, identity)
	for _, s := range []*Store{rw, ro} {
		if s != nil {
			_ = s.Close()
		}
	}
	for mode, err := range map[string]error{"Open": errRW, "OpenReadOnly": errRO} {
		if !errors.Is(err, want) {
			t.Errorf("%s = %v, want %v", mode, err, want)
			continue
		}
		if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), advice) {
			t.Errorf("%s: %q does not name the path and the advice %q", mode, err, advice)
		}
	}
}

func TestOpenCreatesOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	refused(t, path, testIdentity, fs.ErrNotExist, "restore")
	// With fsync, which the other tests leave out.
	s := must.Get(Open(path, Options{Create: true, Identity: testIdentity}))(t)
	put(t, s, streams, "k", "v")
	flush(t, s)
	must.Do(t, s.Close())
	s = must.Get(Open(path, Options{Create: true, Identity: testIdentity}))(t)
	defer func() { _ = s.Close() }()
	check.Equal(t, get(t, s, streams, "k"), "v", "opening with Create lost what was there: %q")
	check.Equal(t, len(must.Get(filepath.Glob(path+"*"))(t)), 1, "creation left %v behind")
}

func TestOpenNeedsAnIdentity(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	if _, err := Open(path, Options{Create: true}); err == nil {
		t.Error("a state without an identity was created")
	}
}

func TestSecondOpenIsLockedOut(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	refused(t, s.path, testIdentity, ErrLocked, "stop it")
	must.Do(t, s.Close())
	// Readers share the file among themselves and keep a writer out.
	one := must.Get(OpenReadOnly(s.path, testIdentity))(t)
	defer func() { _ = one.Close() }()
	two := must.Get(OpenReadOnly(s.path, testIdentity))(t)
	defer func() { _ = two.Close() }()
	if _, err := Open(s.path, Options{Identity: testIdentity}); !errors.Is(err, ErrLocked) {
		t.Errorf("Open beside readers = %v, want ErrLocked", err)
	}
}

func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	path := filled(t, 100)
	s := must.Get(OpenReadOnly(path, testIdentity))(t)
	defer func() { _ = s.Close() }()
	check.Equal(t, s.Applied(), Position{Index: 7, Term: 2}, "applied %v")
	check.Equal(t, get(t, s, streams, string(recordKey(42))), string(recordValue(42)), "record 42 is %q")
	// A check replays the log on it; that must not reach the file.
	must.Do(t, s.Update(next(s), func(tx machine.Tx) error {
		return tx.Put(machine.TableMeta, []byte("replayed"), []byte("x"))
	}), "Update =")
	check.Is(t, s.Flush(), ErrReadOnly, "Flush =")
}

func TestOpenRefusesForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"empty": nil, "text": []byte("hello\n"), "zeros": make([]byte, 1<<16),
		"large text": bytes.Repeat([]byte("hello\n"), 1<<14),
	} {
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, content, 0o600))
		refused(t, path, testIdentity, ErrForeign, "not a bbolt file")
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, content) {
			t.Errorf("%s: the refused file was changed, %v", name, err)
		}
	}
	other := filepath.Join(dir, "other.db")
	db := must.Get(bbolt.Open(other, 0o600, nil))(t)
	must.Do(t, db.Close())
	refused(t, other, testIdentity, ErrForeign, "some other program")
}

func TestOpenRefusesOtherIdentityAndVersion(t *testing.T) {
	t.Parallel()
	path := filled(t, 1)
	refused(t, path, []byte("another"), ErrForeign,
		"identity 30313233343536373839616263646566, this directory 616e6f74686572")
	rewriteControl(t, path, keyFormat, binary.LittleEndian.AppendUint32([]byte(formatMagic), formatVersion+1))
	refused(t, path, testIdentity, ErrVersion, "it has format version 2, and this program reads 1")
	rewriteControl(t, path, keyFormat, []byte("short"))
	refused(t, path, testIdentity, machine.ErrCorrupt, "restore") // wrong length
	rewriteControl(t, path, keyFormat, []byte("SEQLEDGER STATE\n\x01\x00\x00\x00"))
	refused(t, path, testIdentity, ErrForeign, "some other program")
}

// rewriteControl replaces a control record, with a right checksum.
func rewriteControl(t *testing.T, path string, key, value []byte) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	must.Do(t, err)
	err = db.Update(func(tx *bbolt.Tx) error { return putControl(tx, key, value) })
	must.Do(t, errors.Join(err, db.Close()))
}

func TestOpenRefusesDamagedControlRecord(t *testing.T) {
	t.Parallel()
	for _, text := range []string{formatMagic, string(testIdentity), string(keyApplied), string(keyBlocks)} {
		path := filled(t, 1)
		edit(t, path, func(b []byte) []byte {
			// Old pages hold copies; all of them are hit.
			return bytes.ReplaceAll(b, []byte(text), append([]byte("X"), text[1:]...))
		})
		refused(t, path, testIdentity, machine.ErrCorrupt, "restore")
	}
}

// Two processes that create the same state must end up with one.
func TestCreateDoesNotReplace(t *testing.T) {
	t.Parallel()
	path := filled(t, 10)
	must.Do(t, create(path, Options{Identity: []byte("latecomer"), NoSync: true}))
	s := reopen(t, path)
	check.Equal(t, s.Applied().Index, 7, "a late creator replaced the state: %v")
}
