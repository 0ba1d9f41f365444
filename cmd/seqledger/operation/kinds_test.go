package operation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestOperationKinds: every kind of the API is in the table, with a line of help if users can ask
// for it, and each entry is about its own kind.
func TestOperationKinds(t *testing.T) {
	t.Parallel()
	choices := (*seqledgerv1.Operation)(nil).ProtoReflect().Descriptor().Oneofs().ByName("operation").Fields()
	if choices.Len() != len(operationKinds) {
		t.Errorf("the API has %d kinds, the table %d", choices.Len(), len(operationKinds))
	}
	for i := range choices.Len() {
		m := new(seqledgerv1.Operation)
		m.ProtoReflect().Mutable(choices.Get(i))
		kind, _ := kindOf(m)
		if kind == nil {
			t.Errorf("%s is not in the table", choices.Get(i).Name())
			continue
		}
		if kindNamed(kind.verb) != kind {
			t.Errorf("%s shares the verb %s", choices.Get(i).Name(), kind.verb)
		}
		// an append alone may be empty
		check.Equal(t, (Check(m) == nil), kind.verb == "append", "an empty %s: %v", kind.verb)
		if verb, _ := Describe(m); verb != kind.verb {
			t.Errorf("%s is shown as %s", kind.verb, verb)
		}
		hasHelp := strings.Contains(Help, fmt.Sprintf("{%q: ", kind.verb))
		for what, has := range map[string]bool{"help": hasHelp, "form in JSON": kind.parse != nil} {
			if has != (kind.flag != nil) {
				t.Errorf("%s: has a %s: %t, can be given as a flag: %t", kind.verb, what, has, kind.flag != nil)
			}
		}
	}
	if kind, _ := kindOf(new(seqledgerv1.Operation)); kind != nil {
		t.Error("an operation of no kind is", kind.verb)
	}
}
