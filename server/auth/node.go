package auth

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// FileError is a mistake in an auth file.
type FileError struct {
	// Path of the file and Line in it; line 0 is the file as a whole.
	Path string
	Line int
	// Field is the path of the field, such as keys[2].role; empty for the whole.
	Field string
	// Problem completes a sentence that begins with the field.
	Problem string
}

// Error implements error.
func (e *FileError) Error() string {
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

// reader reads YAML nodes and collects every mistake, so that a file can be corrected at once.
type reader struct {
	path     string
	problems []error
	failures int // problems, including those beyond maxProblems
}

func (r *reader) fail(n *yaml.Node, field, format string, args ...any) {
	r.failures++
	if r.failures <= maxProblems {
		r.problems = append(r.problems, &FileError{r.path, n.Line, field, fmt.Sprintf(format, args...)})
	}
}

func (r *reader) err() error { return errors.Join(r.problems...) }

// object is a mapping whose fields are known.
type object struct {
	r      *reader
	node   *yaml.Node
	at     string // path of the object, with its dot
	values map[string]*yaml.Node
}

// object reads a mapping. Unknown fields are refused, because a mistyped one would drop an
// intended limit or expiry.
func (r *reader) object(n *yaml.Node, at string, known ...string) *object {
	o := &object{r: r, node: n, values: make(map[string]*yaml.Node)}
	if at != "" {
		o.at = at + "."
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, at, "must be a mapping of %s", strings.Join(known, ", "))
		return o
	}
	for pair := range slices.Chunk(n.Content, 2) {
		name, value := pair[0], pair[1]
		switch {
		case !slices.Contains(known, name.Value):
			r.fail(name, o.at+clip(name.Value), "is an unknown field; there are %s", strings.Join(known, ", "))
		case o.values[name.Value] != nil:
			r.fail(name, o.at+name.Value, "was given at line %d already", o.values[name.Value].Line)
		default:
			o.values[name.Value] = value
		}
	}
	return o
}

// has reports whether a field is given.
func (o *object) has(name string) bool { return o.values[name] != nil }

// line returns the node to blame for a field: its own, or the object's.
func (o *object) line(name string) *yaml.Node {
	if n := o.values[name]; n != nil {
		return n
	}
	return o.node
}

func (o *object) fail(name, format string, args ...any) {
	o.r.fail(o.line(name), o.at+name, format, args...)
}

// text returns a required field.
func (o *object) text(name string) string {
	if !o.has(name) {
		o.fail(name, "is required")
		return ""
	}
	return o.r.scalar(o.values[name], o.at+name)
}

// optional returns a field, or the default.
func (o *object) optional(name, otherwise string) string {
	if !o.has(name) {
		return otherwise
	}
	return o.text(name)
}

// scalar returns a plain value as text.
func (r *reader) scalar(n *yaml.Node, at string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		r.fail(n, at, "must have one plain value")
		return ""
	}
	return n.Value
}

// elements returns the elements of a list, nil if the field is absent.
func (o *object) elements(name string, limit int) []*yaml.Node {
	n := o.values[name]
	switch {
	case n == nil:
		return nil
	case n.Kind != yaml.SequenceNode:
		o.fail(name, "must be a list")
		return nil
	case len(n.Content) > limit:
		o.fail(name, "must have at most %d elements, has %d", limit, len(n.Content))
		return nil
	}
	return n.Content
}

// texts returns a list of plain values.
func (o *object) texts(name string, limit int) []string {
	var list []string
	for i, n := range o.elements(name, limit) {
		list = append(list, o.r.scalar(n, fmt.Sprintf("%s%s[%d]", o.at, name, i)))
	}
	return list
}

// count returns a number within a range, 0 if it is absent.
func (o *object) count(name string, least, most int) int {
	if !o.has(name) {
		return 0
	}
	n, err := strconv.Atoi(o.text(name))
	if err != nil || n < least || n > most {
		o.fail(name, "must be %d to %d; leave it out for the default", least, most)
	}
	return n
}

// moment returns a time, zero if it is absent.
func (o *object) moment(name string) time.Time {
	if !o.has(name) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, o.text(name))
	if err != nil {
		o.fail(name, "must be a time with its zone, such as 2027-01-31T00:00:00Z")
	}
	return t
}

// clip shortens a name in a message.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
