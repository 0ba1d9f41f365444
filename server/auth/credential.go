package auth

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server/admission"
)

// Why a credential has ended, as the cause of [Credential.Ended].
var (
	// ErrRevoked: the auth file no longer has the key.
	ErrRevoked = errors.New("the credential was revoked")
	// ErrChanged: its entry in the auth file has changed. The same key or token may be valid again, with other rights.
	ErrChanged = errors.New("what the credential may do has changed; connect again")
	// ErrExpired: its expiry time has passed.
	ErrExpired = errors.New("the credential has expired")
)

// Credential is an authenticated caller. A nil one may do nothing.
type Credential struct {
	actor   string
	grant   Grant
	expires time.Time // zero: never
	limits  admission.Limits
	share   *admission.Share
	ended   context.Context //nolint:containedctx // It ends with the credential, not with a call.
	end     context.CancelCauseFunc
}

// Anonymous returns the caller of a server without an auth file: it may do everything, and its actor is
// system:anonymous.
func Anonymous() *Credential {
	g, err := newGrant("admin", []string{"*"}, []string{"*"})
	if err != nil {
		panic(err) // the line above is all there is to it
	}
	return &Credential{actor: "system:anonymous", grant: g, ended: context.Background()}
}

// Actor is the name under which the ledger records what it does: client:{id} for a key, user:{id} for a token, and
// empty, which no ledger takes, for nil.
func (c *Credential) Actor() string {
	if c == nil {
		return ""
	}
	return c.actor
}

// Grant returns what the credential may do.
func (c *Credential) Grant() Grant { return c.grant }

// Limits returns its limits, with 0 for those that the file does not set.
func (c *Credential) Limits() admission.Limits {
	if c == nil {
		return admission.Limits{}
	}
	return c.limits
}

// Share returns its actor's usage of the server's bounds; nil for Anonymous, and for nil.
func (c *Credential) Share() *admission.Share {
	if c == nil {
		return nil
	}
	return c.share
}

// Expires returns when it expires; the zero time is never.
func (c *Credential) Expires() time.Time { return c.expires }

// Ended returns a context that ends with the credential: with [ErrRevoked], [ErrChanged] or [ErrExpired] as its cause.
// The caller must call stop.
func (c *Credential) Ended() (ended context.Context, stop context.CancelFunc) {
	if c.expires.IsZero() {
		return c.ended, func() {}
	}
	return context.WithDeadlineCause(c.ended, c.expires, ErrExpired)
}

// Check returns why the credential has ended, or nil.
func (c *Credential) Check() error {
	switch {
	case c == nil:
		return errNoCredential
	case c.ended.Err() != nil:
		return context.Cause(c.ended)
	case !c.expires.IsZero() && !time.Now().Before(c.expires):
		return ErrExpired
	}
	return nil
}

// Read returns nil if the contents of a scope may be read, else a *DeniedError.
func (c *Credential) Read(scope machine.Scope) error {
	switch {
	case c == nil:
		return errNoCredential
	case c.grant.Role < Reader:
		return errRole
	case !c.grant.inScope(scope):
		return errScope
	}
	return nil
}

// ReadStream returns nil if the state of a client's stream may be read, else a *DeniedError.
func (c *Credential) ReadStream(scope machine.Scope, clientID string) error {
	if err := c.Read(scope); err != nil {
		return err
	}
	if !c.grant.isClient(clientID) {
		return errClientID
	}
	return nil
}

// MayWrite returns nil if something may be written, else a *DeniedError.
func (c *Credential) MayWrite() error {
	switch {
	case c == nil:
		return errNoCredential
	case c.grant.Role < Writer:
		return errRole
	}
	return nil
}

// Write returns nil if a client's stream may be written to or taken over, else a *DeniedError.
func (c *Credential) Write(scope machine.Scope, clientID string) error {
	if err := c.MayWrite(); err != nil {
		return err
	}
	return c.ReadStream(scope, clientID)
}

// Act returns nil if keyed records of a principal may be made and finished in a scope, else a *DeniedError.
func (c *Credential) Act(scope machine.Scope, principal string) error {
	if err := c.MayWrite(); err != nil {
		return err
	}
	if principal != c.actor && c.grant.Role < Delegate {
		return errPrincipal
	}
	return c.Read(scope)
}

// SharedPrincipal is the principal of the keyed records that credentials share. No caller has it for its actor.
const SharedPrincipal = "shared"

// Shares reports whether keyed records in a namespace, in the scopes of the credential, belong to all credentials that
// share the namespace, where a request names no principal.
func (c *Credential) Shares(namespace string) bool {
	return c != nil && slices.Contains(c.grant.SharedNamespaces, namespace)
}

// Settle returns nil if the keyed records of a principal may be settled by hand in a scope, else a *DeniedError.
func (c *Credential) Settle(scope machine.Scope, principal string) error {
	if err := c.MayWrite(); err != nil {
		return err
	}
	return c.Inspect(scope, principal)
}

// Inspect returns nil if the keyed records of a principal may be read in a scope, else a *DeniedError. An empty
// principal is all of them.
func (c *Credential) Inspect(scope machine.Scope, principal string) error {
	if err := c.Read(scope); err != nil {
		return err
	}
	if principal != c.actor && c.grant.Role < Admin {
		return errPrincipal
	}
	return nil
}

// Observe returns nil if figures about the whole ledger may be seen, else a *DeniedError, because they reveal what
// others do.
func (c *Credential) Observe() error {
	switch {
	case c == nil:
		return errNoCredential
	case c.grant.Role < Reader || !c.grant.every:
		return errObserve
	}
	return nil
}

// Administer returns nil if the whole ledger may be administered, else a *DeniedError.
func (c *Credential) Administer() error {
	switch {
	case c == nil:
		return errNoCredential
	case c.grant.Role < Admin || !c.grant.every:
		return errNotEvery
	}
	return nil
}
