package wire

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A kind of operation that is new in the API is added in these places, and in no other. Each names every kind, in its
// own words, as often as it has to tell the kinds apart.
var places = []struct {
	file  string
	name  string // %s is the kind, such as SetEntity
	times int    // at least
	what  string
}{
	{"internal/wire/message/operation.go", "Operation_%s", 2, "ReadOperation and Message"},
	{"internal/wire/message/operation.go", "%s", 3, "the Kind, ReadOperation and Message"},
	{"internal/wire/message/canonical.go", "%s", 1, "appendOperation"},
	{"ledger/machine/types.go", "Op%s", 1, "the OperationKind"},
	{"ledger/machine/limits.go", "Op%s", 1, "Operation.validate"},
	{"ledger/machine/operation.go", "Op%s", 2, "appendOperation and decodeOperation"},
	{"ledger/machine/write.go", "Op%s", 1, "what it does"},
	{"ledger/machine/audit.go", "Op%s", 1, "what it has done"},
	{"client/op/op.go", "%s", 1, "its constructor"},
	{"cmd/seqledger/operation/kinds.go", "%s", 1, "the table operationKinds"},
}

// kindNames returns the names of the kinds, in the API's order, as Go has them.
func kindNames() (names []string) {
	choices := (*seqledgerv1.Operation)(nil).ProtoReflect().Descriptor().Oneofs().ByName("operation").Fields()
	for i := range choices.Len() {
		name := ""
		for word := range strings.SplitSeq(string(choices.Get(i).Name()), "_") {
			name += strings.ToUpper(word[:1]) + word[1:]
		}
		names = append(names, name)
	}
	return names
}

// missingKinds returns a line for each kind that a place does not name. A source is read without its comments.
func missingKinds(read func(file string) ([]byte, error), kinds []string) (missing []string) {
	for _, p := range places {
		source, err := read(p.file)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v: the table of places must follow", p.file, err))
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), p.file, source, parser.SkipObjectResolution)
		if err != nil {
			missing = append(missing, err.Error())
			continue
		}
		found := make(map[string]int)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if identifier, ok := n.(*ast.Ident); ok {
				found[identifier.Name]++
			}
			return true
		})
		for _, kind := range kinds {
			if p.file == "client/op/op.go" && kind == "ExpireEntity" {
				continue // the ledger alone makes it
			}
			if name := fmt.Sprintf(p.name, kind); found[name] < p.times {
				missing = append(missing, fmt.Sprintf("%s names %s %d times, not %d: %s",
					p.file, name, found[name], p.times, p.what))
			}
		}
	}
	return missing
}

func readSource(file string) ([]byte, error) {
	return os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
}

// TestPlacesOfAnOperation fails for a kind of operation that is not in every place, and names the file.
func TestPlacesOfAnOperation(t *testing.T) {
	t.Parallel()
	kinds := kindNames()
	if len(kinds) < 6 || !slices.Contains(kinds, "SetEntity") {
		t.Fatal("the API has other kinds:", kinds)
	}
	for _, line := range missingKinds(readSource, kinds) {
		t.Error(line)
	}
	// A kind to come is missing everywhere.
	if n := len(missingKinds(readSource, []string{"MoveEntity"})); n != len(places) {
		t.Errorf("a new kind is missed in %d of %d places", n, len(places))
	}
	// A kind that one place forgets is missing there.
	for _, p := range places {
		kind := "CreateRelationship"
		forgets := regexp.MustCompile(`\b` + fmt.Sprintf(p.name, kind) + `\b`)
		missing := missingKinds(func(file string) ([]byte, error) {
			source, err := readSource(file)
			if file == p.file {
				source = forgets.ReplaceAll(source, []byte("Forgotten"))
			}
			return source, err
		}, []string{kind})
		if len(missing) == 0 || !strings.HasPrefix(missing[0], p.file) {
			t.Errorf("%s forgets %s, and the test says %q", p.file, kind, missing)
		}
	}
}

// TestKindsHaveOneNumber: what the conversion of an operation rests on.
func TestKindsHaveOneNumber(t *testing.T) {
	t.Parallel()
	for kind, want := range map[message.Kind]machine.OperationKind{
		message.SetEntity: machine.OpSetEntity, message.DeleteEntity: machine.OpDeleteEntity,
		message.CreateRelationship: machine.OpCreateRelationship,
		message.DeleteRelationship: machine.OpDeleteRelationship,
		message.Append:             machine.OpAppend, message.ExpireEntity: machine.OpExpireEntity,
	} {
		check.Equal(t, machine.OperationKind(kind), want, "the kind %d is %d in the state machine: %v", kind, want)
	}
}
