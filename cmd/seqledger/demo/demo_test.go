package demo

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// script writes a program that stands for seqledger.
func script(t *testing.T, lines string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell; the demo itself is tested with the real program")
	}
	path := filepath.Join(t.TempDir(), "program")
	must.Do(t, process.Script(path, lines))
	return path
}

// TestRunFails: when a process does not do its part, the demo ends at once and
// says which and why; nothing is left behind but what was to be kept.
func TestRunFails(t *testing.T) {
	t.Parallel()
	serves := `if [ "$1" = serve ]; then echo '{"address":"127.0.0.1:1"}'; exec cat; fi` + "\n"
	for _, test := range []struct {
		name, lines string
		says        []string
	}{
		{"no server", "echo no disk >&2; exit 1\n", []string{"server did not start", "no disk"}},
		{"nonsense", "echo hello; exec cat\n", []string{"server did not start", "hello"}},
		{"a client ends", serves + "echo boom >&2; exit 3\n", []string{"client-", "ended by itself", "boom"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := Run(t.Context(), Options{Program: script(t, test.lines), Duration: time.Hour, Keep: true})
			if err == nil {
				t.Fatal("want an error")
			}
			for _, text := range append(test.says, "kept in") {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("want %q in the error, got %v", text, err)
				}
			}
			_, dir, _ := strings.Cut(err.Error(), "kept in ")
			dir = strings.TrimSuffix(dir, ")")
			must.Do(t, check.Err(os.Stat(dir)), "want the directory kept")
			_ = os.RemoveAll(dir)
		})
	}
	_, err := Run(t.Context(), Options{Program: filepath.Join(t.TempDir(), "absent"), Duration: time.Hour})
	if !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "kept") {
		t.Errorf("want that there is no such program, and nothing kept, got %v", err)
	}
}
