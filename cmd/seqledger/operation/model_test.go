package operation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// TestExplanationsOfJSON say where a text stops being JSON, by its bytes, in one line.
func TestExplanationsOfJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"append": }`: "unexpected '}' at byte 12", `{'append': 1}`: "unexpected '\\'' at byte 2",
		`{"append": "a",}`: "unexpected '}' at byte 16", `{"append" "a"}`: "unexpected '\"' at byte 11",
		`{"append": tru}`: "unexpected '}' at byte 15", "{\"append\": \"a\nb\"}": "unexpected '\\n' at byte 14",
		`[{"append": "a"}`: "is empty or cut off", `{"append": "\x"}`: "unexpected '\\\\' at byte 13",
		` `:                       "is empty or cut off",
		"{\"append\": \"a\"}\x00": "has something after its JSON value", "\xef\xbb\xbf{}": "is not JSON",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.ContainsAny(err.Error(), "\n") {
			t.Errorf("%q: want %q, got %v", text, want, err)
		}
	}
}

// TestFilesOfValues are read as they are, up to the largest value; nothing else is taken for a file.
func TestFilesOfValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"empty": {}, "bytes": {0, 1, 0xff, '\n'}, "largest": make([]byte, machine.MaxValueBytes),
	} {
		path := filepath.Join(dir, name+"=file") // the first equals sign ends the key
		must.Do(t, os.WriteFile(path, content, 0o600))
		got, err := given("set-file", "k="+path, "append-file", path).Build()
		if err != nil || len(got) != 2 || string(got[0].GetSetEntity().GetValue()) != string(content) ||
			string(got[1].GetAppend().GetPayload()) != string(content) {
			t.Errorf("%s: %d operations, %v", name, len(got), err)
		}
		check.Equal(t, string(must.Get(given("append", path).Build())(t)[0].GetAppend().GetPayload()), path,
			"--append takes a path for a file: %v")
	}
	check.Is(t, check.Err(given("append-file", filepath.Join(dir, "none")).Build()), os.ErrNotExist,
		"a file that is not there")
}
