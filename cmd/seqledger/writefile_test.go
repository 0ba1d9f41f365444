package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// write --file commits each line, says what became of each, and repeats safely.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := func(file string, more ...string) result {
		return s.do(t, append([]string{"write", "--scope", "acme/main", "--client-id", "till-7", "--file", file},
			more...)...)
	}
	file := writeFile(t, "writes.jsonl", `[{"set": {"key": "a", "value": "1"}}, {"append": "x"}]
[{"append": "y"}]
[{"set": {"key": "a", "value": "2"}}]`)
	first := write(file).expect(t, 0)
	if !strings.Contains(first.stderr, "writing sequences 1 to 3, session 0") ||
		strings.Count(first.stdout, "committed") != 3 || strings.Contains(first.stdout, "before") {
		t.Error(first)
	}
	again := write(file, "--sequence", "1").expect(t, 0)
	if strings.Count(again.stdout, "committed before") != 3 {
		t.Error("a repeat:", again)
	}
	for i, line := range strings.Split(strings.TrimSpace(first.stdout), "\n")[1:] {
		id := strings.Fields(line)[2]
		check.Contains(t, again.stdout, id, "line %d has another transaction when it is repeated", i+1)
	}
	s.do(t, "get", "--scope", "acme/main", "a").expect(t, 0)

	// A refused line leaves a gap behind it; after it is mended the rest goes on.
	refused := write(writeFile(t, "refused.jsonl", `[{"append": "z"}]
[{"set": {"key": "a", "value": "3", "condition": {"not_exists": true}}}]
[{"append": "behind"}]`)).expect(t, 3)
	if !strings.Contains(refused.stderr, "line 2: ") || !strings.Contains(refused.stderr, "--sequence 5") ||
		strings.Count(refused.stdout, "  committed\n") != 1 || !strings.Contains(refused.stdout, "SEQUENCE_GAP") {
		t.Error("a refused line:", refused)
	}
	rest := write(writeFile(t, "rest.jsonl", `[{"set": {"key": "a", "value": "3"}}]
[{"append": "behind"}]
`),
		"--sequence", "5", "--json").expect(t, 0)
	if strings.Count(rest.stdout, `"receipt"`) != 2 || strings.Count(rest.stdout, "\n") != 1 {
		t.Error("as JSON:", rest)
	}
}

// What is wrong with a file or its flags is said before anything is sent.
func TestWriteFileIsChecked(t *testing.T) {
	t.Parallel()
	s := serve(t)
	good := writeFile(t, "good.jsonl", "[{\"append\": \"x\"}]\n")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"with a key":      {[]string{"--file", good, "--key", "0197e1c0-0000-7000-8000-000000000001"}, "--key"},
		"with operations": {[]string{"--file", good, "--operations", good}, "--operations"},
		"an empty file":   {[]string{"--file", writeFile(t, "empty", "")}, "has no line"},
		"a bad line": {[]string{"--file", writeFile(t, "bad", "[{\"append\": \"x\"}]\n[{\"oppend\": \"x\"}]\n")},
			"line 2"},
		"too many lines": {[]string{"--file", writeFile(t, "many", strings.Repeat("[{\"append\": \"x\"}]\n", 1_001))},
			"seqledger import"},
		"too long": {[]string{"--file", writeFile(t, "long",
			strings.Repeat(fmt.Sprintf("[{\"append\": \"%s\"}]\n", strings.Repeat("x", 1<<20-64)), 17))},
			"seqledger import"},
		"no sequences left": {[]string{"--file", writeFile(t, "two", strings.Repeat("[{\"append\": \"x\"}]\n", 2)),
			"--sequence", "18446744073709551615"}, "sequences left"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := s.do(t, append([]string{"write", "--scope", "acme/main", "--client-id", "c"}, test.args...)...)
			if got.code == 0 || !strings.Contains(got.stderr, test.want) || got.stdout != "" {
				t.Errorf("want an error with %q, got %+v", test.want, got)
			}
		})
	}
}
