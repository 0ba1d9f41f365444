// Package yamlfile reads YAML files whose fields are all known, and reports every mistake of a file at once, by its
// line and the path of its field.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Error is a mistake in a file.
type Error struct {
	// Path of the file and Line in it; line 0 is the file as a whole.
	Path string
	Line int
	// Field is the path of the field, such as keys[2].role; empty for the whole.
	Field string
	// Problem completes a sentence that begins with the field.
	Problem string
}

// Error implements error.
func (e *Error) Error() string {
	at := e.Path
	if e.Line > 0 {
		at += ":" + strconv.Itoa(e.Line)
	}
	if e.Field == "" {
		return at + ": " + e.Problem
	}
	return at + ": " + e.Field + " " + e.Problem
}

// maxProblems bounds the reported mistakes of one file.
const maxProblems = 50

// Reader reads YAML nodes and collects every mistake, so that a file can be corrected at once.
type Reader struct {
	path     string
	problems []error
	failures int // problems, including those beyond maxProblems
}

// NewReader returns a reader of the file with this path, which is for the mistakes alone.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Parse returns the root of the one document of a file. The error completes a sentence that begins with the path.
func Parse(content []byte) (root *yaml.Node, err error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the file is empty")
		}
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file must be one YAML document")
	}
	if len(document.Content) != 1 {
		return nil, errors.New("the file is empty")
	}
	return document.Content[0], nil
}

// FindAlias returns the first anchor or alias at or below a node, or nil. They are refused, because one line would
// depend on another, and a small file could expand to a huge one.
func FindAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return n
	}
	for _, child := range n.Content {
		if found := FindAlias(child); found != nil {
			return found
		}
	}
	return nil
}

// Fail reports a mistake. The text completes a sentence that begins with the field.
func (r *Reader) Fail(n *yaml.Node, field, format string, args ...any) {
	r.failures++
	if r.failures <= maxProblems {
		r.problems = append(r.problems, &Error{r.path, n.Line, field, fmt.Sprintf(format, args...)})
	}
}

// Failures returns how many mistakes were reported so far.
func (r *Reader) Failures() int { return r.failures }

// Err joins an [*Error] for each mistake, 50 at most.
func (r *Reader) Err() error { return errors.Join(r.problems...) }

// Object is a mapping whose fields are known.
type Object struct {
	r      *Reader
	node   *yaml.Node
	at     string // path of the object, with its dot
	values map[string]*yaml.Node
}

// At returns the path of a field.
func (o *Object) At(name string) string { return o.at + name }

// Node returns the value of a field, or nil.
func (o *Object) Node(name string) *yaml.Node { return o.values[name] }

// Object reads a mapping. Unknown fields are refused, because a mistyped one would drop an intended limit or expiry.
func (r *Reader) Object(n *yaml.Node, at string, known ...string) *Object {
	o := &Object{r: r, node: n, values: make(map[string]*yaml.Node)}
	if at != "" {
		o.at = at + "."
	}
	if n.Kind != yaml.MappingNode {
		r.Fail(n, at, "must be a mapping of %s", strings.Join(known, ", "))
		return o
	}
	for pair := range slices.Chunk(n.Content, 2) {
		name, value := pair[0], pair[1]
		switch {
		case !slices.Contains(known, name.Value):
			r.Fail(name, o.at+Clip(name.Value), "is an unknown field; there are %s", strings.Join(known, ", "))
		case o.values[name.Value] != nil:
			r.Fail(name, o.at+name.Value, "was given at line %d already", o.values[name.Value].Line)
		default:
			o.values[name.Value] = value
		}
	}
	return o
}

// Has reports whether a field is given.
func (o *Object) Has(name string) bool { return o.values[name] != nil }

// line returns the node to blame for a field: its own, or the object's.
func (o *Object) line(name string) *yaml.Node {
	if n := o.values[name]; n != nil {
		return n
	}
	return o.node
}

// Fail reports a mistake of a field.
func (o *Object) Fail(name, format string, args ...any) {
	o.r.Fail(o.line(name), o.at+name, format, args...)
}

