package importing

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

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
			want := Summary{SHA256: hex.EncodeToString(digest[:]),
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
	tooLong := io.MultiReader(strings.NewReader("first\n"), bytes.NewReader(make([]byte, MaxLineBytes+2)))
	_, err := Survey(t.Context(), tooLong, ModeLines, nil)
	if bad, ok := errors.AsType[*LineError](err); !ok || bad.Line != 2 {
		t.Errorf("want an error about line 2, got %v", err)
	}
	broken := errors.New("the disk is gone")
	if _, err := Survey(t.Context(), iotest.ErrReader(broken), ModeLines, ignore); !errors.Is(err, broken) {
		t.Errorf("want the reader's error, got %v", err)
	}
}

// TestParseLineKeepsNothing expects the payload of a line to be a copy: the
// reader uses its buffer for the next line while this one is being sent.
func TestParseLineKeepsNothing(t *testing.T) {
	t.Parallel()
	for mode, line := range map[string]string{ModeLines: "abc", ModeOperations: `{"append": "abc"}`} {
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
	if state, err := Load(path); state != nil || err != nil {
		t.Errorf("want nothing for an absent file, got %v, %v", state, err)
	}
	want := State{
		Format: Format, LedgerID: "0123456789abcdef", Organization: "a/b", Vault: "c",
		ClientID: "loader", Server: "s", Mode: ModeLines,
		Summary: Summary{SHA256: "ab", Size: 5, Lines: 2}, AttemptID: strings.Repeat("0f", 16),
		Session: 1 << 63, Base: 1<<64 - 9, Done: true,
	}
	for range 2 { // the second one replaces the first
		if err := want.Save(path); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
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
		if state, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: want an error that names the file, got %v, %v", name, state, err)
		}
	}
}

// TestProgressLines feeds an import's progress without a terminal: a line seldom
// and nothing at all with --json.
func TestProgressLines(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	notice := func(format string, args ...any) { _, _ = fmt.Fprintf(&stderr, format+"\n", args...) }
	p := NewProgress(&stderr, notice, 1000, 100)
	p.To(200)
	if out := stderr.String(); out != "" {
		t.Errorf("want nothing at first, got %q", out)
	}
	p.began = p.began.Add(-10 * time.Second)
	p.told = p.told.Add(-2 * progressEvery)
	p.To(600)
	p.To(601)
	out := stderr.String()
	if strings.Count(out, "\n") != 1 || !strings.Contains(out, "imported 600 of 1000 lines") ||
		!strings.Contains(out, "left") {
		t.Errorf("want one line about 600 lines and the time left, got %q", out)
	}
	p.End()
	quiet := NewProgress(&stderr, nil, 1000, 0)
	quiet.told = quiet.told.Add(-2 * progressEvery)
	quiet.To(600)
	quiet.End()
	if stderr.String() != out {
		t.Errorf("want silence, got %q", stderr.String())
	}
}
