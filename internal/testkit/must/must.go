// Package must ends a test that cannot go on after an error.
package must

import "github.com/seqledger/seqledger/internal/testkit/check"

// test is what [testing.TB] and the test of package rapid have in common.
type test interface {
	Helper()
	Fatal(args ...any)
}

// Do ends the test if there is an error.
func Do(t test, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get returns a function that returns the value, or ends its test if there is an error. The test comes behind the call,
// because a call of two results cannot have other arguments beside it:
//
//	f := must.Get(os.Open(path))(t)
func Get[T any](value T, err error) func(test) T {
	return func(t test) T {
		t.Helper()
		Do(t, err)
		return value
	}
}

// Equal ends the test if two values differ. about is as that of [check.Equal].
func Equal[T comparable](t test, got, want T, about ...any) {
	t.Helper()
	if got != want {
		t.Fatal(check.Difference(got, want, about...))
	}
}