// Text returns a required field.
func (o *Object) Text(name string) string {
	if !o.Has(name) {
		o.Fail(name, "is required")
		return ""
	}
	return o.r.Scalar(o.values[name], o.at+name)
}

// Optional returns a field, or the default.
func (o *Object) Optional(name, otherwise string) string {
	if !o.Has(name) {
		return otherwise
	}
	return o.Text(name)
}

// Scalar returns a plain value as text.
func (r *Reader) Scalar(n *yaml.Node, at string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		r.Fail(n, at, "must have one plain value")
		return ""
	}
	return n.Value
}

// Elements returns the elements of a list, nil if the field is absent.
func (o *Object) Elements(name string, limit int) []*yaml.Node {
	n := o.values[name]
	switch {
	case n == nil:
		return nil
	case n.Kind != yaml.SequenceNode:
		o.Fail(name, "must be a list")
		return nil
	case len(n.Content) > limit:
		o.Fail(name, "must have at most %d elements, has %d", limit, len(n.Content))
		return nil
	}
	return n.Content
}

// Texts returns a list of plain values.
func (o *Object) Texts(name string, limit int) []string {
	var list []string
	for i, n := range o.Elements(name, limit) {
		list = append(list, o.r.Scalar(n, fmt.Sprintf("%s%s[%d]", o.at, name, i)))
	}
	return list
}

// maxPairs bounds the elements of a mapping.
const maxPairs = 100

// Pairs returns a plain value, or each element of a mapping of plain values as name=value; nil if the field is absent.
func (o *Object) Pairs(name string) (pairs []string) {
	n := o.values[name]
	switch {
	case n == nil:
		return nil
	case n.Kind != yaml.MappingNode:
		return []string{o.Text(name)}
	case len(n.Content) > 2*maxPairs:
		o.Fail(name, "must have at most %d elements, has %d", maxPairs, len(n.Content)/2)
		return nil
	}
	for pair := range slices.Chunk(n.Content, 2) {
		at := o.at + name
		pairs = append(pairs, o.r.Scalar(pair[0], at)+"="+o.r.Scalar(pair[1], at+"."+pair[0].Value))
	}
	return pairs
}

// Count returns a number within a range, 0 if it is absent.
func (o *Object) Count(name string, least, most int) int {
	if !o.Has(name) {
		return 0
	}
	before := o.r.failures
	n, err := strconv.Atoi(o.Text(name))
	if (err != nil || n < least || n > most) && o.r.failures == before {
		o.Fail(name, "must be %d to %d; leave it out for the default", least, most)
	}
	return n
}

// Moment returns a time, zero if it is absent.
func (o *Object) Moment(name string) time.Time {
	if !o.Has(name) {
		return time.Time{}
	}
	before := o.r.failures
	t, err := time.Parse(time.RFC3339, o.Text(name))
	if err != nil && o.r.failures == before {
		o.Fail(name, "must be a time with its zone, such as 2027-01-31T00:00:00Z")
	}
	return t
}

// Clip shortens a name in a message.
func Clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// Choice returns one of some words, or the default if the field is absent.
func (o *Object) Choice(name, otherwise string, words ...string) string {
	if !o.Has(name) {
		return otherwise
	}
	text := o.Text(name)
	if text != "" && !slices.Contains(words, text) {
		o.Fail(name, "must be %s, is %q", strings.Join(words, " or "), Clip(text))
	}
	return text
}

// Bool returns true or false, or the default if the field is absent.
func (o *Object) Bool(name string, otherwise bool) bool {
	return o.Choice(name, strconv.FormatBool(otherwise), "true", "false") == "true"
}

// Duration returns a duration, or the default if the field is absent.
func (o *Object) Duration(name string, otherwise time.Duration) time.Duration {
	if !o.Has(name) {
		return otherwise
	}
	before := o.r.failures
	d, err := time.ParseDuration(o.Text(name))
	if err != nil && o.r.failures == before {
		o.Fail(name, "must be a duration with its unit, such as 500ms, 30s, 5m or 24h")
	}
	return d
}
