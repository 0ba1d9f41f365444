package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
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

func TestOperationFlags(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "value", "\x00")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--set", "k=v"}, "set k=v"},
		{[]string{"--set", "k=v=w,x"}, "set k=v=w,x"},
		{[]string{"--set", "k="}, "set k="},
		{[]string{"--append=-5"}, "append -5"},
		{[]string{"--set-file", "k=" + file}, "set k=base64:AA=="},
		{[]string{"--append-file", file}, "append base64:AA=="},
		{[]string{"--relate", "doc:1#viewer@user:a@b.c"}, "relate doc:1#viewer@user:a@b.c"},
		{[]string{"--unrelate", "doc:1#viewer@u"}, "unrelate doc:1#viewer@u"},
		// The order of the command line, across different flags.
		{[]string{"--append", "1", "--set", "a=2", "--delete", "b", "--append", "3", "--set", "c=4", "--relate",
			"r#s@t"},
			"append 1; set a=2; delete b; append 3; set c=4; relate r#s@t"},
		// A condition finds its operation from before and from behind.
		{[]string{"--if-not-exists", "a", "--set", "a=1", "--delete", "b", "--if-version", "b=7"},
			"set a=1  if absent; delete b  if version 7"},
		{[]string{"--set", "a=1", "--if-exists", "a", "--set", "b=1", "--if-value", "b=x=y"},
			"set a=1  if present; set b=1  if value x=y"},
		{[]string{"--set", "a=1", "--expires-at", "a=2030-01-31T12:00:00Z"}, "set a=1  expires 2030-01-31T12:00:00Z"},
	} {
		operations, err := parseFlags(t, test.args...)
		if got := describe(operations); err != nil || got != test.want {
			t.Errorf("%v: want %q, got %q, %v", test.args, test.want, got, err)
		}
	}
}

func TestOperationFlagsRefused(t *testing.T) {
	t.Parallel()
	big := writeFile(t, "big", strings.Repeat("x", machine.MaxValueBytes+1))
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"--set", "k"}, "KEY="},
		{[]string{"--set", "=v"}, "key must have 1"},
		{[]string{"--delete", strings.Repeat("k", 1025)}, "key must have 1"},
		{[]string{"--set-file", "k=" + filepath.Join(t.TempDir(), "absent")}, "no such file"},
		{[]string{"--append-file", big}, "more than"},
		{[]string{"--append-file", os.TempDir()}, "directory"},
		{[]string{"--relate", "a#b"}, "RESOURCE#RELATION@SUBJECT"},
		{[]string{"--relate", "a@b#c"}, "RESOURCE#RELATION@SUBJECT"},
		{[]string{"--relate", "a#@c"}, "relation must have"},
		{[]string{"--if-exists", "k"}, "no --set"},
		{[]string{"--append", "k", "--if-exists", "k"}, "no --set"},
		{[]string{"--set", "k=1", "--delete", "k", "--if-exists", "k"}, "2 times"},
		{[]string{"--set", "k=1", "--if-exists", "k", "--if-version", "k=1"}, "condition already"},
		{[]string{"--set", "k=1", "--if-version", "k=x"}, "number"},
		{[]string{"--set", "k=1", "--expires-at", "k=tomorrow"}, "is not a time"},
		{[]string{"--delete", "k", "--expires-at", "k=2030-01-31T12:00:00Z"}, "cannot expire"},
		{[]string{"--set", "k=1", "--expires-at", "k=2030-01-31T12:00:00Z", "--expires-at", "k=2031-01-31T12:00:00Z"},
			"already"},
	} {
		operations, err := parseFlags(t, test.args...)
		if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "--") {
			t.Errorf("%.60q: want an error that names the flag and says %q, got %q, %v",
				test.args, test.says, describe(operations), err)
		}
	}
}
