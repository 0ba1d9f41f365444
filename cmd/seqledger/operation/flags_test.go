package operation

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// given are flags as a command line has them: a name and a value each.
func given(pairs ...string) *Flags {
	flags := new(Flags)
	for i := 0; i < len(pairs); i += 2 {
		flags.list = append(flags.list, operationFlag{pairs[i], pairs[i+1]})
	}
	return flags
}

func TestFlagsBuild(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "value")
	must.Do(t, os.WriteFile(file, []byte{0}, 0o600))
	for _, test := range []struct {
		flags *Flags
		want  string
	}{
		{given("append", "1", "set", "a=2", "delete", "b", "append", "3"), "append 1; set a=2; delete b; append 3"},
		{given("set-file", "k="+file, "append-file", file), "set k=base64:AA==; append base64:AA=="},
		{given("if-not-exists", "a", "set", "a=1"), "set a=1  if absent"},
		{given("delete", "a", "if-exists", "a"), "delete a  if present"},
		{given("set", "a=1", "if-version", "a=7", "expires-at", "a=2030-01-31T12:00:00Z"),
			"set a=1  expires 2030-01-31T12:00:00Z  if version 7"},
		{given("set", "a=1", "if-value", "a=x=y"), "set a=1  if value x=y"},
		{given("relate", "doc:1#viewer@user:a@b.c", "unrelate", "r#s@t"),
			"relate doc:1#viewer@user:a@b.c; unrelate r#s@t"},
		{given(), ""},
	} {
		operations, err := test.flags.Build()
		if got := describe(operations); err != nil || got != test.want {
			t.Errorf("%v: got %q, %v, want %q", test.flags.list, got, err, test.want)
		}
	}
	if names := given("append", "1", "if-exists", "k").Names(); !slices.Equal(names, []string{"append", "if-exists"}) {
		t.Errorf("the names are %v", names)
	}
}

// TestFlagsBuildRefuses: each mistake names its flag, so that the user finds it among many.
func TestFlagsBuildRefuses(t *testing.T) {
	t.Parallel()
	big := filepath.Join(t.TempDir(), "big")
	must.Do(t, os.WriteFile(big, make([]byte, machine.MaxValueBytes+1), 0o600))
	for _, test := range []struct {
		flags      *Flags
		flag, says string
	}{
		{given("append", "x", "set", "k"), "--set k: ", "KEY="},
		{given("set", "=v"), "--set =v: ", "key must have 1"},
		{given("append-file", big), "--append-file ", "more than 1048576 bytes"},
		{given("set-file", "k="+big+"x"), "--set-file ", "no such file"},
		{given("append-file", filepath.Dir(big)), "--append-file ", "directory"},
		{given("relate", "a#b"), "--relate a#b: ", "RESOURCE#RELATION@SUBJECT"},
		{given("relate", "a#@c"), "--relate ", "relation must have"},
		{given("delete", "\xff"), "--delete \xff: ", "is not UTF-8"},
		{given("if-exists", "k"), "--if-exists k: ", "no --set"},
		{given("set", "k=1", "if-version", "k"), "--if-version k: ", "KEY="},
		{given("set", "k=1", "if-version", "k=18446744073709551616"), "--if-version ", "must be a number from 0 to"},
		{given("set", "k=1", "set", "k=2", "if-exists", "k"), "--if-exists k: ", "2 times"},
		{given("set", "k=1", "if-exists", "k", "if-version", "k=1"), "--if-version ", "condition already"},
		{given("delete", "k", "if-exists", "k", "if-not-exists", "k"), "--if-not-exists ", "condition already"},
		{given("delete", "k", "expires-at", "k=2030-01-31T12:00:00Z"), "--expires-at ", "a delete cannot expire"},
		{given("set", "k=1", "expires-at", "k=2030-01-31"), "--expires-at ", "is not a time with a zone"},
		{given("set", "k=1", "expires-at", "k=1969-01-31T12:00:00Z"), "--expires-at ", "after 1970"},
		{given("set", "k=1", "expires-at", "k=2300-01-31T12:00:00Z"), "--expires-at ", "must be before 2262"},
		{given("set", "k=1", "expires-at", "k=2030-01-31T12:00:00Z", "expires-at", "k=2031-01-31T12:00:00Z"),
			"--expires-at ", "expires already"},
	} {
		operations, err := test.flags.Build()
		if err == nil || !strings.HasPrefix(err.Error(), test.flag) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%.80v: got %q, %v, want %s… %s", test.flags.list, describe(operations), err, test.flag,
				test.says)
		}
	}
}

// TestExpiredIsTheFirst: the ledger takes a set that expires in the past, and the caller warns.
func TestExpiredIsTheFirst(t *testing.T) {
	t.Parallel()
	operations := must.Get(Parse([]byte(`[{"set":{"key":"a","value":"1"}},{"delete":{"key":"x"}},
		{"set":{"key":"b","value":"1","expires_at":"2030-01-31T12:00:00Z"}},
		{"set":{"key":"c","value":"1","expires_at":"2029-01-31T12:00:00Z"}}]`)))(t)
	for year, want := range map[int]string{2028: "", 2029: "", 2030: "c", 2031: "b"} {
		now := time.Date(year, time.January, 1, 0, 0, 0, 0, time.UTC)
		check.Equal(t, Expired(operations, now).GetKey(), want, "in %d %q has expired", year)
	}
}

// TestDisplay: a terminal gets no byte that it could interpret, and what is shown in another form
// can be given back as input.
func TestDisplay(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"": "", "plain": "plain", "grün": "grün", "two words": "two words",
		"a\nb": "base64:YQpi", "\x1b[2J": "base64:G1sySg==", "\xff": "base64:/w==", "\u202e": "base64:4oCu",
	} {
		check.Equal(t, Display([]byte(value)), want, "%q is shown as %q", value)
	}
	if verb, object := Describe(new(seqledgerv1.Operation)); verb != "unknown" || object != "" {
		t.Errorf("an operation of a later version is %s %s", verb, object)
	}
}
