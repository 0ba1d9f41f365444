package guard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/seqledger/seqledger/client/idempotency"
)

// MetaKey is the member of _meta that carries the key of a call: 1 to 256 visible ASCII characters.
const MetaKey = "seqledger.dev/idempotency-key"

// The members of _meta that the guard adds to results.
const (
	metaReplayed = "replayed"             // true: the result of an earlier call
	metaCode     = "seqledger.dev/code"   // why the tool was not run, as in package idempotency
	metaAction   = "seqledger.dev/action" // what to do next, as in package idempotency
	// metaIgnored is true in the answer of a tool that the configuration does not name, if the call had a key. A
	// JSON-RPC error has it in its data.
	metaIgnored = "seqledger.dev/key-ignored"
)

// maxIgnored bounds the calls with ignored keys whose answers are awaited. For one more the oldest is forgotten,
// because a call that was cancelled may get no answer. An id of more than maxIgnoredID bytes is not kept, and the
// answer to its call has no mark.
const (
	maxIgnored   = 128
	maxIgnoredID = 256
)

// derivedPrefix is the prefix of a key derived from a call's arguments.
const derivedPrefix = "args:"

// call is a call of a guarded tool.
type call struct {
	*message

	name      string
	tool      *Tool
	arguments jsontext.Value
	key       string // set by the client; empty for none
	cancelled *atomic.Bool
}

// guarded starts a call of a guarded tool, and reports whether the message is one.
func (g *Guard) guarded(ctx context.Context, m *message) bool {
	c, err := g.readCall(m)
	switch {
	case err != nil:
		if m.isCall() {
			code := codeInvalidParams
			if errors.Is(err, errTask) {
				code = codeMethodNotFound
			}
			g.answer(rpcError(m.id, code, "seqledger: "+err.Error()+"; nothing was done"))
		}
		return true
	case c.tool == nil:
		if c.key != "" && m.isCall() {
			g.ignoreKey(m)
		}
		return false
	case !m.isCall():
		return true // a notification: its sender could never learn the outcome
	case !g.enter():
		g.answer(rpcResult(m.id, advice(idempotency.CodeQuota, idempotency.SameKey,
			"Too many calls are under way. Nothing was done. Repeat the same call when others have ended.")))
		return true
	}
	// Ends with the call, or with the server; Run waits for it.
	go func() {
		defer g.leave()
		g.serve(ctx, c)
	}()
	return true
}

// errTask is the error of a call of a guarded tool as a task (MCP, since revision 2025-11-25). The answer to such a
// call is the handle of a task, which is no result and ends with the server, so that a repeat could not get it.
var errTask = errors.New("a guarded tool cannot be called as a task; send the call without the member task")

// readCall reads a call. Its tool is nil if it is not guarded.
func (g *Guard) readCall(m *message) (*call, error) {
	c := &call{message: m, cancelled: new(atomic.Bool), arguments: jsontext.Value("{}")}
	var meta jsontext.Value
	asTask := false
	if m.params == nil {
		return c, nil
	}
	err := members(m.params, func(name string, value jsontext.Value) error {
		switch {
		case name == "name" && value.Kind() == '"':
			c.name = stringOf(value)
		case name == "arguments" && value.Kind() != 'n':
			c.arguments = value
		case name == "_meta":
			meta = value
		case name == "task":
			asTask = value.Kind() != 'n'
		}
		return unlike(name, "name", "arguments", "_meta", "task")
	})
	if c.tool = g.Config.Tools[c.name]; err != nil {
		return nil, err
	}
	if meta != nil {
		err = members(meta, func(name string, value jsontext.Value) error {
			if name != MetaKey {
				return nil
			}
			if c.key = stringOf(value); value.Kind() != '"' || c.key == "" {
				return errors.New("_meta: " + MetaKey + " must be a string of 1 to 256 visible ASCII characters")
			}
			return nil
		})
	}
	switch {
	case c.tool == nil:
		return c, nil
	case err != nil:
		return nil, err
	case asTask:
		return nil, errTask
	case len(m.raw) > MaxCall:
		return nil, fmt.Errorf("a call of the tool %s has at most 1 MiB", c.name)
	case c.key == "" && c.tool.KeyRequired:
		return nil, fmt.Errorf("the tool %s needs a key: set _meta[%q]", c.name, MetaKey)
	}
	return c, nil
}

