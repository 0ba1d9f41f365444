package datadir

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// read returns a file of a directory.
func read(t *testing.T, dir, name string) string {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join(dir, name)))(t)
	return string(content)
}

// TestJoining: a node that is interrupted while it joins asks for the same place again, and its directory is nothing
// else meanwhile.
func TestJoining(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := begin(t, path, Joined)
	nonce := d.Nonce()
	if nonce == [16]byte{} || !d.Fresh() || d.Node() != 1 {
		t.Errorf("nonce %x, fresh %v, node %d", nonce, d.Fresh(), d.Node())
	}
	put(t, path, StateName, SumsName, "state.db.new-1")
	must.Do(t, errors.Join(os.Mkdir(d.Blocks(), 0o700), d.Close()))
	for from, want := range map[Origin]string{Created: "--join again", Restored: "--join again"} {
		if _, err := Open(path, from); !errors.Is(err, ErrJoining) || !strings.Contains(err.Error(), want) {
			t.Errorf("opened as %q: %v", from, err)
		}
	}
	if _, err := OpenLedger(path); err == nil {
		t.Error("it was read")
	}
	again := begin(t, path, Joined)
	if again.Nonce() != nonce {
		t.Errorf("the nonce was %x and is %x", nonce, again.Nonce())
	}
	check.Equal(t, names(t, path), "CREATING LOCK", "there is still %s")
	again.SetNode(4)
	must.Do(t, errors.Join(again.Finish(), again.Close()))
	node := begin(t, path, Created)
	if node.Node() != 4 || node.Fresh() || node.Nonce() != [16]byte{} {
		t.Errorf("node %d, fresh %v, nonce %x", node.Node(), node.Fresh(), node.Nonce())
	}
	other := begin(t, t.TempDir(), Joined)
	if other.Nonce() == nonce {
		t.Error("two nodes ask with one nonce")
	}
}

// TestDamagedNonce: a nonce that cannot be read is not replaced, because the node may have a place under it already.
func TestDamagedNonce(t *testing.T) {
	t.Parallel()
	for _, rest := range []string{"", "\n", "00", "zz", strings.Repeat("0", 31), strings.Repeat("0", 34),
		strings.Repeat("0", 32) + " "} {
		path := t.TempDir()
		content := string(Joined) + rest
		must.Do(t, os.WriteFile(filepath.Join(path, creatingName), []byte(content), 0o600))
		check.ErrorContains(t, check.Err(Open(path, Joined)), "join again", "%q", rest)
		if got := read(t, path, creatingName); got != content {
			t.Errorf("%q has become %q", content, got)
		}
	}
}

// TestFirstNodeHasOneMarker: node 1 of a cluster has the marker that a ledger on one node has.
func TestFirstNodeHasOneMarker(t *testing.T) {
	t.Parallel()
	for id, want := range map[uint64]bool{0: false, 1: false, 2: true} {
		path := t.TempDir()
		d := begin(t, path, Created)
		d.SetNode(id)
		must.Do(t, d.Finish())
		if got := strings.Contains(read(t, path, markerName), `"id":`); got != want || d.Node() != max(1, id) {
			t.Errorf("node %d: %s", id, read(t, path, markerName))
		}
	}
}

// TestRecovering: from the beginning of a recovery to its end only the recovery opens the directory.
func TestRecovering(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	made(t, path)
	opens := map[string]func() (*Directory, error){
		"start":   func() (*Directory, error) { return Open(path, Created) },
		"read":    func() (*Directory, error) { return OpenLedger(path) },
		"recover": func() (*Directory, error) { return OpenSurvivor(path) },
	}
	check := func(recovering bool) {
		t.Helper()
		for what, open := range opens {
			d, err := open()
			refused := recovering && what != "recover"
			if refused != errors.Is(err, ErrRecovering) || refused != (err != nil) {
				t.Errorf("%s while a recovery is under way (%v): %v", what, recovering, err)
			}
			if err != nil {
				continue
			}
			if got, err := d.Recovering(); got != recovering || err != nil {
				t.Errorf("%s: recovering: %v, %v", what, got, err)
			}
			must.Do(t, d.Close())
		}
	}
	check(false)
	d := must.Get(OpenSurvivor(path))(t)
	must.Do(t, errors.Join(d.BeginRecovery(), d.BeginRecovery(), d.Close())) // again, as after a crash
	check(true)
	d = must.Get(OpenSurvivor(path))(t)
	must.Do(t, errors.Join(d.EndRecovery(), d.EndRecovery(), d.Close()))
	check(false)
}

// TestSurvivorRefusals: what cannot be recovered is left as it is.
func TestSurvivorRefusals(t *testing.T) {
	t.Parallel()
	empty, held, replaced := t.TempDir(), t.TempDir(), t.TempDir()
	made(t, held)
	begin(t, held, Created) // another process
	d := withIncoming(t, replaced)
	stop := errors.New("stopped")
	err := d.replace(func(what string) error {
		if strings.HasPrefix(what, "move") {
			return stop
		}
		return nil
	})
	must.Is(t, err, stop)
	must.Do(t, d.Close())
	for path, want := range map[string]error{empty: nil, held: ErrInUse, replaced: ErrReplacing,
		filepath.Join(empty, "absent"): os.ErrNotExist} {
		before := ""
		if path != filepath.Join(empty, "absent") {
			before = names(t, path)
		}
		d, err := OpenSurvivor(path)
		if err == nil {
			_ = d.Close()
		}
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if before != "" && names(t, path) != before {
			t.Errorf("%s held %s and holds %s", path, before, names(t, path))
		}
	}
}

