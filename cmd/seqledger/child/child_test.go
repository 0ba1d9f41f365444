package child

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// script returns options for a process that runs lines of a shell, and the channel on which it is
// reported as failed.
func script(t *testing.T, lines string) (Options, chan error) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	failed := make(chan error, 1)
	return Options{
		Name: "child", Command: []string{"sh", "-c", lines}, Log: filepath.Join(t.TempDir(), "log"),
		Started: up, Failed: failed,
	}, failed
}

// up waits until a script has said that it runs.
func up(stdout io.Reader) error {
	_, err := stdout.Read(make([]byte, 1))
	return err
}

// TestChildEnds: a process that is told to end has no failure, however it is
// told, and one that fails on the way out has.
func TestChildEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, lines string
		end         func(context.Context, *Child) error
		says        string
	}{
		{"killed", "echo; exec cat\n", func(_ context.Context, p *Child) error { p.Kill(); return nil }, ""},
		{"input closed", "echo; exec cat\n", func(ctx context.Context, p *Child) error { return p.Finish(ctx) }, ""},
		{"input closed, fails", "echo; cat; echo full disk >&2; exit 1\n",
			func(ctx context.Context, p *Child) error { return p.Finish(ctx) }, "full disk"},
		{"stopped", "trap 'exit 0' TERM; echo; while :; do read -r line; done\n",
			func(ctx context.Context, p *Child) error { return p.Stop(ctx) }, ""},
		{"stopped, fails", "trap 'echo not drained >&2; exit 1' TERM; echo; while :; do read -r line; done\n",
			func(ctx context.Context, p *Child) error { return p.Stop(ctx) }, "not drained"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, failed := script(t, test.lines)
			p, err := Start(t.Context(), o)
			must.Do(t, err)
			err = test.end(t.Context(), p)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("want an error with %q, got %v", test.says, err)
			}
			p.Kill() // once more does no harm
			select {
			case err := <-failed:
				t.Errorf("its end was expected, but reported: %v", err)
			default:
			}
		})
	}
}

// TestChildDoesNotEnd: a wait for a running process ends with its context, and the error says
// what it waited for.
func TestChildDoesNotEnd(t *testing.T) {
	t.Parallel()
	o, _ := script(t, "trap '' TERM; echo; while :; do read -r line || exec tail -f /dev/null; done\n")
	p := must.Get(Start(t.Context(), o))(t)
	defer p.Kill()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("does not settle"))
	for name, end := range map[string]func(context.Context) error{"finish": p.Finish, "stop": p.Stop} {
		check.ErrorContains(t, end(ctx), "child does not settle", "%s: want an error that says so", name)
	}
}

// TestChildDiesWithContext: the end of the context always ends the process, and is not reported
// as a failure.
func TestChildDiesWithContext(t *testing.T) {
	t.Parallel()
	o, failed := script(t, "echo; exec tail -f /dev/null\n")
	ctx, cancel := context.WithCancel(t.Context())
	p := must.Get(Start(ctx, o))(t)
	cancel()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.Kill()
		t.Error("it goes on")
	}
	select {
	case err := <-failed:
		t.Errorf("reported as a failure: %v", err)
	default:
	}
}

// TestChildExplains: an error has the end of the log and not all of it, on one
// line.
func TestChildExplains(t *testing.T) {
	t.Parallel()
	p := &Child{name: "server", log: t.TempDir() + "/log"}
	text := "the beginning\n" + strings.Repeat("x", 1000) + "\nthe\nend\n"
	must.Do(t, os.WriteFile(p.log, []byte(text), 0o600))
	got := p.Explain("failed").Error()
	if !strings.HasPrefix(got, "server failed;") || !strings.HasSuffix(got, "the end") ||
		strings.Contains(got, "beginning") {
		t.Errorf("want the name, what happened and the end of the log, got %q", got)
	}
}

// TestChildEnvironment: a setting that the user has for other commands does not
// reach the processes, and every other variable does.
func TestChildEnvironment(t *testing.T) {
	t.Setenv("SEQLEDGER_LISTEN", "0.0.0.0:1")
	t.Setenv("OTHER_SETTING", "kept")
	o, _ := script(t, "echo \"[$SEQLEDGER_LISTEN][$OTHER_SETTING]\"; exec cat\n")
	said := make([]byte, 100)
	o.Started = func(stdout io.Reader) error {
		n, err := stdout.Read(said)
		said = said[:n]
		return err
	}
	p := must.Get(Start(t.Context(), o))(t)
	p.Kill()
	check.Equal(t, strings.TrimSpace(string(said)), "[][kept]")
}
