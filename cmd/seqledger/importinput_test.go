package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// ignore looks at no line.
func ignore(uint64, []*seqledgerv1.Operation) {}

func TestInputReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 700<<10) // longer than the reader's buffer
	for _, test := range []struct {
		input string
		want  []string
	}{
		{"", nil},
		{"\n", []string{""}},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"a\nb", []string{"a", "b"}},
		{"a\n\nb\r\n", []string{"a", "", "b\r"}},
		{long + "\n" + long, []string{long, long}},
	} {
		for _, source := range []io.Reader{strings.NewReader(test.input),
			iotest.HalfReader(strings.NewReader(test.input))} {
			r := newInputReader(source)
			var got []string
			line, err := r.next()
			for ; err == nil; line, err = r.next() {
				got = append(got, string(line))
			}
			digest := sha256.Sum256([]byte(test.input))
			want := inputSummary{SHA256: hex.EncodeToString(digest[:]),
				Size: int64(len(test.input)), Lines: uint64(len(test.want))}
			if !errors.Is(err, io.EOF) || !slices.Equal(got, test.want) || r.summary() != want {
				t.Errorf("%.20q: want %d lines and %+v, got %d lines, %+v, %v", test.input,
					len(test.want), want, len(got), r.summary(), err)
			}
		}
	}
}

func TestInputReaderErrors(t *testing.T) {
	t.Parallel()
	tooLong := io.MultiReader(strings.NewReader("first\n"), bytes.NewReader(make([]byte, maxLineBytes+2)))
	_, err := survey(t.Context(), tooLong, modeLines, nil)
	if bad, ok := errors.AsType[*lineError](err); !ok || bad.line != 2 {
		t.Errorf("want an error about line 2, got %v", err)
	}
	broken := errors.New("the disk is gone")
	if _, err := survey(t.Context(), iotest.ErrReader(broken), modeLines, ignore); !errors.Is(err, broken) {
		t.Errorf("want the reader's error, got %v", err)
	}
}

// TestParseLineKeepsNothing expects the payload of a line to be a copy: the
// reader uses its buffer for the next line while this one is being sent.
func TestParseLineKeepsNothing(t *testing.T) {
	t.Parallel()
	for mode, line := range map[string]string{modeLines: "abc", modeOperations: `{"append": "abc"}`} {
		buffer := []byte(line)
		operations, err := parseLine(mode, buffer)
		if err != nil {
			t.Fatal(err)
		}
		clear(buffer)
		if got := string(operations[0].GetAppend().GetPayload()); got != "abc" {
			t.Errorf("%s: want abc after the buffer was used again, got %q", mode, got)
		}
	}
}

func TestImportStateFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	if state, err := loadImportState(path); state != nil || err != nil {
		t.Errorf("want nothing for an absent file, got %v, %v", state, err)
	}
	want := importState{
		Format: importFormat, LedgerID: "0123456789abcdef", Organization: "a/b", Vault: "c",
		ClientID: "loader", Server: "s", Mode: modeLines,
		inputSummary: inputSummary{SHA256: "ab", Size: 5, Lines: 2}, AttemptID: strings.Repeat("0f", 16),
		Session: 1 << 63, Base: 1<<64 - 9, Done: true,
	}
	for range 2 { // the second one replaces the first
		if err := want.save(path); err != nil {
			t.Fatal(err)
		}
		got, err := loadImportState(path)
		if err != nil || *got != want {
			t.Errorf("want %+v, got %+v, %v", want, got, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("want the state file alone, got %v", left)
	}
	for name, content := range map[string]string{
		"cut off": `{"format": 1`, "other format": `{"format": 2}`, "unknown field": `{"format": 1, "x": 1}`,
		"short attempt": `{"format": 1, "attempt_id": "ab"}`, "no hex": `{"format": 1, "attempt_id": "xyz"}`,
		"empty": "",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if state, err := loadImportState(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: want an error that names the file, got %v, %v", name, state, err)
		}
	}
}

func TestSameImport(t *testing.T) {
	t.Parallel()
	input := inputSummary{SHA256: strings.Repeat("ab", 32), Size: 5, Lines: 2}
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	state := importState{Organization: "acme", Vault: "main", ClientID: "c", Mode: modeLines, inputSummary: input}
	if err := state.sameImport(scope, "c", modeLines, input); err != nil {
		t.Errorf("want no difference, got %v", err)
	}
	changed := input
	changed.SHA256 = strings.Repeat("cd", 32)
	for name, err := range map[string]error{
		"organization": state.sameImport(&seqledgerv1.Scope{Organization: "other", Vault: "main"}, "c", modeLines,
			input),
		"vault":  state.sameImport(&seqledgerv1.Scope{Organization: "acme"}, "c", modeLines, input),
		"client": state.sameImport(scope, "d", modeLines, input),
		"mode":   state.sameImport(scope, "c", modeOperations, input),
		"digest": state.sameImport(scope, "c", modeLines, changed),
	} {
		if err == nil {
			t.Errorf("%s: want a difference", name)
		}
	}
}
