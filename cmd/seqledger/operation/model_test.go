package operation

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestLimitsOfOperations: what the ledger would refuse in any state is refused before it is sent, with the field's
// name, and what it takes at its limit is not.
func TestLimitsOfOperations(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("k", machine.MaxKeyBytes)
	value := make([]byte, machine.MaxValueBytes)
	set := func(s *seqledgerv1.SetEntity) *seqledgerv1.Operation {
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: s}}
	}
	relate := func(resource, relation, subject string) *seqledgerv1.Operation {
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_CreateRelationship{
			CreateRelationship: &seqledgerv1.CreateRelationship{Resource: resource, Relation: relation,
				Subject: subject}}}
	}
	equals := func(v []byte) *seqledgerv1.Condition {
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: v}}
	}
	expiring := func(seconds int64, nanos int32) *seqledgerv1.Operation {
		at := &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}
		return set(&seqledgerv1.SetEntity{Key: "k", ExpiresAt: at})
	}
	for name, test := range map[string]struct {
		operation *seqledgerv1.Operation
		says      string
	}{
		"longest key":    {set(&seqledgerv1.SetEntity{Key: text, Value: value, Condition: equals(value)}), ""},
		"longer key":     {set(&seqledgerv1.SetEntity{Key: text + "k"}), "key must have 1 to"},
		"no key":         {set(&seqledgerv1.SetEntity{}), "key must have 1 to"},
		"a key of bytes": {set(&seqledgerv1.SetEntity{Key: "\xff"}), "key must have 1 to"},
		"longer value":   {set(&seqledgerv1.SetEntity{Key: "k", Value: append(value, 0)}), "value has 1048577 bytes"},
		"longer comparison": {set(&seqledgerv1.SetEntity{Key: "k", Condition: equals(append(value, 0))}),
			"value_equals has"},
		"no condition": {set(&seqledgerv1.SetEntity{Key: "k", Condition: new(seqledgerv1.Condition)}),
			"condition must be one of"},
		"at once":            {expiring(0, 1), ""},
		"in 1970":            {expiring(0, 0), "expires_at must be after 1970"},
		"no time":            {expiring(1, -1), "expires_at must"},
		"too late":           {expiring(math.MaxInt64/1_000_000_000, 999_999_999), "expires_at must"},
		"the last moment":    {expiring(math.MaxInt64/1_000_000_000, math.MaxInt64%1_000_000_000), ""},
		"longest parts":      {relate(text, text, text), ""},
		"no resource":        {relate("", "b", "c"), "resource must have"},
		"longer relation":    {relate("a", text+"k", "c"), "relation must have"},
		"a subject of bytes": {relate("a", "b", "\xff"), "subject must have"},
		"nothing":            {new(seqledgerv1.Operation), "has no operation"},
	} {
		err := Check(test.operation)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: want %q, got %v", name, test.says, err)
		}
	}
}

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
