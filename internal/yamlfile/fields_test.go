package yamlfile_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/yamlfile"
)

// object reads a file that is one mapping with the field "it", and perhaps "more".
func object(t testing.TB, content string) (*yamlfile.Reader, *yamlfile.Object) {
	t.Helper()
	root, err := yamlfile.Parse([]byte(content))
	must.Do(t, err, "%q", content)
	r := yamlfile.NewReader("f.yaml")
	return r, r.Object(root, "at", "it", "more")
}

// TestFields reads each kind of field: what it is, what is refused and how, and that a refused or absent one never
// passes for another value.
func TestFields(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		content string
		read    func(*yamlfile.Object) any
		want    any
		problem string
	}{
		{"it: 7", func(o *yamlfile.Object) any { return o.Count("it", 1, 7) }, 7, ""},
		{"it: 8", func(o *yamlfile.Object) any { return o.Count("it", 1, 7) }, 8, "at.it must be 1 to 7"},
		{"it: 0", func(o *yamlfile.Object) any { return o.Count("it", 1, 7) }, 0, "leave it out for the default"},
		{"it: 1e3", func(o *yamlfile.Object) any { return o.Count("it", 0, 7000) }, 0, "must be 0 to 7000"},
		{"it: 0x10", func(o *yamlfile.Object) any { return o.Count("it", 0, 70) }, 0, "must be 0 to 70"},
		{"more: 1", func(o *yamlfile.Object) any { return o.Count("it", 1, 7) }, 0, ""},

		{"it: 2027-01-31T00:00:00Z", func(o *yamlfile.Object) any { return o.Moment("it").Unix() },
			time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC).Unix(), ""},
		{"it: 2027-01-31", func(o *yamlfile.Object) any { return o.Moment("it").IsZero() }, true,
			"a time with its zone"},
		{"it: 2027-02-30T00:00:00Z", func(o *yamlfile.Object) any { return o.Moment("it").IsZero() }, true,
			"a time with"},
		{"more: 1", func(o *yamlfile.Object) any { return o.Moment("it").IsZero() }, true, ""},

		{"it: 90s", func(o *yamlfile.Object) any { return o.Duration("it", 0) }, 90 * time.Second, ""},
		{"it: 90", func(o *yamlfile.Object) any { return o.Duration("it", time.Hour) }, time.Duration(0),
			"with its unit"},
		{"more: 1", func(o *yamlfile.Object) any { return o.Duration("it", time.Hour) }, time.Hour, ""},

		{"it: true", func(o *yamlfile.Object) any { return o.Bool("it", false) }, true, ""},
		{"it: false", func(o *yamlfile.Object) any { return o.Bool("it", true) }, false, ""},
		{"it: yes", func(o *yamlfile.Object) any { return o.Bool("it", true) }, false,
			"must be true or false, is \"yes\""},
		{"it: red", func(o *yamlfile.Object) any { return o.Choice("it", "x", "red", "blue") }, "red", ""},

		{"it: [a, b]", func(o *yamlfile.Object) any { return len(o.Texts("it", 2)) }, 2, ""},
		{"it: [a, b]", func(o *yamlfile.Object) any { return len(o.Texts("it", 1)) }, 0, "at most 1 elements, has 2"},
		{"it: a", func(o *yamlfile.Object) any { return len(o.Texts("it", 1)) }, 0, "must be a list"},
		{"it: [a, ~]", func(o *yamlfile.Object) any { return o.Texts("it", 2)[0] }, "a",
			"at.it[1] must have one plain value"},
		{"more: 1", func(o *yamlfile.Object) any { return o.Texts("it", 1) == nil }, true, ""},

		{"it: ''", func(o *yamlfile.Object) any { return o.Optional("it", "x") }, "", "must have one plain value"},
		{"more: 1", func(o *yamlfile.Object) any { return o.Optional("it", "x") }, "x", ""},
		{"it: {a: b}", func(o *yamlfile.Object) any { return o.Text("it") }, "", "must have one plain value"},
		{"more: 1", func(o *yamlfile.Object) any { return o.Text("it") }, "", "f.yaml:1: at.it is required"},
		{"[1]", func(o *yamlfile.Object) any { return o.Has("it") }, false, "at must be a mapping of it, more"},
		{"it: 1", func(o *yamlfile.Object) any { return o.At("it") + o.Node("it").Value }, "at.it1", ""},
	} {
		r, o := object(t, test.content)
		got := test.read(o)
		err := r.Err()
		if got != test.want {
			t.Errorf("%q is read as %v, want %v", test.content, got, test.want)
		}
		if (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%q: want a problem %q, got %v", test.content, test.problem, err)
		}
	}
}

