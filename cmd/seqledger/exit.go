package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/alecthomas/kong"

	"github.com/seqledger/seqledger/client/failure"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Exit codes. The description in main.go documents them for users.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 3
	exitUnknown = 4
	exitSignal  = 128 // plus the number of the signal that ended the process
)

// exitError is an error with an exit code and a hint what to do next.
type exitError struct {
	code int
	err  error
	hint string // may be empty
}

func (e *exitError) Error() string { return e.err.Error() }

// Unwrap returns the error itself.
func (e *exitError) Unwrap() error { return e.err }

// usageHint is the hint if the command line names no known command.
const usageHint = "seqledger --help lists the commands, seqledger COMMAND --help their flags"

// usage returns an error about the command line or a file that it names.
func usage(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...), hint: usageHint}
}

// withHelp adds the command's --help to the hint of a usage error.
func withHelp(err error, command *kong.Node) error {
	own, ok := errors.AsType[*exitError](err)
	if !ok || own.hint != usageHint || command == nil {
		return err
	}
	return &exitError{code: own.code, err: err, hint: command.FullPath() + " --help shows its flags and examples"}
}

// missingValue matches kong's message for a flag at the end without its value.
var missingValue = regexp.MustCompile(`expected .+ value but got "EOL" \(<EOL>\)`)

// guess matches the parser's guess what an unknown word was meant to be.
var guess = regexp.MustCompile(`^unexpected argument (\S+?)(?:, did you mean .*)?$`)

// unknownFlag matches the parser's message for a flag that the command does not have, without its guess.
var unknownFlag = regexp.MustCompile(`^unknown flag (-[^, ]+)`)

// negative matches a negative number or duration.
var negative = regexp.MustCompile(`^-[.0-9]`)

// otherNames are the commands that do what other programs call by these words.
var otherNames = map[string]string{
	"put": "write", "set": "write", "append": "write", "insert": "write", "delete": "write", "del": "write",
	"commit": "write", "read": "get", "show": "get", "start": "serve", "server": "serve", "run": "serve",
	"tail": "watch", "follow": "watch", "check": "verify", "info": "status",
}

// plainParseError removes the parser's jargon from its errors, and its guess where that does something else. The rest
// of the text stays, because it names the flag and the variable.
func plainParseError(err error) error {
	if mistake, is := errors.AsType[*variableError](err); is {
		return mistake
	}
	text := missingValue.ReplaceAllString(err.Error(), "its value is missing")
	if unknown := unknownFlag.FindStringSubmatch(text); unknown != nil {
		text = aboutFlag(unknown[0], unknown[1], err)
	}
	if word := guess.FindStringSubmatch(text); word != nil {
		if meant, ok := otherNames[word[1]]; ok {
			text = fmt.Sprintf("unexpected argument %s, did you mean %q?", word[1], meant)
		} else if !strings.Contains(text, `"`+word[1][:1]) { // a guess that does not even begin like the word
			text = "unexpected argument " + word[1]
		}
	}
	if text != err.Error() {
		return errors.New(text)
	}
	return err
}

// aboutFlag is text, with what a user probably meant by a flag that a command does not have: a setting of the ledger,
// or a negative number, which the parser takes for a flag.
func aboutFlag(text, flag string, err error) string {
	if hint := settingHint(strings.TrimLeft(flag, "-")); hint != "" {
		return text + hint
	}
	failed, ok := errors.AsType[*kong.ParseError](err)
	if !ok || !negative.MatchString(flag) {
		return err.Error() // with the parser's guess
	}
	given := 0
	for _, part := range failed.Context.Path {
		if part.Positional != nil {
			given++
		}
	}
	places := failed.Context.Selected()
	at := slices.IndexFunc(failed.Context.Args, negative.MatchString)
	if places == nil || given >= len(places.Positional) || at < 0 {
		return text
	}
	return fmt.Sprintf("<%s> %s: no number here is negative; text that begins with - goes behind --",
		places.Positional[given].Name, failed.Context.Args[at])
}

