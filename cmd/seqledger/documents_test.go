package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

var (
	fence      = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	mcpServer  = regexp.MustCompile(`(?s)"command": "seqledger",\s*"args": \[(.*?)\]`)
	mcpWord    = regexp.MustCompile(`"([^"]*)"`)
	invocation = regexp.MustCompile(`(?:^|[\s"(;|&])(?:\./bin/seqledger|go run \./cmd/seqledger|seqledger) ([^;|&)#]*)`)
	makeTarget = regexp.MustCompile(`(?m)^(?:[A-Z_]+=\S+ )*make ([a-z-]+)(?: [A-Z]+=\S*)*(?:$| +#)`)
	variable   = regexp.MustCompile(`\bSEQLEDGER_[A-Z_]+[A-Z]\b`)
)

// documentPages are the pages that users and contributors follow, relative to this package.
func documentPages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 7 {
		t.Fatalf("%d pages in docs, %v", len(pages), err)
	}
	return append(pages, "../../README.md", "../../CONTRIBUTING.md", "../../bench/README.md",
		"../../client/typescript/README.md")
}

// documentCode returns what a page has for a shell, a line each: the blocks without a language or
// with that of a shell, the spans in its text, and the MCP servers that clients are to start.
func documentCode(page string) (lines []string) {
	for _, server := range mcpServer.FindAllStringSubmatch(page, -1) {
		line := "seqledger"
		for _, word := range mcpWord.FindAllStringSubmatch(server[1], -1) {
			line += " " + word[1]
		}
		lines = append(lines, line)
	}
	for _, block := range fence.FindAllStringSubmatch(page, -1) {
		if slices.Contains([]string{"", "sh", "bash"}, block[1]) {
			script := strings.ReplaceAll(block[2], "\\\n", " ")
			lines = append(lines, strings.Split(script, "\n")...)
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		lines = append(lines, strings.Join(strings.Fields(span[1]), " "))
	}
	return lines
}

// commandModel is the program's own grammar.
func commandModel(t *testing.T) *kong.Application {
	t.Helper()
	parser := must.Get(newParser(new(commandLine), new(operation.Flags), new(configSource), io.Discard, io.Discard))(t)
	return parser.Model
}

// flagsOf returns the names of the flags that a command takes, those of its parents included, and of the
// command that it stands for.
func flagsOf(command *kong.Node) map[string]bool {
	names := map[string]bool{}
	if command.DefaultCmd != nil {
		names = flagsOf(command.DefaultCmd)
	}
	for _, group := range command.AllFlags(false) {
		for _, flag := range group {
			names["--"+flag.Name] = true
		}
	}
	return names
}

// commandOf returns the command that the first words name, and the words behind its name.
func commandOf(app *kong.Application, words []string) (*kong.Node, []string) {
	command := app.Node
	for len(words) > 0 {
		next := slices.IndexFunc(command.Children, func(c *kong.Node) bool { return c.Name == words[0] })
		if next < 0 {
			break
		}
		command, words = command.Children[next], words[1:]
	}
	return command, words
}

// wrongFlag returns the first flag among the words that the command does not take, or "".
func wrongFlag(command *kong.Node, words []string) string {
	known := flagsOf(command)
	for _, word := range words {
		if word == "--" { // what follows is another program's
			break
		}
		name, _, _ := strings.Cut(strings.Trim(word, `[]'"`), "=")
		if strings.HasPrefix(name, "--") && !known[name] {
			return name
		}
	}
	return ""
}

// TestDocumentsNameCommands: each command line in a document has a command and flags that the
// program has. A user types what the page says.
func TestDocumentsNameCommands(t *testing.T) {
	t.Parallel()
	app := commandModel(t)
	checked := map[string]int{}
	for _, path := range documentPages(t) {
		page := must.Get(os.ReadFile(path))(t)
		for _, line := range documentCode(string(page)) {
			for _, found := range invocation.FindAllStringSubmatch(line, -1) {
				command, words := commandOf(app, strings.Fields(found[1]))
				if command == app.Node && (len(words) == 0 || !strings.HasPrefix(words[0], "-")) {
					t.Errorf("%s: %q names no command", path, line)
				}
				check.Equal(t, wrongFlag(command, words), "", "%s: %q: %s has no %s", path, line, command.FullPath())
				checked["command"]++
			}
			// Such as `serve --auth`, and a flag alone, which must be one of some command.
			words := strings.Fields(line)
			if command, rest := commandOf(app, words); command != app.Node && len(rest) > 0 &&
				strings.HasPrefix(rest[0], "--") {
				check.Equal(t, wrongFlag(command, rest), "", "%s: %q: %s has no %s", path, line, command.FullPath())
				checked["short"]++
			}
		}
	}
	if checked["command"] < 60 || checked["short"] < 3 {
		t.Errorf("%v were checked: the test tested too little", checked)
	}
}

// TestDocumentsNameFlagsAndTargets: each flag that a page on running the program names alone is one of
// some command, each variable that of a flag, and each target of make is in the Makefile.
func TestDocumentsNameFlagsAndTargets(t *testing.T) {
	t.Parallel()
	flags, variables := map[string]bool{}, map[string]bool{}
	var visit func(node *kong.Node)
	visit = func(node *kong.Node) {
		for _, flag := range node.Flags {
			flags["--"+flag.Name] = true
			for _, name := range flag.Envs {
				variables[name] = true
			}
		}
		for _, child := range node.Children {
			visit(child)
		}
	}
	visit(commandModel(t).Node)
	makefile := must.Get(os.ReadFile("../../Makefile"))(t)
	checked := map[string]int{}
	for _, path := range documentPages(t) {
		page := must.Get(os.ReadFile(path))(t)
		for _, line := range documentCode(string(page)) {
			if strings.HasPrefix(line, "--") && strings.Contains(path, "/docs/") {
				name, _, _ := strings.Cut(strings.Fields(line)[0], "=")
				if !flags[name] && name != "--" && name != "--network" { // Docker's
					t.Errorf("%s: no command has %s", path, name)
				}
				checked["flag"]++
			}
			for _, target := range makeTarget.FindAllStringSubmatch(line, -1) {
				check.Contains(t, string(makefile), "\n"+target[1]+":", "%s: %q: the Makefile has no target %s", path,
					line, target[1])
				checked["target"]++
			}
			for _, name := range variable.FindAllString(line, -1) {
				// Variables of the tests are in CONTRIBUTING.md alone.
				if !variables[name] && strings.Contains(path, "/docs/") {
					t.Errorf("%s: %q: no flag takes its value from %s", path, line, name)
				}
				checked["variable"]++
			}
		}
	}
	if checked["flag"] < 40 || checked["target"] < 10 || checked["variable"] < 4 {
		t.Errorf("%v were checked: the test tested too little", checked)
	}
}

var (
	sourceFile = regexp.MustCompile(`^[\w./-]+/[\w.-]+\.(go|md|yaml|json|proto|mjs|svg)$`)
	testName   = regexp.MustCompile(`\b((?:Test|Fuzz|Benchmark|Example)[A-Z]\w*)(\*?)`)
)

// TestDocumentsNameFilesAndTests: each file and each test that a page names is there. Such a name is how a
// reader gets from a claim to what shows it.
func TestDocumentsNameFilesAndTests(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	must.Do(t, filepath.WalkDir("../..", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == "node_modules" || strings.HasPrefix(name, ".") && len(name) > 2) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		tests.Write(source)
		return err
	}))
	checked := map[string]int{}
	pages := append(documentPages(t), "../../ledger/DESIGN.md", "../../ledger/FORMAT.md", "../../client/JOURNAL.md")
	for _, path := range pages {
		page := must.Get(os.ReadFile(path))(t)
		for _, line := range documentCode(string(page)) {
			if sourceFile.MatchString(line) && !strings.HasPrefix(line, "/") {
				_, fromRoot := os.Stat(filepath.Join("../..", line))
				_, fromPage := os.Stat(filepath.Join(filepath.Dir(path), line))
				if fromRoot != nil && fromPage != nil {
					t.Errorf("%s: there is no file %s", path, line)
				}
				checked["file"]++
			}
			for _, name := range testName.FindAllStringSubmatch(line, -1) {
				end := "("
				if name[2] != "" || strings.HasSuffix(name[1], "_") {
					end = ""
				}
				check.Contains(t, tests.String(), "func "+name[1]+end, "%s: there is no %s%s", path, name[1], name[2])
				checked["test"]++
			}
		}
	}
	if checked["file"] < 10 || checked["test"] < 15 {
		t.Errorf("%v were checked: the test tested too little", checked)
	}
}
