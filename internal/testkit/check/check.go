// Package check compares values in tests, which go on after a difference; package must ends them.
package check

import (
	"errors"
	"fmt"
)

// test is what [testing.TB] and the test of package rapid have in common.
type test interface {
	Helper()
	Error(args ...any)
}

// Equal fails the test if two values differ. about tells what they are, where that does not go without saying: a format
// whose last verb is for what was got, and the values of the verbs before that one.
func Equal[T comparable](t test, got, want T, about ...any) {
	t.Helper()
	if got != want {
		t.Error(Difference(got, want, about...))
	}
}

// Is fails the test unless an error is the wanted one, as by [errors.Is]. about is a format, and its values, of what is
// said before that.
func Is(t test, err, want error, about ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Error(Before(fmt.Sprintf("got the error %v, want %v", err, want), about...))
	}
}

// Err returns the error of two results.
func Err[T any](_ T, err error) error { return err }

// Before puts a format with its values, if there is one, before a text.
func Before(text string, about ...any) string {
	if len(about) == 0 {
		return text
	}
	return fmt.Sprintf(about[0].(string), about[1:]...) + ": " + text
}

// Difference is what [Equal] says.
func Difference(got, want any, about ...any) string {
	format := "got %v"
	if _, isText := got.(string); isText {
		format = "got %q"
	}
	if len(about) > 0 {
		format, about = about[0].(string), about[1:]
	}
	return fmt.Sprintf(format+", want %v", append(about, got, want)...)
}
