package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shellCommand returns a command with the binary on the PATH. It skips the test when a program
// is missing, which is not an error: the shells are no part of a Go developer's machine.
func shellCommand(t *testing.T, input string, needs []string, args ...string) *exec.Cmd {
	t.Helper()
	for _, program := range needs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("skipped: there is no %s here", program)
		}
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	home := t.TempDir()
	cmd.Dir, cmd.Stdin = home, strings.NewReader(input)
	cmd.Env = append(os.Environ(), "HOME="+home, "PS1=$ ", "TERM=dumb",
		"PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}

// TestCompletionInShells types a part of "seqledger version" and the tab key at the prompt of a
// real shell with a terminal, and expects the version.
func TestCompletionInShells(t *testing.T) {
	t.Parallel()
	for shell, commands := range map[string]struct{ start, setup string }{
		"bash": {"bash --norc -i", "source <(seqledger completion bash)"},
		"zsh":  {"zsh -f -i", "autoload -U compinit; compinit -D; source <(seqledger completion zsh)"},
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			cmd := shellCommand(t, commands.setup+"\nseqledger versi\t\nexit\n", []string{"script", shell},
				"script", "-qec", commands.start, filepath.Join(t.TempDir(), "typescript"))
			out, err := cmd.CombinedOutput()
			if want := seqledger(t, "version").stdout; !strings.Contains(string(out), strings.TrimSpace(want)) {
				t.Errorf("want %q, got %v and\n%s", want, err, out)
			}
		})
	}
}

// TestCompletionInFish asks fish, which tells its completions without a terminal.
func TestCompletionInFish(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"seqledger versi": "version", "seqledger list ": "entities"} {
		cmd := shellCommand(t, "", []string{"fish"}, "fish", "--no-config", "-c",
			"seqledger completion fish | source; complete -C '"+line+"'")
		out, err := cmd.CombinedOutput()
		if !slices.Contains(strings.Fields(string(out)), want) {
			t.Errorf("%q: want %q, got %v and %q", line, want, err, out)
		}
	}
}

// TestCompletion: the line to complete gets commands, flags and values, and no hidden command.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"seqledger ser":                  "serve",
		"seqledger session ":             "open",
		"seqledger mcp gu":               "guard",
		"seqledger mcp guard --ups":      "--upstream --upstream-token-file",
		"seqledger mcp tools --names":    "--namespace",
		"seqledger status --ti":          "--timeout",
		"seqledger serve --log-format ":  "json text",
		"seqledger completion ":          "bash fish zsh",
		"seqledger demo-":                "",
		"seqledger import --scope a fil": "",
	} {
		cmd := exec.Command(binary)
		cmd.Env = append(os.Environ(), "COMP_LINE="+line)
		out, err := cmd.CombinedOutput()
		got := strings.Fields(string(out))
		slices.Sort(got)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: want %q, got %q (%v)", line, want, out, err)
		}
	}
	seqledger(t, "completion", "tcsh").expect(t, exitUsage, "must be one of")
}
