package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configFile is the --config flag. It is read after the command line is parsed and before the
// flags get their values, so that it can supply the missing ones.
type configFile string

// BeforeResolve implements kong's hook of that name.
func (configFile) BeforeResolve(ctx *kong.Context, trace *kong.Path, source *configSource) error {
	path := string(ctx.FlagValue(
		trace.Flag).(configFile)) //nolint:forcetypeassert // The hook belongs to this type's flag.
	if path == "" {
		return nil
	}
	if command := ctx.Selected(); command != nil && command.Target.CanAddr() {
		if _, own := command.Target.Addr().Interface().(interface{ ownConfig() }); own {
			source.path = path // the command reads it
			return nil
		}
	}
	if err := source.load(path); err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	ctx.AddResolver(source)
	return nil
}

// configSource is a loaded configuration file. It implements [kong.Resolver].
type configSource struct {
	shared  *sharedVariables
	path    string
	entries map[string]configEntry
	// sections are the values that are not one of a flag. Their commands read them.
	sections map[string]*yaml.Node
}

// configSections are keys of the file that are not flags.
var configSections = []string{"routes", "jwt"} // of gateway

// configEntry is one line of the file.
type configEntry struct {
	value string
	list  bool // of values
	line  int
	used  bool
}

// load reads the file: a YAML mapping from flag names, in which - may be _, to values or lists of
// values, and the sections.
func (s *configSource) load(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	s.path, s.entries, s.sections = path, make(map[string]configEntry), make(map[string]*yaml.Node)
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(document.Content) == 0 {
		return nil
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: expected 'flag-name: value' lines", path, root.Line)
	}
	for pair := range slices.Chunk(root.Content, 2) {
		key, value := pair[0], pair[1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		name := strings.ReplaceAll(key.Value, "_", "-")
		earlier, twice := s.entries[name]
		if section := s.sections[name]; section != nil {
			earlier, twice = configEntry{line: section.Line}, true
		}
		if twice {
			return fmt.Errorf("%s:%d: %s is already given at line %d", path, key.Line, key.Value, earlier.line)
		}
		if slices.Contains(configSections, name) {
			s.sections[name] = value
			continue
		}
		text, ok := plainValue(value)
		if !ok {
			return fmt.Errorf("%s:%d: %s must have one plain value", path, key.Line, key.Value)
		}
		s.entries[name] = configEntry{value: text, list: value.Kind != yaml.ScalarNode, line: key.Line}
	}
	return nil
}

// plainValue returns a value, or a list of them with commas between them, as a flag takes it; a mapping is a list of
// name=value. null is no value, because it could mean "nothing" or "the default".
func plainValue(n *yaml.Node) (text string, ok bool) {
	if n.Kind == yaml.ScalarNode {
		return n.Value, n.Tag != "!!null"
	}
	list := make([]string, 0, len(n.Content))
	for i, element := range n.Content {
		if element.Kind != yaml.ScalarNode || element.Tag == "!!null" || strings.Contains(element.Value, ",") {
			return "", false
		}
		if n.Kind == yaml.MappingNode && i%2 == 1 {
			list[len(list)-1] += "=" + element.Value
			continue
		}
		list = append(list, element.Value)
	}
	return strings.Join(list, ","), n.Kind == yaml.SequenceNode || n.Kind == yaml.MappingNode
}

// Validate refuses keys that are not a flag of any command: with a mistyped key an unwanted
// default would otherwise apply.
func (s *configSource) Validate(app *kong.Application) error {
	known, lists := make(map[string]bool), make(map[string]bool)
	eachFlag(app, func(flag *kong.Flag) {
		if configurable(flag) {
			known[flag.Name] = true
			lists[flag.Name] = lists[flag.Name] || flag.IsSlice()
		}
	})
	var problems []error
	for key, entry := range s.entries {
		switch {
		case !known[key]:
			problems = append(problems, fmt.Errorf("%s:%d: unknown key %s%s", s.path, entry.line, key,
				settingHint(key)))
		case entry.list && !lists[key]:
			problems = append(problems, fmt.Errorf("%s:%d: %s must have one plain value", s.path, entry.line, key))
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// eachFlag visits the flags of all commands.
func eachFlag(app *kong.Application, visit func(*kong.Flag)) {
	_ = kong.Visit(app.Node, func(node kong.Visitable, next kong.Next) error { // no visit fails
		if flag, ok := node.(*kong.Flag); ok {
			visit(flag)
		}
		return next(nil)
	})
}

// environmentPrefix begins the name of every variable of a flag.
const environmentPrefix = "SEQLEDGER_"

// unknownVariables returns the environment variables that look like a flag's variable but are
// not: with a mistyped name a default would apply. They are not an error, because other
// programs may set such variables, as Kubernetes does for a service named seqledger.
func unknownVariables(app *kong.Application, environ []string) (names []string) {
	known := map[string]bool{}
	for name := range sharedReaders {
		known[name], known[environmentPrefix+name] = true, true
	}
	eachFlag(app, func(flag *kong.Flag) {
		for _, name := range flag.Envs {
			known[name] = true
		}
	})
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if (strings.HasPrefix(name, environmentPrefix) || likeShared.MatchString(name)) && !known[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// configurable reports whether the file may set a flag: it may set what an environment variable
// may set. Neither may set values that belong to one call, such as a sequence.
func configurable(flag *kong.Flag) bool { return len(flag.Envs) > 0 && flag.Name != "config" }

// Resolve supplies a flag that the command line has not set.
func (s *configSource) Resolve(ctx *kong.Context, path *kong.Path, flag *kong.Flag) (any, error) {
	entry, ok := s.entries[flag.Name]
	if !ok || !configurable(flag) {
		return nil, nil
	}
	for _, name := range flag.Envs {
		// kong asks resolvers after it has read the environment and lets them win. Here
		// the environment must win instead of the file.
		if _, set := os.LookupEnv(name); set {
			return nil, nil
		}
	}
	if value, err := s.shared.Resolve(ctx, path, flag); value != nil || err != nil {
		return nil, err
	}
	entry.used = true
	s.entries[flag.Name] = entry
	return entry.value, nil
}

// locate adds where a value comes from to an error about it: the file and line, or the shared variable. The error
// itself names only the flag.
func (s *configSource) locate(err error) error {
	if err == nil {
		return nil
	}
	about := func(name string) bool {
		rest, is := strings.CutPrefix(err.Error(), "--"+name)
		return is && rest != "" && strings.ContainsAny(rest[:1], ":= ")
	}
	for name, entry := range s.entries {
		if entry.used && about(name) {
			return fmt.Errorf("%s:%d: %w", s.path, entry.line, err)
		}
	}
	for name, variable := range s.shared.used {
		if about(name) {
			return fmt.Errorf("$%s: %w", variable, err)
		}
	}
	return err
}
