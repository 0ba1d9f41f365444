package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// authCheckCommand checks an auth file.
type authCheckCommand struct {
	File  string `arg:"" help:"The auth file." type:"path"`
	Key   string `help:"API key whose rights to explain; - reads it from standard input." env:"-" placeholder:"KEY"`
	Token string `help:"Session token whose rights to explain; - reads it from standard input." env:"-" placeholder:"TOKEN"`
}

func (*authCheckCommand) Help() string {
	return `Mistakes are named by line and field, with exit code 2. With --key or --token it tells what the credential
may do, or why it would be refused, with exit code 3.

    seqledger auth check auth.yaml
    seqledger auth check auth.yaml --key - < till-7.key`
}

// authCheckResult is the answer with --json. Without a credential only keys is set.
type authCheckResult struct {
	Keys      int               `json:"keys"`
	Actor     string            `json:"actor,omitempty"`
	Role      string            `json:"role,omitempty"`
	Scopes    []string          `json:"scopes,omitempty"`
	ClientIDs []string          `json:"clientIds,omitempty"`
	Expires   *time.Time        `json:"expires,omitempty"`
	Limits    *admission.Limits `json:"limits,omitempty"` // in effect, defaults included
}

func (c *authCheckCommand) Run(e *environment) error {
	if c.Key != "" && c.Token != "" {
		return usage("--key and --token: give one of them")
	}
	a, err := auth.Open(c.File, auth.Options{Logger: e.log})
	if err != nil {
		return fail(exitUsage, "", "%w", err)
	}
	result := authCheckResult{Keys: a.Stats().Keys}
	if c.Key == "" && c.Token == "" {
		return e.showAuth(result)
	}
	text := c.Key + c.Token
	if text == "-" {
		content, err := io.ReadAll(io.LimitReader(e.stdin, maxTokenFile))
		if err != nil {
			return err
		}
		text = string(content)
	}
	credential, err := a.Find(strings.TrimSpace(text))
	if err != nil {
		return fail(exitRefused, "", "refused: %w", explained(err))
	}
	if wantsKey, isKey := c.Key != "", strings.HasPrefix(credential.Actor(), "client:"); wantsKey != isKey {
		return fail(exitRefused, "", "refused: this is the credential of %s, which the other flag takes",
			credential.Actor())
	}
	grant, limits := credential.Grant(), credential.Limits()
	result.Actor, result.Role = credential.Actor(), grant.Role.String()
	result.Scopes, result.ClientIDs = grant.Scopes, grant.ClientIDs
	effective := admission.WithDefaults(limits)
	result.Limits = &effective
	if expires := credential.Expires(); !expires.IsZero() {
		result.Expires = &expires
	}
	return e.showAuth(result)
}

// explained adds the cause, which a server does not tell its clients.
func explained(err error) error {
	var refused *auth.RefusedError
	if errors.As(err, &refused) && refused.Cause != nil {
		return fmt.Errorf("%s: %w", refused.Problem, refused.Cause)
	}
	return err
}

// showLimits names the limits as the auth file does.
func showLimits(t *table, l *admission.Limits) {
	for _, limit := range []struct {
		name string
		n    int
	}{
		{"requests", l.Requests}, {"requests_per_second", l.RequestsPerSecond}, {"streams", l.Streams},
		{"connections", l.Connections}, {"message_bytes", l.MessageBytes}, {"reads", l.Reads},
		{"writes_per_second", l.WritesPerSecond}, {"stored_bytes", l.StoredBytes},
		{"keys", l.Keys}, {"waiters", l.Waiters},
	} {
		text := number(uint64(limit.n))
		if limit.n == 0 {
			text = "no limit"
		}
		t.field(limit.name, text)
	}
}

func (e *environment) showAuth(r authCheckResult) error {
	if e.json {
		return e.showObject(r)
	}
	t := newTable(e.stdout)
	t.field("keys", number(uint64(r.Keys)))
	if r.Actor == "" {
		return t.flush()
	}
	t.field("actor", r.Actor)
	t.field("role", r.Role)
	t.field("scopes", strings.Join(r.Scopes, "  "))
	t.field("client ids", strings.Join(r.ClientIDs, "  "))
	if r.Expires != nil {
		t.field("expires", r.Expires.Format(time.RFC3339))
	}
	if r.Limits != nil {
		showLimits(t, r.Limits)
	}
	return t.flush()
}
