package seed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
)

// eachStep calls look at each step of the work on a directory, and at some of the reads of the stream. The directory's
// content at that moment is what a kill would leave.
func eachStep(o *Options, seed []byte, reads int, look func(what string)) func() io.Reader {
	o.step = func(what string) error {
		look(what)
		return nil
	}
	return func() io.Reader {
		r, at, next := bytes.NewReader(seed), 0, 0
		return readerFunc(func(b []byte) (int, error) {
			if at >= next {
				look(fmt.Sprint("byte ", at))
				next += len(seed) / reads
			}
			n, err := r.Read(b[:min(len(b), max(1, len(seed)/reads))])
			at += n
			return n, err
		})
	}
}

// A process that dies at any step leaves the previous state, and the next start finds that state and nothing else.
func TestAgainSurvivesKills(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	before := content(t, m.dir)
	var left []string // copies of the directory, and the steps at which they were made
	var steps Options
	body := eachStep(&steps, m.seed, 12, func(what string) { left = append(left, what, copied(t, m.dir)) })
	ctx, o := from(t, m.dir, body)
	o.step = steps.step
	must.Do(t, Again(ctx, o, m.at.Index))
	m.mustHaveTaken(t, m.dir, 2)
	seen := ""
	for ; len(left) > 0; left = left[2:] {
		what, dir := left[0], left[1]
		seen += what + "; "
		// A read-only open finds the previous state.
		reader, err := datadir.OpenLedger(dir)
		if err != nil || reader.Close() != nil {
			t.Errorf("%s: what reads was refused: %v", what, err)
		}
		d, err := datadir.Open(dir, datadir.Created)
		if err != nil || d.Close() != nil {
			t.Errorf("%s: a start was refused: %v", what, err)
			continue
		}
		check.Equal(t, content(t, dir), before, "%s: the directory is not what it was: %v", what)
		if what != "replace" && testing.Short() {
			continue
		}
		ctx, o := from(t, dir, whole(m.seed))
		if err := Again(ctx, o, m.at.Index); err != nil {
			t.Errorf("%s: done again: %v", what, err)
			continue
		}
		m.mustHaveTaken(t, dir, 2)
	}
	for _, want := range []string{"byte 0; ", "adopt the state; ", "check the state; ", "make the log; ", "replace; "} {
		if !strings.Contains(seen, want) {
			t.Errorf("no kill at %q: %s", want, seen)
		}
	}
}

// A process that dies while its node joins leaves no ledger, and the next one starts over with the same nonce.
func TestJoinSurvivesKills(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	dir := filepath.Join(t.TempDir(), "new")
	var left []string
	take := func(dir string, o Options, r io.Reader) ([16]byte, error) {
		d, err := datadir.Open(dir, datadir.Joined)
		if err != nil {
			return [16]byte{}, err
		}
		o.setDefaults()
		j := joining{o: o, d: d}
		answer := cluster.JoinAnswer{ID: 2, Ledger: m.ledger, AtLeast: m.at.Index}
		return d.Nonce(), errors.Join(receiveFrom(t, &j, r, answer), d.Close())
	}
	o := Options{Logger: quiet}
	body := eachStep(&o, m.seed, 12, func(what string) { left = append(left, what, copied(t, dir)) })
	nonce := must.Get(take(dir, o, body()))(t)
	m.mustHaveTaken(t, dir, 2)
	for ; len(left) > 0; left = left[2:] {
		what, dir := left[0], left[1]
		if d, err := datadir.Open(dir, datadir.Created); !errors.Is(err, datadir.ErrJoining) {
			t.Errorf("%s: a start took it for %+v, %v", what, d, err)
		}
		if d, err := datadir.OpenLedger(dir); err == nil {
			t.Errorf("%s: it was read (%v)", what, d.Close())
		}
		again, err := take(dir, Options{Logger: quiet}, bytes.NewReader(m.seed))
		if err != nil || again != nonce {
			t.Errorf("%s: joined again with the nonce %x after %x: %v", what, again, nonce, err)
			continue
		}
		m.mustHaveTaken(t, dir, 2)
	}
}