// fail returns an error with its own exit code and hint.
func fail(code int, hint, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...), hint: hint}
}

// errorReport is the line that report prints with --json.
type errorReport struct {
	Error    string `json:"error"`
	Code     string `json:"code,omitempty"` // the ledger's refusal, or the code of the call
	Next     string `json:"next,omitempty"`
	ExitCode int    `json:"exitCode"`
}

// report prints an error and what to do about it, and returns the exit code.
func report(stderr io.Writer, asJSON bool, err error) int {
	if err == nil {
		return exitDone
	}
	code, hint := classify(err)
	if isClosedOutput(err) {
		return code // the reader is gone, so no message is needed
	}
	if asJSON {
		line := errorReport{Error: err.Error(), Code: codeName(err), Next: hint, ExitCode: code}
		_ = (&environment{stdout: stderr}).showObject(line)
		return code
	}
	_, _ = fmt.Fprintf(stderr, "seqledger: %s\n", harmless(err.Error()))
	if hint != "" {
		_, _ = fmt.Fprintf(stderr, "  next: %s\n", harmless(hint))
	}
	return code
}

// codeName returns the name of the refusal in an error, else the code of the call, else "".
func codeName(err error) string {
	answer, ok := errors.AsType[*failure.Error](err)
	switch {
	case !ok:
		return ""
	case answer.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:
		return answer.ConnectCode.String()
	}
	return strings.TrimPrefix(answer.Code.String(), "WRITE_ERROR_CODE_")
}

// wantsJSON reports whether a command line that could not be parsed asks for --json.
func wantsJSON(args []string) bool {
	isYes := func(text string) bool { return slices.Contains([]string{"true", "1", "yes"}, strings.ToLower(text)) }
	return isYes(os.Getenv("SEQLEDGER_JSON")) || slices.ContainsFunc(args, func(arg string) bool {
		name, value, given := strings.Cut(arg, "=")
		return name == "--json" && (!given || isYes(value))
	})
}

// isClosedOutput reports whether a command ended because its output was closed, as head does
// after some lines. A committed write must be reported even then.
func isClosedOutput(err error) bool {
	own, said := errors.AsType[*exitError](err)
	return isOutput(err) && errors.Is(err, syscall.EPIPE) && !(said && own.code == exitFailed)
}

// isOutput reports whether err says that an answer could not be printed.
func isOutput(err error) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	return ok && path.Path == os.Stdout.Name()
}

// classify maps all errors to exit codes.
func classify(err error) (code int, hint string) {
	if own, ok := errors.AsType[*exitError](err); ok {
		return own.code, own.hint
	}
	if why, ok := errors.AsType[*unreachableError](err); ok {
		return exitFailed, why.hint
	}
	if unknown, ok := errors.AsType[*failure.OutcomeUnknownError](err); ok {
		return exitUnknown, repeatHint(unknown.Sequence, unknown.IdempotencyKey)
	}
	refusal, ok := errors.AsType[*failure.Error](err)
	switch {
	case ok && refusal.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:
		return exitCodeOf(refusal.Code), nextStep(refusal)
	case errors.Is(err, context.Canceled):
		return exitFailed, "interrupted; run it again"
	case errors.Is(err, context.DeadlineExceeded):
		return exitFailed, "no answer in time: is the server running and is --server right? give it longer with " +
			"--timeout"
	case ok && refusal.IsWire() && refusal.ConnectCode == connect.CodeUnavailable:
		return exitFailed, noLeader
	case ok:
		return connectExit(refusal.ConnectCode)
	}
	return exitFailed, ""
}

// exitCodeOf distinguishes a refused write from a server that could not decide.
func exitCodeOf(code seqledgerv1.WriteErrorCode) int {
	switch code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING:
		return exitFailed
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN:
		return exitUnknown
	}
	return exitRefused
}