// TestJoinToken: the token is its owner's alone, and the lines around it do not count.
func TestJoinToken(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := begin(t, path, Created)
	if token, err := d.JoinToken(); token != "" || err != nil {
		t.Errorf("before there is one: %q, %v", token, err)
	}
	for _, token := range []string{"first", "second, which is longer", "3"} {
		must.Do(t, d.SetJoinToken(token))
		if got, err := d.JoinToken(); got != token || err != nil {
			t.Errorf("%q, %v; want %q", got, err, token)
		}
	}
	info, err := os.Stat(d.JoinTokenFile())
	if err != nil || info.Mode().Perm() != 0o600 || filepath.Dir(d.JoinTokenFile()) != path {
		t.Errorf("%s: %v, %v", d.JoinTokenFile(), info.Mode(), err)
	}
	must.Do(t, os.WriteFile(d.JoinTokenFile(), []byte("\n  by hand \r\n\n"), 0o600))
	if got, err := d.JoinToken(); got != "by hand" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	must.Do(t, d.RemoveFile(TokenName))
	must.Do(t, os.Mkdir(d.JoinTokenFile(), 0o700))
	if _, err := d.JoinToken(); err == nil {
		t.Error("a directory was read as a token")
	}
}

// TestWriteFile: a file appears whole or keeps what it had, and a failure leaves nothing beside it.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := begin(t, path, Created)
	must.Do(t, errors.Join(d.WriteFile("a", []byte("1")), d.WriteFile("a", []byte("2"))))
	check.Equal(t, read(t, path, "a"), "2", "it holds %q")
	before := names(t, path)
	put(t, path, "b")
	must.Do(t, errors.Join(d.RemoveFile("b"), d.RemoveFile("b"))) // again: it is gone already
	must.Do(t, os.MkdirAll(filepath.Join(path, "full", "of"), 0o700))
	err := d.WriteFile("full", []byte("3"))
	check.ErrorContains(t, err, filepath.Join(path, "full"), "in the place of a directory")
	must.Do(t, os.RemoveAll(filepath.Join(path, "full")))
	if got := names(t, path); got != before {
		t.Errorf("there was %s, and is %s", before, got)
	}
	gone := &Directory{path: filepath.Join(path, "gone")}
	for what, err := range map[string]error{
		"write": gone.WriteFile("a", nil), "remove": gone.RemoveFile("a"), "sync": gone.sync(),
		"leftovers": gone.RemoveUnfinished(), "finish": gone.Finish(),
	} {
		if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), gone.path) {
			t.Errorf("%s in a directory that is gone: %v", what, err)
		}
	}
	if gone.fresh {
		t.Error("it takes itself for made")
	}
}

// TestUnfinishedIsRemoved: what was never whole goes, and nothing else.
func TestUnfinishedIsRemoved(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	made(t, path)
	d := begin(t, path, Created)
	keep := []string{"state.db.old", "notes", ".hidden", "CREATING-1", "x.LEDGER-1"}
	put(t, path, keep...)
	put(t, path, ".CREATING-1", ".LEDGER-22", ".RECOVERING-", ".OLD-COPY-3", ".JOIN-TOKEN-4", ".ARCHIVE-5",
		"state.db.new-", "state.sum.new-7")
	must.Do(t, d.RemoveUnfinished())
	want := append(keep, "LEDGER", "LOCK", StateName, LogName)
	slices.Sort(want)
	if got := names(t, path); got != strings.Join(want, " ") {
		t.Errorf("there is %s, want %s", got, want)
	}
}

// TestUsage: it says what the state file takes, and names the file that it cannot find.
func TestUsage(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := begin(t, path, Created)
	if _, err := d.Usage(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), d.State()) {
		t.Errorf("without a state: %v", err)
	}
	must.Do(t, os.WriteFile(d.State(), make([]byte, 12_345), 0o600))
	u, err := d.Usage()
	if err != nil || u.State != 12_345 || u.Free > u.Size {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestMakeStateAgain: a state that cannot be used is dropped, and another one is made in its place.
func TestMakeStateAgain(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := begin(t, path, Joined)
	fill := func(open func(uint64) (io.Writer, error)) error {
		for file := range uint64(2) {
			w, err := open(file)
			if err == nil {
				_, err = w.Write([]byte("x"))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	prepared := 0
	prepare := func(string) error { prepared++; return nil }
	must.Do(t, d.MakeState(fill, prepare))
	if err := d.MakeState(fill, prepare); !errors.Is(err, os.ErrExist) || prepared != 1 {
		t.Errorf("over another one: %v", err)
	}
	put(t, path, SumsName)
	must.Do(t, errors.Join(d.DropState(), d.DropState()))
	check.Equal(t, names(t, path), "CREATING LOCK", "there is %s")
	none := func(func(uint64) (io.Writer, error)) error { return nil }
	check.ErrorContains(t, d.MakeState(none, prepare), "there is none", "nothing was written")
	if err := d.MakeState(fill, prepare); err != nil || prepared != 2 {
		t.Errorf("again: %v", err)
	}
}
