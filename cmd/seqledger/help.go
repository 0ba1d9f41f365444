package main

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// examples is the help of a command that needs nothing but examples.
func examples(lines ...string) string { return "Examples:\n\n    " + strings.Join(lines, "\n    ") }

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

// version and revision are set by make build and make release with -ldflags -X. Without them
// the version is what the go command knows about the sources.
var version, revision string

type versionCommand struct{}

func (*versionCommand) Help() string { return examples("seqledger version --json") }

func (*versionCommand) Run(e *environment) error {
	v := buildVersion()
	if e.json {
		return e.showObject(v)
	}
	_, err := fmt.Fprintln(e.stdout, "seqledger", v)
	return err
}

// versionFlag prints the version and ends the process. kong's own takes it from a variable, which kong then expands for
// every flag.
type versionFlag bool

// BeforeReset implements kong's hook of that name.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	_, err := fmt.Fprintln(app.Stdout, "seqledger", buildVersion())
	app.Exit(exitDone)
	return err
}

// versionInfo is the build information.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from modified sources
	Go       string `json:"go"`
}

func (v versionInfo) String() string {
	s := v.Version
	if v.Revision != "" {
		s += " " + v.Revision
	}
	if v.Modified {
		s += " (modified)"
	}
	return s + " " + v.Go
}

// buildVersion returns what is known about this program's build.
func buildVersion() versionInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{Main: debug.Module{Version: "(unknown)"}}
	}
	return versionOf(info, version, revision)
}

// versionOf merges what the go command and the linker's flags say. The flags win, because a build with
// -buildvcs=false or from an archive has no other version.
func versionOf(info *debug.BuildInfo, version, revision string) versionInfo {
	v := versionInfo{Version: info.Main.Version, Go: info.GoVersion}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.Revision = setting.Value
		case "vcs.modified":
			v.Modified = setting.Value == "true"
		}
	}
	if version != "" {
		v.Version, v.Revision, v.Modified = version, revision, strings.HasSuffix(version, "-dirty")
	}
	return v
}