// connectExit is for answers that carry no WriteError.
func connectExit(code connect.Code) (int, string) {
	switch code {
	case connect.CodeNotFound:
		return exitRefused, "not found in this scope; seqledger list shows its contents"
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return exitRefused, ""
	case connect.CodePermissionDenied:
		return exitRefused, "seqledger auth check FILE --key - tells what a key may do; " +
			"a server without --auth takes only calls to localhost, 127.0.0.1 or [::1]"
	case connect.CodeUnauthenticated:
		return exitRefused, "give an API key or session token that the server knows with --token-file, --token or " +
			"$SEQLEDGER_TOKEN"
	case connect.CodeUnavailable, connect.CodeUnknown:
		return exitFailed, isItRunning
	case connect.CodeUnimplemented:
		return exitFailed, "the server at --server does not know this call: is it a seqledger of this version?"
	}
	return exitFailed, ""
}

// repeatHint says how to settle a write.
func repeatHint(sequence uint64, key string) string {
	repeat := fmt.Sprintf("--sequence %d", sequence)
	if key != "" {
		repeat += " --key " + key
	}
	return "run the same command again with " + repeat + "; if it was committed, that answers with its receipt"
}

// nextStep says what to do about a refusal.
func nextStep(e *failure.Error) string {
	switch e.Code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP:
		return fmt.Sprintf("the next sequence of this stream is %d; see seqledger state", e.LastCommittedSequence+1)
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED:
		return "if this sequence was yours, the write is committed, but the ledger no longer keeps its receipt; see " +
			"seqledger state"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_REUSED:
		return fmt.Sprintf("sequence %d holds another write; look with seqledger state --receipts and seqledger tx, "+
			"and leave --sequence and --key away for a new write", e.CommittedSequence)
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_EXHAUSTED:
		if e.LastCommittedSequence < math.MaxUint64-1 {
			return fmt.Sprintf("the next sequence of this stream is %d; see seqledger state", e.LastCommittedSequence+1)
		}
		return "continue under a new --client-id"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_EXPIRED:
		return "the stream was evicted after client_ttl without a write; find out what was written before you open " +
			"a session"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED:
		return "another process has taken over the stream with a newer session; stop, and find out which process writes"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_REQUIRED:
		return sessionRequiredHint
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_EXISTS,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_KEY_NOT_FOUND,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VERSION_MISMATCH,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_VALUE_MISMATCH:
		return fmt.Sprintf("the condition of operation %d on %q failed; its version is %d (0: absent); "+
			"read it with seqledger get and decide; the sequence is still free", e.OperationIndex, e.Key,
			e.CurrentVersion)
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT:
		return "correct " + cmp.Or(fieldFlags[e.Field], e.Field, "the request")
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED:
		return "nothing was done; seqledger auth check FILE --key - tells what a key of the server's auth file may do"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_STREAMS:
		return "wait until idle streams are evicted, or raise it with seqledger config set max_streams"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_KEYS:
		return "wait until records have expired, purge some, or raise keys in the limits of the credential"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER:
		if e.LeaderAddress == "" {
			return noLeader
		}
		return "nothing was done; send it to " + e.LeaderAddress
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_WAITERS:
		return "nothing was done; run the same command again later"
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN:
		return "run the same command again with the same --sequence and --key"
	}
	return ""
}

// fieldFlags are the flags and arguments that fill fields of requests.
var fieldFlags = map[string]string{
	"scope": "--scope", "scope.organization": "--scope or --organization", "scope.vault": "--scope or --vault",
	"client_id": "--client-id", "sequence": "--sequence", "session": "--session", "idempotency_key": "--key",
	"attempt_id": "--attempt-id", "expected_session": "--expected-session", "prefix": "--prefix",
	"resource": "--resource", "relation": "--relation", "from_height": "--from",
	"height": "the height", "key": "the key", "tx_id": "the transaction's id",
}

// noLeader is for a server that answers, and cannot serve the call.
const noLeader = "the server answers and cannot serve this now; if it is one of several nodes, a majority may be " +
	"away: seqledger cluster status shows them"

const sessionRequiredHint = "the stream has a session, so a write needs --session: " +
	"the one that you opened, or a new one from seqledger session open, which stops the holder of the old one"