// TestOneMistakeIsToldOnce: a field that is no plain value is not also called a wrong number, time or duration, because
// the second line would send its reader to the wrong place.
func TestOneMistakeIsToldOnce(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(*yamlfile.Object){
		"count":    func(o *yamlfile.Object) { o.Count("it", 1, 2) },
		"moment":   func(o *yamlfile.Object) { o.Moment("it") },
		"duration": func(o *yamlfile.Object) { o.Duration("it", 0) },
		"choice":   func(o *yamlfile.Object) { o.Choice("it", "a", "a") },
		"bool":     func(o *yamlfile.Object) { o.Bool("it", true) },
	} {
		r, o := object(t, "it: [1]")
		if read(o); r.Failures() != 1 {
			t.Errorf("%s: a list is told as %d mistakes: %v", name, r.Failures(), r.Err())
		}
	}
}

// TestManyMistakes are counted, and 50 of them are told.
func TestManyMistakes(t *testing.T) {
	t.Parallel()
	r := yamlfile.NewReader("f.yaml")
	for line := range 80 {
		r.Fail(&yaml.Node{Line: line + 1}, "", "is mistake %d", line)
	}
	told := strings.Split(r.Err().Error(), "\n")
	if r.Failures() != 80 || len(told) != 50 || told[0] != "f.yaml:1: is mistake 0" {
		t.Errorf("%d mistakes, %d told, the first as %q", r.Failures(), len(told), told[0])
	}
	whole := &yamlfile.Error{Path: "f.yaml", Field: "keys", Problem: "must be there"}
	if whole.Error() != "f.yaml: keys must be there" {
		t.Error(whole)
	}
	if first, ok := errors.AsType[*yamlfile.Error](r.Err()); !ok || first.Line != 1 {
		t.Errorf("the first mistake is %+v", first)
	}
}

// TestClip: a name in a message is short, whole and text.
func TestClip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "name")
		got := yamlfile.Clip(s)
		if !utf8.ValidString(got) || len(got) > 64+len("…") || len(s) <= 64 && got != s ||
			len(s) > 64 && !strings.HasPrefix(s, strings.TrimSuffix(got, "…")) {
			t.Errorf("%q is clipped to %q", s, got)
		}
	})
}

// TestCountsAgainstStrconv: a number is taken if it is one, in decimal, within the range.
func TestCountsAgainstStrconv(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		least, most := rapid.IntRange(-5, 5).Draw(t, "least"), rapid.IntRange(6, 20).Draw(t, "most")
		n := rapid.IntRange(-10, 30).Draw(t, "n")
		root := must.Get(yamlfile.Parse([]byte("it: " + strconv.Itoa(n))))(t)
		r := yamlfile.NewReader("f")
		got := r.Object(root, "", "it").Count("it", least, most)
		if good := least <= n && n <= most; good != (r.Err() == nil) || good && got != n {
			t.Errorf("%d in %d to %d is read as %d, %v", n, least, most, got, r.Err())
		}
	})
}

// FuzzObject: whatever a file holds, a known field is the file's own value, each unknown or repeated one is told, and
// no anchor or alias is missed.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{
		"it: 1\nmore: [a]\n", "it: &x 1\nmore: *x\n", "it: 1\nit: 2\n", "? [a]\n: b\n", "<<: {it: 1}\n",
		"it: !!binary aGk=\n",
		"it: |\n  text\n", "{it: 1, other: {deep: [1, {x: y}]}}", "\ufeffit: 1", "it: 1\n---\nit: 2\n", "- it\n",
		"it:\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		root, err := yamlfile.Parse([]byte(content))
		if err != nil {
			return
		}
		check.Equal(t, (yamlfile.FindAlias(root) != nil), hasAlias(root), "an alias is found at %v")
		r := yamlfile.NewReader("f")
		o := r.Object(root, "", "it", "more")
		if root.Kind != yaml.MappingNode {
			if r.Failures() != 1 || o.Has("it") {
				t.Errorf("no mapping: %v", r.Err())
			}
			return
		}
		mistakes, seen := 0, map[string]bool{}
		for i := 0; i+1 < len(root.Content); i += 2 {
			name := root.Content[i].Value
			if known := slices.Contains([]string{"it", "more"}, name); !known || seen[name] {
				mistakes++
				continue
			}
			seen[name] = true
			if o.Node(name) != root.Content[i+1] {
				t.Errorf("the field %s is that of line %d", name, o.Node(name).Line)
			}
		}
		if r.Failures() != mistakes || o.Has("it") != seen["it"] || o.Has("more") != seen["more"] {
			t.Errorf("%d mistakes are told, there are %d: %v", r.Failures(), mistakes, r.Err())
		}
		before := r.Failures()
		if text := o.Optional("it", "x"); text == "" && r.Failures() == before {
			t.Error(fmt.Sprintf("%q", content), "gives an empty text without a word")
		}
	})
}

// hasAlias looks for anchors and aliases by a list of what is still to look at.
func hasAlias(n *yaml.Node) bool {
	for left := []*yaml.Node{n}; len(left) > 0; left = left[1:] {
		if left[0].Anchor != "" || left[0].Kind == yaml.AliasNode {
			return true
		}
		left = append(left, left[0].Content...)
	}
	return false
}
