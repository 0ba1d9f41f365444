package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func filesOfParts() []string {
	return []string{StateName, SumsName, filepath.Join(BlocksName, "1"), filepath.Join(LogName, "segments", "1")}
}

// putParts makes the parts that a replacement moves, with a content that tells whose they are.
func putParts(t *testing.T, dir, content string) {
	t.Helper()
	for _, name := range filesOfParts() {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		must.Do(t, err)
	}
}

// partsOf returns whose the parts of a directory are: one word if all are of one origin.
func partsOf(t *testing.T, dir string) string {
	t.Helper()
	var found []string
	for _, name := range filesOfParts() {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			content = []byte(name + " is missing")
		}
		if len(found) == 0 || found[len(found)-1] != string(content) {
			found = append(found, string(content))
		}
	}
	return strings.Join(found, ", ")
}

// withIncoming makes a directory in use, with a whole state of another node in incoming.
func withIncoming(t *testing.T, path string) *Directory {
	t.Helper()
	d := begin(t, path, Created)
	d.SetNode(3)
	putParts(t, path, "old")
	must.Do(t, d.Finish())
	in := must.Get(d.Incoming())(t)
	if string(in.Identity()) != string(d.Identity()) || in.Node() != 3 {
		t.Errorf("incoming is that of node %d with the identity %x", in.Node(), in.Identity())
	}
	putParts(t, in.Path(), "new")
	return d
}

// copyOf copies a directory as a killed process would leave it, but for its lock.
func copyOf(t *testing.T, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	must.Do(t, os.CopyFS(to, os.DirFS(path)))
	return to
}

// A process that dies at any step of a replacement leaves the old parts or the new ones, and the next
// start finds one of them whole. What only reads refuses a directory between the two.
func TestReplaceIsFinishedByTheNextOpen(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := withIncoming(t, path)
	var steps []string
	marked := false
	check := func(what string) error {
		steps = append(steps, what)
		left := copyOf(t, path)
		reader, err := OpenLedger(copyOf(t, path))
		_, missing := os.Stat(filepath.Join(path, incomingName, wholeName))
		switch marked = missing == nil; {
		case marked && !errors.Is(err, ErrReplacing):
			t.Errorf("%s: what reads was let in: %v", what, err)
		case !marked && err != nil:
			t.Errorf("%s: what reads was refused: %v", what, err)
		}
		if err == nil && reader.Close() != nil {
			t.Errorf("%s: a reader was not closed", what)
		}
		want := "new"
		if what == "mark" {
			want = "old"
		}
		for range 2 { // the second start finds nothing to do
			again := begin(t, left, Created)
			if got := partsOf(t, left); got != want || again.Node() != 3 {
				t.Errorf("%s: a start found %s, want %s", what, got, want)
			}
			check.Equal(t, names(t, left), "LEDGER LOCK blocks log state.db state.sum", "%s: a start left %s", what)
			must.Do(t, again.Close())
		}
		return nil
	}
	must.Do(t, d.replace(check))
	if want := 2 + len(replacedParts()) + 1 + len(replacedParts()) + 3; len(steps) != want ||
		steps[1] != "sync the marker" { // a start may have found it in the system's cache alone
		t.Errorf("there were the steps %q, want %d", steps, want)
	}
	if got := partsOf(t, path); got != "new" || names(t, path) != "LEDGER LOCK blocks log state.db state.sum" {
		t.Errorf("in the end there is %s, in %s", got, names(t, path))
	}
}

// A start that dies while it finishes a replacement is followed by another one, which comes a step further.
func TestReplaceIsFinishedInPieces(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := withIncoming(t, path)
	died := errors.New("it died")
	dieAt := func(n int) func(string) error {
		return func(string) error {
			if n--; n < 0 {
				return died
			}
			return nil
		}
	}
	must.Is(t, d.replace(dieAt(1)), died)
	pieces := 0
	for {
		whole := must.Get(d.incomingIsWhole())(t)
		if !whole {
			break
		}
		if err := d.finishReplace(dieAt(pieces)); err != nil && !errors.Is(err, died) {
			t.Fatal(err)
		}
		if pieces++; pieces > 100 {
			t.Fatal("it is never finished")
		}
	}
	if err := d.recoverIncoming(); err != nil || pieces < 3 || partsOf(t, path) != "new" {
		t.Errorf("after %d pieces there is %s, %v", pieces, partsOf(t, path), err)
	}
}

// What was not marked as whole never counts, however far it has come.
func TestIncomingWithoutMarkIsRemoved(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := withIncoming(t, path)
	must.Do(t, d.Close())
	put(t, filepath.Join(path, incomingName), "."+wholeName+"-1")
	if reader, err := OpenLedger(path); err != nil || reader.Close() != nil {
		t.Errorf("what reads was refused: %v", err)
	}
	d = begin(t, path, Created)
	if got := partsOf(t, path); got != "old" || names(t, path) != "LEDGER LOCK blocks log state.db state.sum" {
		t.Errorf("a start found %s and left %s", got, names(t, path))
	}
	if err := d.Replace(); err == nil || partsOf(t, path) != "old" {
		t.Errorf("nothing took the place of %s: %v", partsOf(t, path), err)
	}
}

// A part that is missing is never taken for one that was moved, and a marker has one form.
func TestDamagedIncomingIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range replacedParts() {
		path := t.TempDir()
		d := withIncoming(t, path)
		must.Do(t, os.RemoveAll(filepath.Join(path, incomingName, name)))
		if err := d.Replace(); err == nil || partsOf(t, path) != "old" {
			t.Errorf("without %s: %v, and there is %s", name, err, partsOf(t, path))
		}
	}
	stop := errors.New("stop")
	for _, stopAt := range []string{
		"remove " + StateName, "sync", "move " + SumsName, "move " + BlocksName, "move " + LogName,
	} {
		damageStopped(t, stopAt, stop)
	}
}

// damageStopped damages what a replacement has left that stopped at a step.
func damageStopped(t *testing.T, stopAt string, stop error) {
	t.Helper()
	for what, damage := range map[string]func(in string) error{
		"a part is missing": func(in string) error { return os.RemoveAll(filepath.Join(in, LogName)) },
		"an empty marker":   func(in string) error { return os.Truncate(filepath.Join(in, wholeName), 0) },
		"another marker": func(in string) error {
			return os.WriteFile(filepath.Join(in, wholeName), []byte(exampleMarker), 0o600)
		},
	} {
		path := t.TempDir()
		d := withIncoming(t, path)
		err := d.replace(func(at string) error {
			if at == stopAt {
				return stop
			}
			return nil
		})
		must.Is(t, err, stop)
		must.Do(t, errors.Join(damage(filepath.Join(path, incomingName)), d.Close()))
		before := names(t, path)
		if d, err := Open(path, Created); err == nil || !strings.Contains(err.Error(), "join again") {
			t.Errorf("%s, %s: %v, %v", stopAt, what, d, err)
		}
		check.Equal(t, names(t, path), before, "%s, %s: a start that refuses has made %s", stopAt, what)
	}
}

// Only a directory that holds a ledger of this program has something to replace.
func TestIncomingNeedsALedger(t *testing.T) {
	t.Parallel()
	d := begin(t, t.TempDir(), Created)
	if in, err := d.Incoming(); err == nil {
		t.Errorf("a directory that is being created has %s", in.Path())
	}
}
