package main

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// parseFlags runs the real grammar over a write's flags and returns its
// operations.
func parseFlags(t *testing.T, args ...string) ([]*seqledgerv1.Operation, error) {
	t.Helper()
	var cli commandLine
	var out bytes.Buffer
	flags := new(operation.Flags)
	parser := must.Get(newParser(&cli, flags, new(configSource), &out, &out))(t)
	if _, err := parser.Parse(append([]string{"write", "--client-id", "c"}, args...)); err != nil {
		return nil, err
	}
	return flags.Build()
}

// describe shows operations as one text.
func describe(operations []*seqledgerv1.Operation) string {
	var parts []string
	for _, op := range operations {
		verb, what := operation.Describe(op)
		parts = append(parts, verb+" "+what)
	}
	return strings.Join(parts, "; ")
}

// TestOperationsHaveFlags: each kind that the help has is a flag of write, and only those are.
func TestOperationsHaveFlags(t *testing.T) {
	t.Parallel()
	choices := (*seqledgerv1.Operation)(nil).ProtoReflect().Descriptor().Oneofs().ByName("operation").Fields()
	write := reflect.TypeFor[writeCommand]()
	for i := range choices.Len() {
		m := new(seqledgerv1.Operation)
		m.ProtoReflect().Mutable(choices.Get(i))
		verb, _ := operation.Describe(m)
		_, hasFlag := write.FieldByName(strings.ToUpper(verb[:1]) + verb[1:])
		if hasHelp := strings.Contains(operation.Help, fmt.Sprintf("{%q: ", verb)); hasHelp != hasFlag {
			t.Errorf("%s: has help: %t, has a flag: %t", verb, hasHelp, hasFlag)
		}
	}
}

// TestOperationFlags: the parser hands the flags on as they are. What they mean is tested in package operation.
func TestOperationFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--set", "k=v=w,x"}, "set k=v=w,x"},
		{[]string{"--append=-5"}, "append -5"},
		// The order of the command line, across different flags.
		{[]string{"--append", "1", "--set", "a=2", "--delete", "b", "--append", "3", "--set", "c=4", "--relate",
			"r#s@t"},
			"append 1; set a=2; delete b; append 3; set c=4; relate r#s@t"},
	} {
		operations, err := parseFlags(t, test.args...)
		if got := describe(operations); err != nil || got != test.want {
			t.Errorf("%v: want %q, got %q, %v", test.args, test.want, got, err)
		}
	}
}
