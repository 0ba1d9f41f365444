package recovery_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/recovery"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

var quiet = slog.New(slog.DiscardHandler)

// closed makes the directory of a ledger with a few writes, and returns the index of the last one.
func closed(t *testing.T, dir string) uint64 {
	t.Helper()
	l := must.Get(ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: quiet, LogBytes: 2 << 20}))(t)
	index := uint64(0)
	for sequence := uint64(1); sequence <= 3; sequence++ {
		out, err := l.Write(t.Context(), &machine.Write{
			Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "system:test", Sequence: sequence,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("x")}},
		})
		if err != nil || out.Code != machine.Committed {
			t.Fatal(out.Code, err)
		}
		index = out.Receipt.Index
	}
	must.Do(t, l.Close())
	return index
}

// content returns the names and sizes of everything in a directory but its lock.
func content(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		b, err := os.ReadFile(path)
		all.WriteString(path + "\x00" + string(b))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all.String()
}

// tools are what an operator does with a directory that no process has open.
var tools = map[string]func(t *testing.T, dir string) error{
	"inspect": func(_ *testing.T, dir string) error { _, err := recovery.Inspect(dir); return err },
	"recover": func(t *testing.T, dir string) error { _, err := recovery.Run(t.Context(), dir, quiet); return err },
	"verify": func(t *testing.T, dir string) error {
		_, err := verify.Directory(t.Context(), dir, verify.Options{})
		return err
	},
	"compare": func(t *testing.T, dir string) error {
		_, err := verify.Compare(t.Context(), dir, dir, verify.Options{})
		return err
	},
	"restore": func(t *testing.T, dir string) error {
		_, err := restore.Directory(t.Context(), dir, restore.Options{Dir: filepath.Join(t.TempDir(), "r"),
			Logger: quiet})
		return err
	},
}

// TestToolsRefuse: what is no ledger that can be worked on is refused by each of them, and stays as it is.
func TestToolsRefuse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	absent, empty, file, foreign := filepath.Join(dir, "absent"), filepath.Join(dir, "empty"), filepath.Join(dir,
		"file"),
		filepath.Join(dir, "foreign")
	held, recovering, marked := filepath.Join(dir, "held"), filepath.Join(dir, "recovering"), filepath.Join(dir,
		"marked")
	must.Do(t, errors.Join(os.Mkdir(empty, 0o700), os.Mkdir(foreign, 0o700), os.WriteFile(file, nil, 0o600),
		os.WriteFile(filepath.Join(foreign, "holiday.jpg"), nil, 0o600)))
	closed(t, held)
	closed(t, recovering)
	closed(t, marked)
	holder := must.Get(datadir.OpenLedger(held))(t)
	defer func() { _ = holder.Close() }()
	d, err := datadir.OpenSurvivor(recovering)
	if err == nil {
		err = errors.Join(d.BeginRecovery(), d.Close())
	}
	must.Do(t, err)
	marker := filepath.Join(marked, "LEDGER")
	must.Do(t, os.WriteFile(marker, []byte(`{"format":99}`), 0o600))
	for _, test := range []struct {
		path, says string
		want       error
		but        string // the tool that takes it
	}{
		{absent, "no such file", fs.ErrNotExist, ""},
		{empty, "is not a seqledger data directory", nil, ""},
		{file, "is a file and no directory", nil, ""},
		{foreign, "is not a seqledger data directory", nil, ""},
		{held, "in use by another process", datadir.ErrInUse, ""},
		{recovering, "run seqledger recover again", datadir.ErrRecovering, "recover"},
		{marked, "format version 99", nil, ""},
	} {
		before := content(t, test.path)
		for name, tool := range tools {
			if name == test.but {
				continue
			}
			err := tool(t, test.path)
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), test.path) ||
				test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("%s of %s: %v", name, test.path, err)
			}
		}
		check.Equal(t, content(t, test.path), before, "%s has changed: %v", test.path)
	}
	check.Is(t, check.Err(os.Stat(absent)), fs.ErrNotExist, "it was made")
}

// TestNothingToRecover: a ledger on one node lost no majority, and a recovery would only end its epoch.
func TestNothingToRecover(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "one")
	last := closed(t, dir)
	before := content(t, dir)
	s, err := recovery.Inspect(dir)
	if err != nil || s.Node != 1 || len(s.Members) != 1 || !s.Members[0].Voter || s.Interrupted ||
		s.Last.Index < last || s.Committed > s.Last.Index {
		t.Errorf("%+v, %v", s, err)
	}
	check.Is(t, check.Err(recovery.Run(t.Context(), dir, nil)), recovery.ErrNothingToRecover, "it was recovered")
	check.Equal(t, content(t, dir), before, "it has changed: %v")
}

// TestDamageIsNoSurvivor: a directory that is damaged is told as that by every tool, and is not made a ledger of its
// own.
func TestDamageIsNoSurvivor(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string]func(dir string) error{
		"no state":  func(dir string) error { return os.Remove(filepath.Join(dir, datadir.StateName)) },
		"no log":    func(dir string) error { return os.RemoveAll(filepath.Join(dir, datadir.LogName)) },
		"cut state": func(dir string) error { return os.Truncate(filepath.Join(dir, datadir.StateName), 5000) },
	} {
		dir := filepath.Join(t.TempDir(), "one")
		closed(t, dir)
		must.Do(t, damage(dir))
		before := content(t, dir)
		if _, err := recovery.Inspect(dir); err == nil {
			t.Errorf("%s: inspected", what)
		} else if what == "no log" && !raftlog.IsDamage(err) {
			t.Errorf("%s: %v is no damage", what, err)
		}
		if _, err := recovery.Run(t.Context(), dir, quiet); err == nil || errors.Is(err, recovery.ErrNothingToRecover) {
			t.Errorf("%s: recovered: %v", what, err)
		}
		report, err := verify.Directory(t.Context(), dir, verify.Options{})
		if err == nil && len(report.Problems) == 0 {
			t.Errorf("%s: verified: %+v", what, report)
		}
		check.Equal(t, content(t, dir), before, "%s: it has changed: %v", what)
	}
}
