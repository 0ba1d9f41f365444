// Package check compares values in tests, which go on after a difference; package must ends them.
package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Contains fails the test unless a text has a part. about is as that of [Is].
func Contains(t test, text, part string, about ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Error(Lack(text, part, about...))
	}
}

// ErrorContains fails the test unless there is an error whose text has a part. about is as that of [Is].
func ErrorContains(t test, err error, part string, about ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Error(Lack(fmt.Sprint(err), part, about...))
	}
}

// EqualSlices fails the test if two slices differ. about is as that of [Equal].
func EqualSlices[E comparable](t test, got, want []E, about ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Error(Difference(got, want, about...))
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

// Lack is what [Contains] says.
func Lack(text, part string, about ...any) string {
	return Before(fmt.Sprintf("got %.3000q, want %q in it", text, part), about...)
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