// identify returns a call's record key and fingerprint, and how long its result is kept.
func (g *Guard) identify(ctx context.Context, c *call) (key string, f idempotency.Fingerprint, window time.Duration,
	err error) {
	mode, pointers := idempotency.FingerprintJCS, []string(nil)
	if c.key == "" && c.tool.Arguments != nil {
		mode, pointers = idempotency.FingerprintPointers, c.tool.Arguments
	}
	f, err = idempotency.NewFingerprint(ctx, mode, pointers, &idempotency.Request{
		Method: "tools/call", Namespace: g.Config.namespace(c.name), Body: c.arguments,
	})
	if err != nil {
		return "", f, 0, fmt.Errorf("the arguments of %s cannot be compared with those of a repeat: %w", c.name, err)
	}
	if c.key != "" {
		return c.key, f, c.tool.KeyWindow, nil
	}
	return derivedPrefix + hex.EncodeToString(f.Digest[:]), f, c.tool.Window, nil
}

// serve runs a guarded call, or refuses it, and answers it.
func (g *Guard) serve(ctx context.Context, c *call) {
	answer := make(chan []byte, 1)
	// Ends with the call, or with the server; serve's caller waits for it through answer.
	go func() { answer <- g.run(ctx, c) }()
	if c.tool.Timeout > 0 {
		timer := time.NewTimer(c.tool.Timeout)
		defer timer.Stop()
		select {
		case line := <-answer:
			g.reply(c, line)
		case <-timer.C:
			g.reply(c, rpcResult(c.id, advice(idempotency.CodeInFlight, idempotency.SameKey, fmt.Sprintf(
				"The call has not ended after %v. It goes on, and what it does may have happened already. Do not make "+
					"another call in its place: repeat this one, with the same %s, to get its result.", c.tool.Timeout,
				c.sameness()))))
			// Its place is kept until the call has ended, so that calls that go on still count.
			<-answer
		}
		return
	}
	g.reply(c, <-answer)
}

// reply answers the client, unless it has cancelled the call.
func (g *Guard) reply(c *call, line []byte) {
	if !c.cancelled.Load() {
		g.answer(line)
	}
}

// sameness describes what makes two calls the same.
func (c *call) sameness() string {
	if c.key != "" {
		return "key"
	}
	return "arguments"
}

// errPassed is the error of a call whose answer is only passed to the client, because nothing was done yet.
var errPassed = fmt.Errorf("the server wants the call again: %w", idempotency.ErrNotExecuted)

// run makes a guarded call once for its key and returns the answer for the client.
func (g *Guard) run(ctx context.Context, c *call) []byte {
	key, fingerprint, window, err := g.identify(ctx, c)
	record := idempotency.RecordKey{
		Scope: g.Scope, Namespace: g.Config.namespace(c.name), Principal: g.Principal, Key: key,
	}
	if err == nil {
		err = record.Validate()
	}
	if err != nil {
		return rpcError(c.id, codeInvalidParams, "seqledger: "+err.Error()+"; nothing was done")
	}
	forgetAfter := time.Duration(0)
	if c.key != "" {
		forgetAfter = c.tool.ForgetAfter
	}
	o := idempotency.DoOptions{Fingerprint: fingerprint, Settings: idempotency.Settings{
		Lease: g.Config.Lease, TTL: window, RejectedTTL: window, ForgetAfter: forgetAfter, Wait: g.Config.Wait,
		Journal: g.Journal, Logger: g.Logger,
	}}
	var own *message // the answer, if this call ran the tool
	ran := false
	done, err := o.Do(ctx, g.Store, record, func(context.Context, *idempotency.Owner) ([]byte, error) {
		if c.cancelled.Load() {
			return nil, fmt.Errorf("the client has cancelled the call: %w", idempotency.ErrNotExecuted)
		}
		ran = true
		if own, err = g.ask(c.message, c.cancelled); err != nil {
			return nil, err
		}
		return c.judge(own)
	})
	if own != nil {
		line, err := setMembers(own.raw, edit{"id", c.id})
		if err != nil {
			return rpcError(c.id, codeInternal, err.Error()) // impossible: the message was read
		}
		return line
	}
	rejected, isRejected := errors.AsType[*idempotency.RejectedError](err)
	switch {
	case err == nil:
		return c.replay(done.Response, false)
	case isRejected:
		return c.replay(rejected.Response, true)
	case ran && !errors.Is(err, idempotency.ErrNotExecuted):
		g.Logger.WarnContext(ctx, "the outcome of a call is unknown", "tool", c.name, "key_hash", hashed(key),
			"error", err)
		return rpcResult(c.id, c.unknown(&record,
			"The server ended, or its connection broke, before it answered this call."))
	}
	return rpcResult(c.id, c.refusal(&record, err))
}

