package private

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// What others may read or change is narrowed, and a log line says so once. The rest is left alone.
func TestNarrow(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there are no such modes")
	}
	dir := t.TempDir()
	data, outside := filepath.Join(dir, "data"), filepath.Join(dir, "outside")
	must := func(err error) {
		t.Helper()
		must.Do(t, err)
	}
	must(os.MkdirAll(filepath.Join(data, "blocks"), 0o700))
	want := map[string]fs.FileMode{".": 0o700, "blocks": 0o700}
	for name, modes := range map[string][2]fs.FileMode{
		"state": {0o644, 0o600}, "blocks/1": {0o666, 0o600}, "blocks/2": {0o600, 0o600}, "sealed": {0o400, 0o400},
		"sealed-wide": {0o444, 0o400},
	} {
		must(os.WriteFile(filepath.Join(data, name), nil, 0o600))
		must(os.Chmod(filepath.Join(data, name), modes[0]))
		want[name] = modes[1]
	}
	must(os.Chmod(data, 0o755))
	must(os.WriteFile(outside, nil, 0o600))
	must(os.Chmod(outside, 0o644))
	must(os.Symlink(outside, filepath.Join(data, "link")))
	must(os.Symlink(data, filepath.Join(dir, "named")))
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	Narrow(logger, filepath.Join(dir, "named"))
	for name, mode := range want {
		info, err := os.Stat(filepath.Join(data, name))
		must(err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s has the mode %v, want %v", name, info.Mode().Perm(), mode)
		}
	}
	if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("a file behind a link: %v, %v", info.Mode(), err)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "files=4") {
		t.Errorf("the log has %q", text)
	}
	Narrow(logger, data)
	Narrow(logger, filepath.Join(dir, "nothing"))
	if text := log.String(); strings.Count(text, "\n") != 1 {
		t.Errorf("nothing was left to narrow, and the log has %q", text)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	f := must.Get(Create(path))(t)
	must.Do(t, f.Close())
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != File {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// No program writes with other modes, but for tests and measurements.
func TestNothingElseIsWritten(t *testing.T) {
	t.Parallel()
	other := []string{"bench", "internal/testkit", "internal/private", "bin"}
	const root = "../.."
	must.Do(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			if slices.Contains(other, filepath.ToSlash(name)) || e.Name() == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, wide := range []string{"os.Create(", "0o644", "0o640", "0o666", "0o750", "0o755", "0o777"} {
			if strings.Contains(string(text), wide) {
				t.Errorf("%s has %s: what is written is for its owner alone", name, wide)
			}
		}
		return err
	}))
}
