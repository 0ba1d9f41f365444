package machine

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// localConstants decide nothing and shape no state: each node could have others. Everything else that is
// constant in the two packages is part of the format.
var localConstants = []string{
	"machine.TableCount",                        // follows from the tables
	"machine.carriedKeyBytes",                   // follows from the key
	"machine.carriedPiece",                      // carried values are one node's own
	"machine.expiryKinds",                       // follows from the kinds
	"machine.keyedCodes",                        // a distance in the numbers of outcomes
	"machine.MaxCode",                           // the last of them
	"machine.maxBuffer",                         // memory
	"machine.maxSpare", "machine.maxSpareBytes", // memory
	"machine.maxPassed",                                // how far back a check is compared
	"machine.maxDeletedScan", "machine.maxExpiredScan", // reads
	"machine.maxKeyedScan",                        // reads
	"keyed.MaxAhead",                              // what a server refuses before it is a command
	"keyed.MaxForgetAfter",                        // the same
	"keyed.LastCode",                              // the last of them
	"machine.maxLiveBytes", "machine.maxLiveScan", // reads
}

// constantsOf returns the constants of a directory's package with their values, those within functions
// included. Packages other than the given ones are not looked into.
func constantsOf(
	t *testing.T, fset *token.FileSet, dir string, known map[string]*types.Package,
) (*types.Package, map[string]constant.Value) {
	t.Helper()
	names := must.Get(filepath.Glob(filepath.Join(dir, "*.go")))(t)
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := must.Get(parser.ParseFile(fset, name, nil, parser.SkipObjectResolution))(t)
		files = append(files, file)
	}
	info := &types.Info{Defs: make(map[*ast.Ident]types.Object)}
	config := types.Config{
		Error:    func(error) {}, // of what packages have that are not looked into
		Importer: knownPackages(known),
	}
	// The error says what Error was told.
	pkg, _ := config.Check("github.com/seqledger/seqledger/"+filepath.Base(dir), fset, files, info)
	values := make(map[string]constant.Value)
	for _, object := range info.Defs {
		c, ok := object.(*types.Const)
		if !ok || c.Name() == "_" {
			continue
		}
		name := pkg.Name() + "." + c.Name()
		if _, twice := values[name]; twice {
			t.Errorf("%s is there twice, and the list has names: give one another", name)
		}
		if values[name] = c.Val(); c.Val().Kind() == constant.Unknown {
			t.Errorf("%s: this test cannot tell its value", name)
		}
	}
	return pkg, values
}

// knownPackages is a [types.Importer].
type knownPackages map[string]*types.Package

var errUnknownPackage = errors.New("not looked into")

// Import returns the package if it is a known one.
func (k knownPackages) Import(path string) (*types.Package, error) {
	if p := k[path]; p != nil {
		return p, nil
	}
	return nil, errUnknownPackage
}

// timePackage has the durations of package time.
func timePackage() *types.Package {
	p := types.NewPackage("time", "time")
	duration := types.NewTypeName(token.NoPos, p, "Duration", nil)
	named := types.NewNamed(duration, types.Typ[types.Int64], nil)
	p.Scope().Insert(duration)
	for name, d := range map[string]time.Duration{
		"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
		"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
	} {
		p.Scope().Insert(types.NewConst(token.NoPos, p, name, named, constant.MakeInt64(int64(d))))
	}
	p.MarkComplete()
	return p
}

// formatConstants returns the constants that are part of the format, a line each.
func formatConstants(t *testing.T) map[string]string {
	t.Helper()
	fset, known := token.NewFileSet(), map[string]*types.Package{"time": timePackage()}
	keyedPackage, all := constantsOf(t, fset, "../../internal/keyed", known)
	known["github.com/seqledger/seqledger/internal/keyed"] = keyedPackage
	_, own := constantsOf(t, fset, ".", known)
	maps.Copy(all, own)
	for _, name := range localConstants {
		if _, there := all[name]; !there {
			t.Errorf("there is no constant %s, which is said to be local", name)
		}
		delete(all, name)
	}
	values := make(map[string]string, len(all))
	for name, value := range all {
		values[name] = value.ExactString()
	}
	return values
}