// judge decides what happens to the key after an answer of the server. It returns what [idempotency.Do] expects.
func (c *call) judge(a *message) ([]byte, error) {
	failed := a.fault != nil
	var kept []byte
	if failed {
		if faultCode(a.fault) == codeElicitation {
			return nil, errPassed
		}
		kept = fmt.Appendf(nil, `{"error":%s}`, a.fault)
	} else {
		isError, kind := readResult(a.result)
		switch kind {
		case question:
			return nil, errPassed
		case unfinished:
			return nil, errors.New("the server answered with a task, and not with its result")
		}
		failed, kept = isError, fmt.Appendf(nil, `{"result":%s}`, a.result)
	}
	if len(kept) > idempotency.MaxResponse {
		kept = fmt.Appendf(nil, `{"result":%s}`, advice(idempotency.CodeNotRetained, idempotency.Reconcile, fmt.Sprintf(
			"An earlier call has run the tool and had its result, which has %d bytes, too many to keep. It was "+
				"not run "+
				"again. Look up what it has done, if you need to know.", len(kept))))
	}
	switch {
	case failed && c.tool.Errors == ReleaseErrors:
		return nil, errPassed
	case failed && c.tool.Errors == UnknownErrors:
		return nil, errors.New("the tool answered with an error")
	case failed:
		return nil, &idempotency.RejectedError{Response: kept}
	}
	return kept, nil
}

// faultCode returns the code of a JSON-RPC error, or 0 if it has none.
func faultCode(fault jsontext.Value) (code float64) {
	_ = members(fault, func(name string, value jsontext.Value) error {
		if name == "code" && value.Kind() == '0' {
			_, _ = fmt.Sscan(string(value), &code) // 0 if it is not a number
		}
		return nil
	})
	return code
}

// resultKind says what an answer of the server is.
type resultKind int

// The kinds of answers.
const (
	final      resultKind = iota // the tool's result
	question                     // the client sends the call again with the answer
	unfinished                   // a task, or another answer before the result
)

// readResult reports whether a result is an error of the tool, and what kind of answer it is.
func readResult(result jsontext.Value) (isError bool, kind resultKind) {
	var task, content bool
	_ = members(result, func(name string, value jsontext.Value) error {
		switch name {
		case "isError":
			isError = value.Kind() == 't'
		case "task":
			task = value.Kind() == '{'
		case "content", "structuredContent":
			content = true
		case "resultType":
			switch {
			case value.Kind() != '"':
			case stringOf(value) == "input_required":
				kind = question
			case stringOf(value) != "complete":
				kind = unfinished
			}
		}
		return nil
	})
	if kind == final && task && !content {
		kind = unfinished
	}
	return isError, kind
}

