package main

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/machine"
)

// TestParseOperations reads testdata/operations.txt: a line of JSON, " => ", and
// what it means, or "error: " and a part of the message.
func TestParseOperations(t *testing.T) {
	t.Parallel()
	cases, err := os.ReadFile("testdata/operations.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(cases)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		input, want, ok := strings.Cut(line, " => ")
		if !ok {
			t.Fatalf("no arrow in %q", line)
		}
		operations, err := parseOperations([]byte(input))
		if message, isError := strings.CutPrefix(want, "error: "); isError {
			if err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%s\nwant an error with %q, got %q, %v", input, message, describe(operations), err)
			} else if word := innerWord(err.Error()); word != "" {
				t.Errorf("%s\nthe error has %q, which is internal to the program: %v", input, word, err)
			}
			continue
		}
		if got := describe(operations); err != nil || got != want {
			t.Errorf("%s\nwant %q, got %q, %v", input, want, got, err)
		}
	}
}

// innerWord returns a part of a message that users must not see: words of Go and of libraries,
// or unprintable characters. It returns "" if there is none.
func innerWord(message string) string {
	for _, word := range []string{
		"Go value", "main.", "json:", "proto:", "strconv", "parsing time", "2006-01-02", "time:",
		"slog:", "client:", "server:", "Options.",
		"x509:", "tls:", "\ufffd", "\u00a0", "%!", "nil",
	} {
		if strings.Contains(message, word) {
			return word
		}
	}
	return ""
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
		{"deep", strings.Repeat("[", 100) + strings.Repeat("]", 100), "nested"},
		{"not UTF-8", "{\"append\": \"\xff\"}", "UTF-8"},
	} {
		_, err := parseOperations([]byte(test.input))
		if (err == nil) != (test.refused == "") || err != nil && !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%s: want %q, got %v", test.name, test.refused, err)
		}
	}
}

// FuzzParseOperations checks that whatever is accepted is what the ledger would
// accept, and means the same in the form of the API.
func FuzzParseOperations(f *testing.F) {
	cases, err := os.ReadFile("testdata/operations.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(cases)) {
		input, _, _ := strings.Cut(line, " => ")
		f.Add([]byte(input))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		operations, err := parseLine(modeOperations, line)
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
			if err := checkOperation(operation); err != nil {
				t.Fatalf("%q was accepted: %v", line, err)
			}
			text, err := protojson.Marshal(operation)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			again, err := parseOperations(text)
			if err != nil || len(again) != 1 || !proto.Equal(operation, again[0]) {
				t.Fatalf("%q is %s, which reads as %v, %v", line, text, again, err)
			}
		}
	})
}