// A stream that is cut off while a node joins leaves a directory in which the next attempt starts over.
func TestJoinRefusesDamage(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	dir := filepath.Join(t.TempDir(), "new")
	d := must.Get(datadir.Open(dir, datadir.Joined))(t)
	defer d.Close()
	o := Options{Logger: quiet}
	o.setDefaults()
	j := joining{o: o, d: d}
	answer := cluster.JoinAnswer{ID: 2, Ledger: m.ledger, AtLeast: m.at.Index}
	before := content(t, dir)
	for i := 0; i < len(m.seed); i += step(len(m.seed), 40) {
		err := receiveFrom(t, &j, bytes.NewReader(m.seed[:i]), answer)
		if _, final := errors.AsType[finalError](err); err == nil || final || content(t, dir) != before {
			t.Fatalf("cut at byte %d: %v", i, err)
		}
	}
	other := rewritten(t, m.seed, func(i *backupfile.Info) { i.Digest = machine.Hash{1} })
	if err := receiveFrom(t, &j, bytes.NewReader(other), answer); err == nil || content(t, dir) != before {
		t.Fatalf("a state that is not what it was said to be: %v", err)
	}
	answer.Ledger++
	if err := receiveFrom(t, &j, bytes.NewReader(m.seed), answer); err == nil || content(t, dir) != before {
		t.Fatalf("a state of another ledger: %v", err)
	}
	answer.Ledger--
	must.Do(t, receiveFrom(t, &j, bytes.NewReader(m.seed), answer))
	must.Do(t, d.Close())
	m.mustHaveTaken(t, dir, 2)
}

// fullDisk accepts a number of bytes and no more.
type fullDisk struct {
	io.Writer
	room int
}

// Write implements io.Writer.
func (d *fullDisk) Write(b []byte) (int, error) {
	if d.room -= len(b); d.room < 0 {
		return 0, syscall.ENOSPC
	}
	return d.Writer.Write(b)
}

// A full disk ends the work at once: nothing is fetched repeatedly, and the previous state stays.
func TestFullDiskEndsIt(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	before := content(t, m.dir)
	full := func(w io.Writer) io.Writer { return &fullDisk{w, 5000} }
	ctx, o := from(t, m.dir, whole(m.seed))
	o.disk = full
	if err := Again(ctx, o, m.at.Index); !errors.Is(err, syscall.ENOSPC) || content(t, m.dir) != before {
		t.Errorf("a node that is behind: %v", err)
	}
	d, err := datadir.Open(filepath.Join(t.TempDir(), "new"), datadir.Joined)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	join := Options{Logger: quiet, disk: full}
	join.setDefaults()
	j := joining{o: join, d: d}
	err = receiveFrom(t, &j, bytes.NewReader(m.seed), cluster.JoinAnswer{ID: 2, Ledger: m.ledger})
	if _, final := errors.AsType[finalError](err); !final || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a node that joins: %v", err)
	}
}

// rewritten returns a seed whose backup describes its content differently, with matching checksums.
func rewritten(t *testing.T, seed []byte, change func(*backupfile.Info)) []byte {
	t.Helper()
	var state bytes.Buffer // the concatenated files
	info := must.Get(backupfile.Read(t.Context(), bytes.NewReader(seed), nil,
		func(uint64) (io.Writer, error) { return &state, nil }, nil))(t)
	change(&info)
	info.SetSizes(info.Sizes)
	out := new(bytes.Buffer)
	w, err := backupfile.NewWriter(out, &info, func(int) error { return nil })
	if err == nil {
		_, err = w.Write(state.Bytes())
	}
	if err == nil {
		_, err = w.Finish()
	}
	must.Do(t, err)
	return out.Bytes()
}

// The state must be the one that its backup describes; checksums alone do not show that.
func TestAgainComparesTheState(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	before := content(t, m.dir)
	for what, change := range map[string]func(*backupfile.Info){
		"digest": func(i *backupfile.Info) { i.Digest = machine.Hash{1} },
		"index":  func(i *backupfile.Info) { i.Index++ },
	} {
		ctx, o := from(t, m.dir, whole(rewritten(t, m.seed, change)))
		err := Again(ctx, o, m.at.Index)
		if err == nil || !strings.Contains(err.Error(), "not the state that was announced") {
			t.Errorf("another %s: %v", what, err)
		}
		must.Equal(t, content(t, m.dir), before, "another %s: the directory has changed: %v", what)
	}
	if same := rewritten(t, m.seed, func(*backupfile.Info) {}); !bytes.Equal(same, m.seed) {
		t.Error("a seed is not written as it was")
	}
}

// receiveFrom creates the directory of a node from what another one sends.
func receiveFrom(t *testing.T, j *joining, r io.Reader, answer cluster.JoinAnswer) error {
	t.Helper()
	take := j.receiver(answer)
	return j.receive(take, take.fromNode(t.Context(), r))
}
