package tools

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/idempotency"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Options configure the tools. Only Client is required.
type Options struct {
	// Client calls the ledger.
	Client *client.Client
	// Scope and Namespace are the defaults for calls that name none.
	Scope     *seqledgerv1.Scope
	Namespace string
	// Timeout bounds a call to the ledger, in addition to the wait that a reserve asks for; 0 means 30 s.
	Timeout time.Duration
	// Version is the server's version, which its clients may show.
	Version string
}

// instructions are the instructions for an agent on all tools together.
const instructions = `seqledger makes retries safe. Before an action that must not happen twice, call reserve with a
key that names the action (for example the order's id) and with the action's parameters as request. Only if the outcome
is ACQUIRED do the action; then call complete with its result, or reject if it was refused for good. After a timeout or
an error never choose another key: repeat the same call. INDETERMINATE means that the action may have happened: find
out, then call resolve. Use write_once when the action is itself a record in the ledger.`

// Server returns an MCP server with the tools.
func Server(o Options) *mcp.Server {
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "seqledger", Title: "seqledger", Version: o.Version},
		&mcp.ServerOptions{Instructions: instructions, Capabilities: &mcp.ServerCapabilities{}, SchemaCache: schemas})
	t := &tools{o}
	t.addRecords(s)
	t.addLedger(s)
	return s
}

// schemas caches the schemas of the tools, which are the same in every server of a process.
var schemas = mcp.NewSchemaCache()

// tools holds the handlers.
type tools struct{ Options }

// hints returns the annotations of a tool. No tool reaches beyond the ledger.
func hints(title string, readOnly, idempotent, destructive bool) *mcp.ToolAnnotations {
	open := false
	return &mcp.ToolAnnotations{
		Title: title, ReadOnlyHint: readOnly, IdempotentHint: idempotent, DestructiveHint: &destructive,
		OpenWorldHint: &open,
	}
}

// add adds a tool whose handler returns an output or an error that says what to do.
func add[In, Out any](
	s *mcp.Server, name, description string, annotations *mcp.ToolAnnotations,
	handle func(context.Context, *In) (*Out, error),
) {
	mcp.AddTool(s, &mcp.Tool{Name: name, Description: description, Annotations: annotations},
		func(ctx context.Context, r *mcp.CallToolRequest, in In) (*mcp.CallToolResult, *Out, error) {
			if _, err := fingerprintOf(ctx, r.Params.Arguments); err != nil { // in is rounded and has one of two names
				return nil, nil, fmt.Errorf("arguments: %w; nothing was done", err)
			}
			out, err := handle(ctx, &in)
			return nil, out, err
		})
}

// record identifies the record of a key.
type record struct {
	Scope     string `json:"scope,omitempty" jsonschema:"organization or organization/vault; leave it out for the server's own"`
	Namespace string `json:"namespace,omitempty" jsonschema:"kind of action, such as charge or send-mail; 0 to 128 characters"`
	Principal string `json:"principal,omitempty" jsonschema:"party on whose behalf to act; leave it out unless the credential is a delegate's"`
	Key       string `json:"key" jsonschema:"names the action, the same for every repeat of it: 1 to 256 visible ASCII characters"`
}

// scope returns the scope with a name.
func (t *tools) scope(name string) (*seqledgerv1.Scope, error) {
	if name == "" {
		if t.Scope == nil {
			return nil, errors.New("scope is missing: name an organization, or organization/vault; nothing was done")
		}
		return t.Scope, nil
	}
	organization, vault, slash := strings.Cut(name, "/")
	if organization == "" || slash && (vault == "" || strings.Contains(vault, "/")) {
		return nil, fmt.Errorf("scope %q must be an organization, or organization/vault; nothing was done", name)
	}
	return &seqledgerv1.Scope{Organization: organization, Vault: vault}, nil
}

// key returns the key of a record.
func (t *tools) key(r *record) (*seqledgerv1.RecordKey, error) {
	scope, err := t.scope(r.Scope)
	if err != nil {
		return nil, err
	}
	k := &seqledgerv1.RecordKey{Scope: scope, Namespace: r.Namespace, Principal: r.Principal, Key: r.Key}
	if k.Namespace == "" {
		k.Namespace = t.Namespace
	}
	return k, nil
}

