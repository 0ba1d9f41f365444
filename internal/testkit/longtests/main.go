// Command longtests lists the tests that -short shortens, for make test-long: it runs these, and not again those that
// make test has run in full.
//
//	go run ./internal/testkit/longtests packages    # the packages that have such tests, one a line
//	go run ./internal/testkit/longtests pattern     # a regular expression for go test -run that matches all of them
//
// A test is shortened if it asks testing.Short, or draws as often as package rapidtest says, or calls a function of its
// package that does. Calls are told by their names alone, so that a test may be listed without need, but none is missed
// but by a call through a variable.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "longtests:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 1 || arguments[0] != "packages" && arguments[0] != "pattern" {
		return errors.New("the argument is packages or pattern")
	}
	found, err := shortened(".")
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return errors.New("no test is shortened: is this the root of the module?")
	}
	directories := slices.Sorted(maps.Keys(found))
	if arguments[0] == "packages" {
		for _, directory := range directories {
			fmt.Println("./" + filepath.ToSlash(directory))
		}
		return nil
	}
	var names []string
	for _, directory := range directories {
		names = append(names, found[directory]...)
	}
	slices.Sort(names)
	fmt.Println("^(" + strings.Join(slices.Compact(names), "|") + ")$")
	return nil
}

// shortened returns the shortened tests of the packages below root, by their directories. Modules of their own are left
// out.
func shortened(root string) (map[string][]string, error) {
	packages := map[string]*calls{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (err == nil || strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" ||
				entry.Name() == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		directory := filepath.Dir(path)
		if packages[directory] == nil {
			packages[directory] = &calls{of: map[string]map[string]bool{}}
		}
		return packages[directory].read(path)
	})
	found := map[string][]string{}
	for directory, c := range packages {
		if tests := c.shortened(); len(tests) > 0 {
			found[directory] = tests
		}
	}
	return found, err
}

// short is the name that the call graph has for testing.Short.
const short = "testing.Short"

// calls are the names that the functions of a package's tests mention, by the function.
type calls struct{ of map[string]map[string]bool }

// read takes in the functions of a file.
func (c *calls) read(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, declaration := range file.Decls {
		name := ""
		if f, ok := declaration.(*ast.FuncDecl); ok {
			name = f.Name.Name
		} // else variables, whose functions any test may call
		if c.of[name] == nil {
			c.of[name] = map[string]bool{}
		}
		ast.Inspect(declaration, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				of, ok := n.X.(*ast.Ident)
				if ok && (of.Name == "testing" && n.Sel.Name == "Short" || of.Name == "rapidtest") {
					c.of[name][short] = true
				}
			case *ast.Ident:
				c.of[name][n.Name] = true
			case *ast.ValueSpec:
				if name == "" && mentionsShort(n) {
					for _, variable := range n.Names {
						c.of[variable.Name] = map[string]bool{short: true}
					}
				}
			}
			return true
		})
	}
	return nil
}

// mentionsShort reports whether a variable's value depends on testing.Short.
func mentionsShort(n ast.Node) (mentions bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			of, isName := s.X.(*ast.Ident)
			mentions = mentions || isName && of.Name == "testing" && s.Sel.Name == "Short"
		}
		return true
	})
	return mentions
}

// shortened returns the tests that reach what makes them short, in the order of their names.
func (c *calls) shortened() (tests []string) {
	reach := map[string]bool{short: true}
	for grew := true; grew; {
		grew = false
		for name, mentioned := range c.of {
			if name == "" || reach[name] {
				continue
			}
			for other := range mentioned {
				if reach[other] {
					reach[name], grew = true, true
					break
				}
			}
		}
	}
	for name := range reach {
		if strings.HasPrefix(name, "Test") && name != "TestMain" || strings.HasPrefix(name, "Fuzz") {
			tests = append(tests, name)
		}
	}
	slices.Sort(tests)
	return tests
}
