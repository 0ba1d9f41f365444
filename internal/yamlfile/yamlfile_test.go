package yamlfile_test

import (
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/yamlfile"
)

// Every mistake is told at once, with its line and its field.
func TestMistakes(t *testing.T) {
	t.Parallel()
	root := must.Get(yamlfile.Parse([]byte(`word: blue
flag: maybe
time: 5
nested: {deep: 1}
list: [a, {b: c}]
unknown: 1
word: red
empty:
`)))(t)
	r := yamlfile.NewReader("f.yaml")
	o := r.Object(root, "", "word", "flag", "time", "nested", "list", "empty", "absent")
	_ = o.Choice("word", "red", "red", "green")
	_ = o.Bool("flag", false)
	_ = o.Duration("time", time.Second)
	_ = r.Object(o.Node("nested"), "nested", "deeper")
	_ = o.Texts("list", 1)
	_ = o.Texts("list", 2)
	_ = o.Text("empty")
	_ = o.Text("absent")
	_ = o.Duration("empty", 0)
	got := r.Err().Error()
	for _, want := range []string{
		"f.yaml:1: word must be red or green, is \"blue\"", "f.yaml:2: flag must be true or false",
		"f.yaml:3: time must be a duration", "f.yaml:4: nested.deep is an unknown field",
		"f.yaml:5: list must have at most 1", "f.yaml:5: list[1] must have one plain value",
		"f.yaml:6: unknown is an unknown field", "f.yaml:7: word was given at line 1 already",
		"f.yaml:8: empty must have one plain value", "f.yaml:1: absent is required",
	} {
		check.Contains(t, got, want)
	}
	if o.Duration("absent", time.Hour) != time.Hour || !o.Bool("absent", true) || o.Choice("absent", "x") != "x" {
		t.Error("an absent field has no default")
	}
}

// A file is one document, without aliases.
func TestParse(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "a: 1\n---\nb: 2\n", "a: [", "# nothing\n"} {
		if _, err := yamlfile.Parse([]byte(content)); err == nil {
			t.Errorf("%q was taken", content)
		}
	}
	root, err := yamlfile.Parse([]byte("a: &x 1\nb: *x\n"))
	if err != nil || yamlfile.FindAlias(root) == nil {
		t.Error(err, "the alias was not found")
	}
}
