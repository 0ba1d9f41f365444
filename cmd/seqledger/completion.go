package main

import (
	"fmt"
	"os"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionCommand) Help() string {
	return `The script makes the shell call seqledger, which must be on the PATH, to complete its commands and flags.
For all later shells, add the line to the file that the shell reads at its start.

    source <(seqledger completion bash)        # ~/.bashrc
    source <(seqledger completion zsh)         # ~/.zshrc, after compinit
    seqledger completion fish | source         # ~/.config/fish/config.fish`
}

// completionScripts hand the line to seqledger in COMP_LINE, as bash does, and complete the
// names of files where there is nothing else to complete.
var completionScripts = map[string]string{
	"bash": `complete -o default -o bashdefault -C seqledger seqledger`,
	"zsh": `_seqledger() {
  local -a candidates
  candidates=(${(f)"$(COMP_LINE="${(j: :)words[1,CURRENT]}" seqledger)"})
  if (( $#candidates )); then compadd -a candidates; else _files; fi
}
compdef _seqledger seqledger`,
	"fish": `function __seqledger_complete
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct); and set COMP_LINE "$COMP_LINE "
    set -l candidates (seqledger)
    if test (count $candidates) -gt 0
        printf '%s\n' $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -f -c seqledger -a "(__seqledger_complete)"`,
}

func (c *completionCommand) Run(e *environment) error {
	_, err := fmt.Fprintln(e.stdout, completionScripts[c.Shell])
	return err
}

// completeLine answers a shell, which puts the line that it completes into COMP_LINE. It
// returns false when there is no such line.
func completeLine(parser *kong.Kong) (completed bool) {
	if os.Getenv("COMP_LINE") == "" {
		return false
	}
	kongcompletion.Register(parser, kongcompletion.WithExitFunc(func(int) { completed = true }))
	return completed
}