// within bounds a call to the ledger. The context also ends with the HTTP request, if there is one.
func (t *tools) within(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, t.Timeout+wait)
	request, ok := ctx.Value(requestKey{}).(context.Context)
	if !ok {
		return ctx, cancel
	}
	stop := context.AfterFunc(request, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// owner is the result of a reserve.
type owner struct {
	record

	Token     string `json:"token" jsonschema:"token of the reserve"`
	AttemptID string `json:"attempt_id" jsonschema:"attempt_id of the reserve, 32 hex digits"`
}

func (t *tools) ownership(o *owner) (*seqledgerv1.Ownership, error) {
	key, err := t.key(&o.record)
	if err != nil {
		return nil, err
	}
	token, err := strconv.ParseUint(o.Token, 10, 64)
	if err != nil || token == 0 {
		return nil, errors.New("token must be the number that reserve answered; nothing was done")
	}
	id, err := attemptID(o.AttemptID)
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.Ownership{Record: key, Token: token, AttemptId: id}, nil
}

func attemptID(text string) ([]byte, error) {
	id, err := hex.DecodeString(text)
	if err != nil || len(id) != 16 {
		return nil, errors.New("attempt_id must be 32 hex digits; nothing was done")
	}
	return id, nil
}

// seconds returns a duration of a call, or nil for 0.
func seconds(n int64) *durationpb.Duration {
	if n == 0 {
		return nil
	}
	return &durationpb.Duration{Seconds: n}
}

// moment returns a time as text, or "" if it is unset.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

// recordOutput is a record for an agent.
type recordOutput struct {
	State          string `json:"state" jsonschema:"PENDING, COMMITTED, REJECTED, INDETERMINATE, WRITTEN or EXPIRED"`
	Token          string `json:"token" jsonschema:"fencing token of the last owner"`
	Attempts       uint64 `json:"attempts" jsonschema:"how many owners there have been"`
	CreatedAt      string `json:"created_at,omitempty"`
	CompletedAt    string `json:"completed_at,omitempty"`
	LeaseExpiresAt string `json:"lease_expires_at,omitempty" jsonschema:"when the last owner's lease ends or ended"`
	ExpiresAt      string `json:"expires_at,omitempty" jsonschema:"when the result expires or has expired"`
	ForgottenAt    string `json:"forgotten_at,omitempty" jsonschema:"when the key is free, unless never"`
	Response       string `json:"response,omitempty" jsonschema:"the result, as its owner stored it"`
	// ResponseBase64 is set instead of Response if the result is not UTF-8, because JSON cannot carry it, and an agent
	// must not get a different result. The same holds for CheckpointBase64.
	ResponseBase64 string `json:"response_base64,omitempty" jsonschema:"the result in base64, where it is not text"`
	ResponseBytes  uint64 `json:"response_bytes,omitempty" jsonschema:"size of the result; more than response has if it was not kept"`
	Checkpoint     string `json:"checkpoint,omitempty" jsonschema:"progress of past owners"`

	CheckpointBase64 string `json:"checkpoint_base64,omitempty" jsonschema:"the progress in base64, where it is not text"`
}

func showRecord(r *seqledgerv1.IdempotencyRecord) *recordOutput {
	if r == nil {
		return nil
	}
	out := &recordOutput{
		State: strings.TrimPrefix(r.GetState().String(), "RECORD_STATE_"), Token: number(r.GetToken()),
		Attempts: r.GetAttempts(), CreatedAt: moment(r.GetCreatedAt()), CompletedAt: moment(r.GetCompletedAt()),
		LeaseExpiresAt: moment(r.GetLeaseExpiresAt()), ExpiresAt: moment(r.GetExpiresAt()),
		ForgottenAt:   moment(r.GetForgottenAt()),
		ResponseBytes: r.GetResponseSize(),
	}
	out.Response, out.ResponseBase64 = textOrBytes(r.GetResponse())
	out.Checkpoint, out.CheckpointBase64 = textOrBytes(r.GetCheckpoint())
	return out
}

// textOrBytes returns b as text if it is UTF-8, otherwise in base64.
func textOrBytes(b []byte) (text, encoded string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return "", base64.StdEncoding.EncodeToString(b)
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// advise returns an error that says what the agent should do next. It returns nil for nil.
func advise(err error) error {
	if err == nil {
		return nil
	}
	refusal, _ := errors.AsType[*failure.Error](err)
	next := "Whether the ledger took it is not known; to repeat the same call with the same key is safe."
	switch {
	case errors.Is(err, failure.ErrOutcomeUnknown):
		// This case comes first, because an earlier copy of the request may have been executed, whatever the answer to
		// the last one.
	case errors.Is(err, failure.ErrNotFound):
		next = "There is no such thing in this scope, namespace and principal. Check them; nothing was changed."
	case errors.Is(err, failure.ErrConditionFailed):
		next = "Nothing was written, and the key is free. Read the entity again and decide anew."
	case errors.Is(err, failure.ErrUnauthenticated):
		next = "Nothing was done. A person must give this server a valid credential (--token-file)."
	case errors.Is(err, failure.ErrNotExecuted):
		next = "Nothing was written. Repeat the same call with the same key."
	case refusal != nil:
		next = adviseOn(refusal, next)
	}
	return fmt.Errorf("%w. %s", err, next)
}

// adviseOn says what to do about a refusal.
func adviseOn(e *failure.Error, otherwise string) string {
	switch e.Code {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT:
		return "Correct " + e.Field + " and call again with the same key. Nothing was done."
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED:
		return "The key stands for another action, which was done; this one was not. Take a new key only if this " +
			"is a new action; otherwise repeat the first call as it was."
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED:
		return "Nothing was done. Do not repeat it: the credential of this server does not allow it."
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_KEYS:
		return "Nothing was done. Repeat the same call later: records must expire first."
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_WAITERS,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER:
		return "Nothing was done. Repeat the same call with the same key in a moment."
	}
	return otherwise
}

// fingerprint returns the fingerprint of the request that a key belongs to.
func fingerprint(ctx context.Context, request any) (*seqledgerv1.Fingerprint, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	f, err := fingerprintOf(ctx, body)
	if err != nil {
		return nil, fmt.Errorf("request cannot be compared with that of a repeat: %w; nothing was done", err)
	}
	return &seqledgerv1.Fingerprint{Algorithm: uint32(f.Algorithm), Digest: f.Digest[:]}, nil
}

// fingerprintOf returns the fingerprint of a JSON value. It refuses what has more than one meaning.
func fingerprintOf(ctx context.Context, body []byte) (idempotency.Fingerprint, error) {
	return idempotency.NewFingerprint(ctx, idempotency.FingerprintJCS, nil,
		&idempotency.Request{Method: "reserve", Body: body})
}