// replay returns the answer of an earlier call. What an operator has stored with seqledger key resolve need not be an
// answer; then it becomes the text of one.
func (c *call) replay(stored []byte, rejected bool) []byte {
	name, value := envelope(stored)
	switch name {
	case "result":
		if marked, err := mark(value, "_meta", metaReplayed); err == nil {
			return rpcResult(c.id, marked)
		}
	case "error":
		if marked, err := mark(value, "data", metaReplayed); err == nil {
			return rpcFault(c.id, marked)
		}
		return rpcFault(c.id, value) // its data is not an object
	}
	return rpcResult(c.id, fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"isError":%t,"_meta":{%s:true}}`,
		quote(string(stored)), rejected, quote(metaReplayed)))
}

// envelope returns the only member of a stored answer, or "" if it is not a stored answer.
func envelope(stored []byte) (member string, value jsontext.Value) {
	count := 0
	err := members(stored, func(name string, v jsontext.Value) error {
		count++
		member, value = name, v
		return nil
	})
	if err != nil || count != 1 || value.Kind() != '{' ||
		member != "result" && (member != "error" || faultCode(value) == 0) {
		return "", nil
	}
	return member, value
}

// mark adds a mark to a member of an object; the member must be an object or absent.
func mark(object jsontext.Value, member, name string) (jsontext.Value, error) {
	inner := jsontext.Value("{}")
	err := members(object, func(one string, value jsontext.Value) error {
		if one == member && value.Kind() != 'n' {
			inner = value
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	inner, err = setMembers(inner, edit{name, jsontext.Value("true")})
	if err != nil {
		return nil, err
	}
	return setMembers(object, edit{member, inner})
}

// advice returns a result that says why a tool was not run, and what to do.
func advice(code idempotency.Code, action idempotency.Action, text string) jsontext.Value {
	return fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"isError":true,"_meta":{%s:%s,%s:%s}}`,
		quote(text), quote(metaCode), quote(string(code)), quote(metaAction), quote(string(action)))
}

// unknown returns the result of a call whose outcome is unknown.
func (c *call) unknown(record *idempotency.RecordKey, why string) jsontext.Value {
	find := c.tool.IfUnknown
	if find == "" {
		find = "Look with a tool that only reads, or ask a person."
	}
	scope := "--organization " + shell(record.Scope.Organization)
	if record.Scope.Vault != "" {
		scope += " --vault " + shell(record.Scope.Vault)
	}
	if record.Principal != "" {
		scope += " --principal " + shell(record.Principal)
	}
	return advice(idempotency.CodeOutcomeUnknown, idempotency.Reconcile, fmt.Sprintf(
		"%s It may have happened, and the tool %s is not run again by itself. Find out whether it happened before you "+
			"do anything in its place: %s A person who knows settles it with: seqledger key resolve %s --namespace %s "+
			"%s --as committed (or rejected) --response TEXT. Repeats of this call get that text.", why, c.name, find,
		scope,
		shell(record.Namespace), shell(record.Key)))
}

// shell quotes a word for a shell if necessary.
func shell(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+,", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// refusal returns the result of a call that was not made.
func (c *call) refusal(record *idempotency.RecordKey, err error) jsontext.Value {
	e, ok := errors.AsType[*idempotency.Error](err)
	if !ok {
		return advice(idempotency.CodeStoreUnavailable, idempotency.SameKey,
			"The call was not made: "+err.Error()+". Nothing was done. Repeat the same call.")
	}
	text := "The call was not made: " + err.Error()
	wait := int(math.Ceil(e.RetryAfter.Seconds()))
	switch e.Code {
	case idempotency.CodeOutcomeUnknown:
		return c.unknown(record, "An earlier call like this one began and did not end.")
	case idempotency.CodeInFlight:
		text = fmt.Sprintf("An earlier call like this one still runs, or its guard was killed. Nothing new was done. "+
			"Repeat this call with the same %s in some seconds, at most %d, to get its result.", c.sameness(), wait)
	case idempotency.CodeKeyReused:
		text = "The key was used for another call. Nothing was done. For a new action take a new key; to repeat the " +
			"earlier call send its own arguments."
	case idempotency.CodeNotRetained:
		text = "An earlier call has run the tool, and its result is no longer kept. It was not run again. Look up " +
			"what it has done, if you need to know."
	case idempotency.CodeExpired:
		text = "An earlier call with this key was made too long ago for its result, and may have run the tool. It " +
			"was not run again. Find out what became of it before you do anything in its place."
	case idempotency.CodeQuota:
		text = fmt.Sprintf("Too many keys are in use. Nothing was done. Repeat the same call in %d seconds.", wait)
	case idempotency.CodeStoreUnavailable:
		text = fmt.Sprintf("The ledger that keeps track of calls does not answer. Nothing was done. Repeat the "+
			"same call "+
			"in %d seconds.", wait)
	}
	return advice(e.Code, e.Action(), text)
}
