package demo

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/child"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

func TestOptionsValidate(t *testing.T) {
	t.Parallel()
	o := Options{Program: "x"}
	if err := o.Validate(); err != nil || o.Duration != DefaultDuration || o.Clients != 4 {
		t.Errorf("want the defaults, got %+v (%v)", o, err)
	}
	for _, test := range []struct {
		options Options
		says    string
	}{
		{Options{}, "program"},
		{Options{Program: "x", Duration: time.Millisecond}, "duration"},
		{Options{Program: "x", Duration: -1}, "duration"},
		{Options{Program: "x", Clients: 33}, "33 clients"},
		{Options{Program: "x", Clients: -1}, "-1 clients"},
	} {
		check.ErrorContains(t, test.options.Validate(), test.says, "%+v: want an error about", test.options)
	}
}

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

// TestLifetime: a short run has its share of kills, and a long one keeps the
// pace of the default.
func TestLifetime(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ duration, least, most time.Duration }{
		{2 * time.Second, 200 * time.Millisecond, 600 * time.Millisecond},
		{DefaultDuration, time.Second, 3 * time.Second},
		{time.Hour, time.Second, 3 * time.Second},
	} {
		c := &side{options: &Options{Duration: test.duration}}
		random := newProxy(1, nil).random
		for range 1000 {
			if got := c.lifetime(random, serverLives); got < test.least || got > test.most {
				t.Fatalf("%s: want %s to %s, got %s", test.duration, test.least, test.most, got)
			}
		}
	}
}

// TestClientLifetime: however long a process takes to start, a client has time to pay before it is killed.
func TestClientLifetime(t *testing.T) {
	t.Parallel()
	const startup = time.Second
	for clients := 1; clients <= 4; clients++ {
		s := &side{
			options: &Options{Duration: time.Second}, startup: startup, clients: make([]*child.Child, clients),
		}
		random := newProxy(1, nil).random
		for range 1000 {
			if got := time.Duration(clients) * s.clientLifetime(random); got <= startup {
				t.Fatalf("%d clients are killed every %s, and take %s to start", clients, got, startup)
			}
		}
	}
}
