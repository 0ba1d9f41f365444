package operation

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestParseOperations reads testdata/operations.txt: a line of JSON, " => ", and
// what it means, or "error: " and a part of the message.
func TestParseOperations(t *testing.T) {
	t.Parallel()
	cases := must.Get(os.ReadFile("testdata/operations.txt"))(t)
	for line := range strings.Lines(string(cases)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		input, want, ok := strings.Cut(line, " => ")
		if !ok {
			t.Fatalf("no arrow in %q", line)
		}
		operations, err := Parse([]byte(input))
		if message, isError := strings.CutPrefix(want, "error: "); isError {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%s\nwant an error with %q, got %q, %v", input, message, describe(operations), err)
			} else if word := innerWord.FindString(err.Error()); word != "" {
				t.Errorf("%s\nthe error has %q, which is internal to the program: %v", input, word, err)
			}
			continue
		}
		if got := describe(operations); err != nil || got != want {
			t.Errorf("%s\nwant %q, got %q, %v", input, want, got, err)
		}
	}
}

// innerWord matches what users must not see in a message: words of Go and of libraries, and
// characters that cannot be printed.
var innerWord = regexp.MustCompile("Go value|json:|proto:|strconv|parsing time|2006-01-02|time:|\ufffd|\u00a0|%!|nil")

// describe shows operations as one text.
func describe(operations []*seqledgerv1.Operation) string {
	var parts []string
	for _, operation := range operations {
		verb, what := Describe(operation)
		parts = append(parts, verb+" "+what)
	}
	return strings.Join(parts, "; ")
}

func TestParseOperationsLimits(t *testing.T) {
	t.Parallel()
	text := func(n int) string { return strings.Repeat("x", n) }
	value := func(n int) string { return `{"set": {"key": "k", "value": "` + text(n) + `"}}` }
	array := func(item string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	for _, test := range []struct{ name, input, refused string }{
		{"largest value", value(machine.MaxValueBytes), ""},
		{"larger value", value(machine.MaxValueBytes + 1), "at most"},
		{"longest key", `{"delete": {"key": "` + text(machine.MaxKeyBytes) + `"}}`, ""},
		{"longer key", `{"delete": {"key": "` + text(machine.MaxKeyBytes+1) + `"}}`, "key must have"},
		{"most operations", array(`{"append": "x"}`, machine.MaxOperations), ""},
		{"more operations", array(`{"append": "x"}`, machine.MaxOperations+1), "1 to 1000"},
		{"large write", array(value(machine.MaxValueBytes), 3), ""},
		{"larger write", array(value(machine.MaxValueBytes), 5), "together"},
		{"deep", strings.Repeat("[", 100) + strings.Repeat("]", 100), "object"},
		{"not UTF-8", "{\"append\": \"\xff\"}", "UTF-8"},
	} {
		_, err := Parse([]byte(test.input))
		if (err == nil) != (test.refused == "") || err != nil && !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%s: want %q, got %v", test.name, test.refused, err)
		}
	}
}

// FuzzOperationFlags: flags make only operations that the ledger accepts. Each line is a flag and its value.
func FuzzOperationFlags(f *testing.F) {
	for _, text := range []string{
		"set a=b\nif-not-exists a\nexpires-at a=2030-01-31T12:00:00Z", "delete a\nif-version a=17",
		"if-value a==\nset a=",
		"relate doc:1#viewer@user:ann@example.com\nunrelate #@", "append text\nappend", "set a=1\nset a=2\nif-exists a",
		"set a=b\nexpires-at a=0001-01-01T00:00:00Z", "set =\nset", "if-version a=-1\ndelete a",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var flags Flags
		for line := range strings.SplitSeq(text, "\n") {
			name, value, _ := strings.Cut(line, " ")
			if strings.HasSuffix(name, "-file") {
				continue // must not read what a fuzzer names
			}
			flags.list = append(flags.list, operationFlag{name, value})
		}
		operations, err := flags.Build()
		if err != nil {
			if !strings.HasPrefix(err.Error(), "--") {
				t.Errorf("%v does not name the flag", err)
			}
			return
		}
		if len(operations) > len(flags.list) {
			t.Errorf("%d flags made %d operations", len(flags.list), len(operations))
		}
		for _, operation := range operations {
			check.Is(t, Check(operation), nil, "%q made %v", text, operation)
		}
	})
}

// FuzzParseOperations: what is accepted is what the ledger accepts.
func FuzzParseOperations(f *testing.F) {
	cases := must.Get(os.ReadFile("testdata/operations.txt"))(f)
	for line := range strings.Lines(string(cases)) {
		input, _, _ := strings.Cut(line, " => ")
		f.Add([]byte(input))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		operations, err := Parse(line)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\u00a0") {
				t.Fatalf("%q: the error %q is not one plain line", line, err)
			}
			return
		}
		if len(operations) == 0 {
			t.Fatalf("%q was accepted and has no operation", line)
		}
		for _, operation := range operations {
			must.Do(t, Check(operation), "%q was accepted", line)
		}
	})
}
