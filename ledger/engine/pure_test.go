package engine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The engine has no clock, goroutine, lock, channel or file: the simulator could not decide what they do.
func TestEngineIsPure(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"encoding/binary", "errors", "fmt", "slices", "time", "github.com/seqledger/seqledger/ledger/machine",
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source := must.Get(os.ReadFile(name))(t)
		for _, problem := range impure(t, name, string(source), allowed) {
			t.Error(problem)
		}
	}
	for _, source := range []string{
		"import \"sync\"", "var x = time.Now()", "func f() { go f() }", "var c chan int", "var m map[int]int",
	} {
		if len(impure(t, "bad.go", "package p\n"+source, allowed)) == 0 {
			t.Errorf("%s is taken for pure", source)
		}
	}
}

// clocks are functions of package time that read a clock or wait for one.
var clocks = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}

// impure returns what a file has that depends on more than what the engine is told.
func impure(t *testing.T, name, source string, allowed []string) (problems []string) {
	t.Helper()
	files := token.NewFileSet()
	file := must.Get(parser.ParseFile(files, name, source, 0))(t)
	found := func(n ast.Node, what string) { problems = append(problems, files.Position(n.Pos()).String()+": "+what) }
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			if !slices.Contains(allowed, strings.Trim(n.Path.Value, `"`)) {
				found(n, "imports "+n.Path.Value)
			}
		case *ast.GoStmt:
			found(n, "starts a goroutine")
		case *ast.ChanType:
			found(n, "has a channel")
		case *ast.MapType:
			found(n, "has a map, whose order must decide nothing")
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
				found(n, "reads a clock")
			}
		}
		return true
	})
	return problems
}
