package operation

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// drawn is an operation with its form on the command line and in JSON.
type drawn struct {
	operation *seqledgerv1.Operation
	flags     []string // names and values; nil if flags cannot have it
	short     map[string]any
}

// drawValue draws a value and how JSON has it.
func drawValue(t *rapid.T) ([]byte, any) {
	value := rapid.OneOf(rapid.SliceOfN(rapid.Byte(), 0, 20), rapid.Map(rapid.StringN(0, 20, -1),
		func(s string) []byte { return []byte(s) })).Draw(t, "value")
	if utf8.Valid(value) && rapid.Bool().Draw(t, "as text") {
		return value, string(value)
	}
	return value, map[string]any{"base64": base64.StdEncoding.EncodeToString(value)}
}

// drawKey draws a key that flags can have if plain is set.
func drawKey(t *rapid.T, name string, plain bool) string {
	if plain {
		return rapid.StringMatching(`[a-zé/:. ]{1,12}`).Draw(t, name)
	}
	return rapid.StringN(1, 20, 200).Filter(func(s string) bool { return utf8.ValidString(s) }).Draw(t, name)
}

// drawCondition draws a condition, its flag and its JSON.
func drawCondition(t *rapid.T, key string) (*seqledgerv1.Condition, []string, map[string]any) {
	switch rapid.IntRange(0, 4).Draw(t, "condition") {
	case 1:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}},
			[]string{"if-not-exists", key}, map[string]any{"not_exists": true}
	case 2:
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}},
			[]string{"if-exists", key}, map[string]any{"must_exist": true}
	case 3:
		version := rapid.Uint64().Draw(t, "version")
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: version}},
			[]string{"if-version", key + "=" + strconv.FormatUint(version, 10)}, map[string]any{"version": version}
	case 4:
		value, form := drawValue(t)
		return &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: value}},
			[]string{"if-value", key + "=" + string(value)}, map[string]any{"value_equals": form}
	}
	return nil, nil, nil
}

// drawOperation draws an operation that the ledger takes.
func drawOperation(t *rapid.T, plain bool) drawn {
	kind := rapid.SampledFrom([]string{"set", "delete", "append", "relate", "unrelate"}).Draw(t, "kind")
	switch kind {
	case "append":
		value, form := drawValue(t)
		return drawn{&seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: value}}}, []string{"append", string(value)},
			map[string]any{kind: form}}
	case "relate", "unrelate":
		parts := []string{drawKey(t, "resource", plain), drawKey(t, "relation", plain), drawKey(t, "subject", plain)}
		d := drawn{flags: []string{kind, parts[0] + "#" + parts[1] + "@" + parts[2]}, short: map[string]any{
			kind: map[string]any{"resource": parts[0], "relation": parts[1], "subject": parts[2]}}}
		if kind == "relate" {
			d.operation = &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_CreateRelationship{
				CreateRelationship: &seqledgerv1.CreateRelationship{Resource: parts[0], Relation: parts[1],
					Subject: parts[2]}}}
		} else {
			d.operation = &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteRelationship{
				DeleteRelationship: &seqledgerv1.DeleteRelationship{Resource: parts[0], Relation: parts[1],
					Subject: parts[2]}}}
		}
		return d
	}
	key := drawKey(t, "key", plain)
	condition, flag, form := drawCondition(t, key)
	fields := map[string]any{"key": key}
	if condition != nil {
		fields["condition"] = form
	}
	if kind == "delete" {
		return drawn{&seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
			DeleteEntity: &seqledgerv1.DeleteEntity{Key: key, Condition: condition}}},
			append(flag, "delete", key), map[string]any{kind: fields}}
	}
	value, valueForm := drawValue(t)
	set := &seqledgerv1.SetEntity{Key: key, Value: value, Condition: condition}
	flags := append([]string{"set", key + "=" + string(value)}, flag...)
	fields["value"] = valueForm
	if rapid.Bool().Draw(t, "expires") {
		at := time.Unix(rapid.Int64Range(1, math.MaxInt64/1_000_000_000-1).Draw(t, "at"), 0).UTC()
		set.ExpiresAt, fields["expires_at"] = timestamppb.New(at), at.Format(time.RFC3339Nano)
		flags = append(flags, "expires-at", key+"="+at.Format(time.RFC3339Nano))
	}
	return drawn{&seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: set}}, flags,
		map[string]any{kind: fields}}
}

// TestFormsOfAnOperation: JSON and the flags both mean the operation that was drawn.
func TestFormsOfAnOperation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plain := rapid.Bool().Draw(t, "as flags")
		d := drawOperation(t, plain)
		if err := Check(d.operation); err != nil {
			t.Fatalf("%v: %v", d.operation, err)
		}
		short := must.Get(json.Marshal(d.short))(t)
		for _, text := range [][]byte{short, append(append([]byte(" [ "), short...), " ]\n"...)} {
			got, err := Parse(text)
			if err != nil || len(got) != 1 || !proto.Equal(got[0], d.operation) {
				t.Fatalf("%s is read as %v, %v; want %v", text, got, err, d.operation)
			}
		}
		if !plain || strings.ContainsAny(d.flags[1], "\x00") {
			return
		}
		got, err := given(d.flags...).Build()
		if err != nil || len(got) != 1 || !proto.Equal(got[0], d.operation) {
			t.Fatalf("%q is %v, %v; want %v", d.flags, got, err, d.operation)
		}
		verb, object := Describe(d.operation)
		if verb == "unknown" || object == "" && verb != "append" || strings.ContainsAny(object, "\n\t\x1b") {
			t.Fatalf("%v is shown as %s %q", d.operation, verb, object)
		}
	})
}

// TestASmallChangeIsNotTakenSilently: a text with a name that is misspelt, or has one field more, is refused.
func TestASmallChangeIsNotTakenSilently(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawOperation(t, false)
		for kind, fields := range d.short {
			m, ok := fields.(map[string]any)
			if !ok || kind == "append" {
				return // a value alone
			}
			m[rapid.SampledFrom([]string{"extra", "Key", "expire", "conditions", "ttl"}).Draw(t, "name")] = "x"
		}
		text := must.Get(json.Marshal(d.short))(t)
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), "unknown field") {
			t.Fatalf("%s is read as %v, %v", text, got, err)
		}
	})
}

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
