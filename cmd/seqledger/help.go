package main

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// helpCommand shows what --help shows.
type helpCommand struct {
	Command []string `arg:"" optional:"" help:"The command; without it, the list of all commands."`
}

func (*helpCommand) Help() string {
	return `The same as COMMAND --help.

    seqledger help
    seqledger help write
    seqledger help auth check`
}

func (c *helpCommand) Run(parsed *kong.Context) error {
	// Checked here, because Parse prints the help of the last command that it knows.
	children := parsed.Model.Children
	for i, word := range c.Command {
		n := slices.IndexFunc(children, func(node *kong.Node) bool { return node.Name == word })
		if n < 0 {
			return usage("there is no command %q", strings.Join(c.Command[:i+1], " "))
		}
		children = children[n].Children
	}
	// Parse prints the help when it meets the flag, and ends the process.
	_, err := parsed.Parse(append(c.Command, "--help"))
	return err
}