// differences returns a line for each constant that is not the same in both.
func differences(want, got map[string]string) (lines []string) {
	for name, value := range got {
		if was, there := want[name]; !there {
			lines = append(lines, fmt.Sprintf("%s = %s is new", name, value))
		} else if was != value {
			lines = append(lines, fmt.Sprintf("%s was %s and is %s", name, was, value))
		}
	}
	for name, value := range want {
		if _, there := got[name]; !there {
			lines = append(lines, fmt.Sprintf("%s = %s is gone", name, value))
		}
	}
	slices.Sort(lines)
	return lines
}

// TestConstantsOfTheFormat: two programs that differ in a constant that decides or shapes state would decide one log in
// two ways. Such a constant changes only with the version of the log entry. -update writes the list.
func TestConstantsOfTheFormat(t *testing.T) {
	t.Parallel()
	got := formatConstants(t)
	path := filepath.Join("testdata", "constants.txt")
	text, err := os.ReadFile(path)
	if *update {
		var lines []string
		for name, value := range got {
			lines = append(lines, name+" "+value)
		}
		slices.Sort(lines)
		text = []byte(strings.Join(lines, "\n") + "\n")
		err = os.WriteFile(path, text, 0o644)
	}
	must.Do(t, err)
	want := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = value
	}
	for _, line := range differences(want, got) {
		t.Errorf("%s. A constant that decides or shapes state is part of the format; one that does neither belongs in "+
			"localConstants.", line)
	}
	if len(want) < 100 {
		t.Errorf("the list has %d constants, which cannot be all", len(want))
	}
}

// encodings are the names of constants that are numbers of kinds, of outcomes, of versions and of tags. The
// tables of FORMAT.md have them, and the golden files the bytes.
var encodings = regexp.MustCompile(`^machine\.(Op|Condition|Keyed|Table|FirstLocalTable|command|digestTag|entity|expiry|entry` +
	`|record|rowSize|noRow|indexOffset|actorGC)|Version[0-9]*$|VersionKeyed$|Prefix$`)

// TestConstantsAreDocumented: FORMAT.md has each constant that is no number of an encoding, with its value.
func TestConstantsAreDocumented(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../FORMAT.md"))(t)
	want := formatConstants(t)
	codes := regexp.MustCompile(`^(machine|keyed)\.[A-Z][A-Za-z]+$`)
	for name, value := range want {
		// Outcomes and states are numbers of one or two digits; so is what they cannot be told from by name.
		state := codes.MatchString(name) && len(value) <= 2 && !slices.Contains(smallLimits, name)
		if encodings.MatchString(name) || state {
			delete(want, name)
		}
	}
	got := make(map[string]string)
	row := regexp.MustCompile("(?m)^\\| `((?:machine|keyed)\\.[A-Za-z]+)` \\| ([0-9]+) \\|")
	for _, found := range row.FindAllStringSubmatch(string(page), -1) {
		got[found[1]] = found[2]
	}
	for _, line := range differences(got, want) {
		t.Errorf("FORMAT.md: %s", line)
	}
	if len(got) < 40 {
		t.Errorf("FORMAT.md has %d constants, which cannot be all", len(got))
	}
}

// smallLimits are the limits with a value as small as a number of an outcome.
var smallLimits = []string{"machine.BacklogFactor", "keyed.MaxPastAttempts"}

// TestDifferencesOfConstants: every kind of change is seen.
func TestDifferencesOfConstants(t *testing.T) {
	t.Parallel()
	got := differences(map[string]string{"a": "1", "b": "2", "c": "3"}, map[string]string{"a": "1", "b": "3", "d": "4"})
	want := []string{"b was 2 and is 3", "c = 3 is gone", "d = 4 is new"}
	check.EqualSlices(t, got, want, "got %q")
}
