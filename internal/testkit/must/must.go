// Package must ends a test that cannot go on after an error.
package must

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// test is what [testing.TB] and the test of package rapid have in common.
type test interface {
	Helper()
	Fatal(args ...any)
}

// Do ends the test if there is an error. about is as that of [check.Is].
func Do(t test, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(check.Before(err.Error(), about...))
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

// Contains ends the test unless a text has a part. about is as that of [check.Is].
func Contains(t test, text, part string, about ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatal(check.Lack(text, part, about...))
	}
}

// ErrorContains ends the test unless there is an error whose text has a part. about is as that of [check.Is].
func ErrorContains(t test, err error, part string, about ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Fatal(check.Lack(fmt.Sprint(err), part, about...))
	}
}

// EqualSlices ends the test if two slices differ. about is as that of [check.Equal].
func EqualSlices[E comparable](t test, got, want []E, about ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatal(check.Difference(got, want, about...))
	}
}

// Await waits until something holds that goroutines or processes bring about. After minutes in which it did not, it
// ends the test and says what was waited for; a [fmt.Stringer] says it as it is then.
func Await(t test, holds func() bool, what ...any) {
	t.Helper()
	const least, most, patience = time.Millisecond, 50 * time.Millisecond, 3 * time.Minute
	for began := time.Now(); !holds(); {
		waited := time.Since(began)
		if waited > patience {
			t.Fatal("waited in vain for", fmt.Sprintln(what...))
		}
		<-time.After(min(max(waited/16, least), most)) // what takes long is asked for seldom
	}
}

// Seed returns the seed of a test's random choices, another one in each run. The test's log says how to repeat them.
func Seed(t testing.TB) uint64 {
	t.Helper()
	const variable = "SEQLEDGER_SEED"
	seed := rand.Uint64()
	if text := os.Getenv(variable); text != "" {
		seed = Get(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("repeat with %s=%d", variable, seed)
	return seed
}

// Is ends the test unless an error is the wanted one. about is as that of [check.Is].
func Is(t test, err, want error, about ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatal(check.Before(fmt.Sprintf("got the error %v, want %v", err, want), about...))
	}
}
