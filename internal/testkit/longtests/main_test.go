package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// write makes a tree of files.
func write(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

// Every way to testing.Short is found, and what only looks like one is not.
func TestShortened(t *testing.T) {
	t.Parallel()
	found, err := shortened(write(t, map[string]string{
		"a/direct_test.go": "package a\nfunc TestDirect(t *testing.T) { if testing.Short() { return } }",
		"a/helper_test.go": "package a\nfunc often() int { if testing.Short() { return 1 }; return 9 }",
		"a/uses_test.go":   "package a\nfunc TestUses(t *testing.T) { loop(t) }\nfunc TestFull(t *testing.T) {}",
		"a/loop_test.go":   "package a\nfunc loop(t *testing.T) { for range often() {} }",
		"a/method_test.go": "package a\nfunc (b bed) run() { loop(nil) }\n" +
			"func TestMethod(t *testing.T) { bed{}.run() }",
		"a/subtest_test.go": "package a\nfunc TestSub(t *testing.T) { t.Run(\"x\", func(t *testing.T) { often() }) }",
		"a/fuzz_test.go":    "package a\nfunc FuzzIt(f *testing.F) { often() }",
		"a/main_test.go":    "package a\nfunc TestMain(m *testing.M) { often() }",
		"b/variable_test.go": "package b\nvar n = map[bool]int{true: 1}[testing.Short()]\n" +
			"func TestVar(t *testing.T) { _ = n }",
		"b/table_test.go": "package b\nvar cases = []func(){ func() { testing.Short() } }\n" +
			"func TestTable(t *testing.T) { _ = cases }",
		"c/property_test.go":     "package c\nfunc TestProperty(t *testing.T) { rapidtest.CheckUntil(t, nil, nil) }",
		"d/full_test.go":         "package d\nfunc TestShort(t *testing.T) { x.Short() } // testing.Short()\n",
		"e/code.go":              "package e\nfunc TestCode() { testing.Short() }",
		"f/go.mod":               "module f",
		"f/module_test.go":       "package f\nfunc TestModule(t *testing.T) { testing.Short() }",
		"g/testdata/old_test.go": "package g\nfunc TestOld(t *testing.T) { testing.Short() }",
		".h/hidden_test.go":      "package h\nfunc TestHidden(t *testing.T) { testing.Short() }",
	}))
	want := map[string][]string{
		"a": {"FuzzIt", "TestDirect", "TestMethod", "TestSub", "TestUses"}, "b": {"TestTable", "TestVar"},
		"c": {"TestProperty"},
	}
	for directory := range found { // their names are below the temporary directory
		name := filepath.Base(directory)
		check.EqualSlices(t, found[directory], want[name], "%s: %v", name)
		delete(want, name)
	}
	if err != nil || len(want) > 0 {
		t.Errorf("not found: %v; %v", slices.Sorted(maps.Keys(want)), err)
	}
}
