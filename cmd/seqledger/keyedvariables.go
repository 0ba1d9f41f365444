package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// The environment variables shared by all programs with idempotency keys, which are known with environmentPrefix and
// without it.
const (
	pendingTTL      = "IDEMPOTENCY_PENDING_TTL_SECONDS"
	committedTTL    = "IDEMPOTENCY_COMMITTED_TTL_SECONDS"
	rejectedTTL     = "IDEMPOTENCY_REJECTED_TTL_SECONDS"
	maxEntries      = "IDEMPOTENCY_MAX_ENTRIES"
	cleanupInterval = "IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS"
	pendingWait     = "IDEMPOTENCY_PENDING_WAIT_TIMEOUT"
	waitForPending  = "IDEMPOTENCY_WAIT_FOR_PENDING" // false is a wait of 0
)

// sharedReaders turn the values of the shared variables into those of flags.
var sharedReaders = map[string]func(text string) (string, error){
	pendingTTL: readSeconds, committedTTL: readSeconds, rejectedTTL: readSeconds, cleanupInterval: readSeconds,
	pendingWait: readSeconds, maxEntries: readCount, waitForPending: readBoolean,
}

// sharedVariables is a [kong.Resolver] that gives flags with the tag shared the value of the shared variable that it
// names. A flag's own variable takes precedence.
type sharedVariables struct {
	used map[string]string // variables whose values flags have, by the flag's name
}

// likeShared matches mistakes for shared variables; others that begin with IDEMPOTENCY_ are of other programs.
var likeShared = regexp.MustCompile(`^IDEMPOTENCY_(PENDING|COMMITTED|REJECTED|MAX_ENTR|CLEANUP|WAIT)`)

// sharedName returns the shared variable of a flag, or "".
func sharedName(flag *kong.Flag) string {
	if flag == nil || !flag.Tag.Has("shared") {
		return ""
	}
	return "IDEMPOTENCY_" + flag.Tag.Get("shared")
}

// help is a [kong.HelpValueFormatter] that also shows the shared variable of a flag.
func (*sharedVariables) help(value *kong.Value) string {
	if name := sharedName(value.Flag); name != "" {
		shown, tag := *value, *value.Tag
		tag.Envs = append(tag.Envs[:len(tag.Envs):len(tag.Envs)], environmentPrefix+name)
		shown.Tag = &tag
		value = &shown
	}
	return kong.DefaultHelpValueFormatter(value)
}

func (*sharedVariables) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver]. A mistake in any shared variable is an error of each command that knows one,
// because all of them are set for all programs alike.
func (s *sharedVariables) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	variable := sharedName(flag)
	if variable == "" {
		return nil, nil
	}
	values := map[string]sharedValue{}
	for _, name := range slices.Sorted(maps.Keys(sharedReaders)) { // the first mistake is always the same
		value, err := readShared(name, sharedReaders[name])
		if err != nil {
			return nil, &variableError{err}
		}
		values[name] = value
	}
	for _, own := range flag.Envs {
		if _, set := os.LookupEnv(own); set {
			return nil, nil
		}
	}
	value := values[variable]
	if no := values[waitForPending]; variable == pendingWait && no.text == "false" {
		value = sharedValue{"0s", no.variable}
	}
	if value.variable == "" {
		return nil, nil
	}
	s.used[flag.Name] = value.variable
	return value.text, nil
}

// sharedValue is the value of a shared variable in the form of a flag, and the variable's name, "" if unset.
type sharedValue struct{ text, variable string }

// variableError is a mistake in a variable, which need not be that of the flag that is being resolved.
type variableError struct{ error }

// readShared reads a shared variable in both its forms, which must agree.
func readShared(name string, read func(string) (string, error)) (value sharedValue, err error) {
	for _, form := range []string{environmentPrefix + name, name} {
		text, set := os.LookupEnv(form)
		if !set {
			continue
		}
		found, err := read(text)
		switch {
		case err != nil:
			return sharedValue{}, fmt.Errorf("$%s: %w", form, err)
		case value.variable != "" && found != value.text:
			return sharedValue{}, fmt.Errorf("$%s and $%s have different values: unset one of them",
				value.variable, form)
		case value.variable == "":
			value = sharedValue{found, form}
		}
	}
	return value, nil
}

// The accepted forms of numbers.
var (
	wholeForm   = regexp.MustCompile(`^[0-9]+(_[0-9]+)*$`)
	decimalForm = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
)

// readSeconds reads a number of seconds as the value of a duration.
func readSeconds(text string) (string, error) {
	if wholeForm.MatchString(text) || decimalForm.MatchString(text) {
		if d, err := time.ParseDuration(strings.ReplaceAll(text, "_", "") + "s"); err == nil {
			return d.String(), nil
		}
	}
	return "", fmt.Errorf("%q must be a number of seconds, such as 60 or 60.0", text)
}

// readCount reads a whole number.
func readCount(text string) (string, error) {
	if wholeForm.MatchString(text) {
		if n, err := strconv.Atoi(strings.ReplaceAll(text, "_", "")); err == nil {
			return strconv.Itoa(n), nil
		}
	}
	return "", fmt.Errorf("%q must be a whole number, such as 100000 or 100_000", text)
}

// readBoolean reads true or false.
func readBoolean(text string) (string, error) {
	switch text {
	case "true", "True", "1":
		return "true", nil
	case "false", "False", "0":
		return "false", nil
	}
	return "", fmt.Errorf("%q must be true, True or 1, or false, False or 0", text)
}
