package auth

import (
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Role is the kind of call that a credential may make. The package's comment says what each may.
type Role int

// The roles. Each one includes the rights of the one before it. The zero value is not a role.
const (
	Reader Role = iota + 1
	Writer
	// Delegate may act for other principals: a gateway.
	Delegate
	Admin
)

var roleNames = map[string]Role{"reader": Reader, "writer": Writer, "delegate": Delegate, "admin": Admin}

// String implements fmt.Stringer.
func (r Role) String() string {
	for name, role := range roleNames {
		if role == r {
			return name
		}
	}
	return "none"
}

// maxPatterns bounds the scopes, and the client ids, of one credential, because each of its requests may check all of
// them.
const maxPatterns = 100

// Grant is what a credential may do, and where. The zero value may do nothing.
type Grant struct {
	// Role is the kind of calls.
	Role Role
	// Scopes and ClientIDs are the patterns as the file or token has them.
	Scopes, ClientIDs []string
	// SharedNamespaces are the namespaces whose keyed records the credential shares; see [Credential.Shares].
	SharedNamespaces []string

	scopes  []scopePattern
	clients []glob
	every   bool // scopes has the pattern for every scope
}

// The fields of a grant in a file, for errors.
const (
	fieldRole      = "role"
	fieldScopes    = "scopes"
	fieldClientIDs = "client_ids"
	fieldShared    = "shared_namespaces"
)

// grantError is a mistake in a grant. Index is the pattern's place, -1 for the field as a whole.
type grantError struct {
	field string
	index int
	err   error
}

// Error implements error.
func (e *grantError) Error() string { return e.field + " " + e.err.Error() }

// newGrant returns the first mistake as a *grantError.
func newGrant(role string, scopes, clientIDs []string) (Grant, error) {
	g := Grant{Role: roleNames[role], Scopes: scopes, ClientIDs: clientIDs}
	if g.Role == 0 {
		return Grant{}, &grantError{fieldRole, -1, fmt.Errorf("must be reader, writer, delegate or admin, is %q", role)}
	}
	if len(scopes) == 0 || len(scopes) > maxPatterns {
		return Grant{}, &grantError{fieldScopes, -1,
			fmt.Errorf("must have 1 to %d patterns, has %d", maxPatterns, len(scopes))}
	}
	for i, text := range scopes {
		p, err := newScopePattern(text)
		if err != nil {
			return Grant{}, &grantError{fieldScopes, i, err}
		}
		g.scopes, g.every = append(g.scopes, p), g.every || p.every
	}
	if len(clientIDs) > maxPatterns {
		return Grant{}, &grantError{fieldClientIDs, -1,
			fmt.Errorf("must have at most %d patterns, has %d", maxPatterns, len(clientIDs))}
	}
	for i, text := range clientIDs {
		p, err := newClientPattern(text)
		if err != nil {
			return Grant{}, &grantError{fieldClientIDs, i, err}
		}
		g.clients = append(g.clients, p)
	}
	// A writer without client ids could not write anything, which would otherwise only show when it writes.
	if g.Role == Writer && len(clientIDs) == 0 {
		return Grant{}, &grantError{fieldClientIDs, -1, errors.New("must have a pattern, because the role is writer")}
	}
	return g, nil
}

// share adds the namespaces that the credential shares. The error is a *grantError.
func (g *Grant) share(namespaces []string) error {
	for i, name := range namespaces {
		id := machine.KeyedID{Scope: machine.Scope{Organization: "any"}, Namespace: name, Principal: SharedPrincipal}
		if name == "" || id.Validate() != nil {
			return &grantError{fieldShared, i, errors.New("must be a namespace of 1 to 128 printable ASCII characters")}
		}
	}
	g.SharedNamespaces = namespaces
	return nil
}

// DeniedError reports that a credential does not permit a request. Because it depends only on the credential and the
// request, it reveals nothing about the ledger.
type DeniedError struct {
	// Field of the request that the credential does not cover; empty when its role is not enough.
	Field string
	// Problem completes a sentence that begins with the field.
	Problem string
}

// Error implements error.
func (e *DeniedError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + " " + e.Problem
}

// They are created once, because a stream may be refused a million times.
var (
	errNoCredential = &DeniedError{Problem: "this needs a credential"}
	errScope        = &DeniedError{"scope", "is not among those of the credential"}
	errClientID     = &DeniedError{"client_id", "is not among those of the credential"}
	errRole         = &DeniedError{Problem: "the role of the credential does not allow this"}
	errPrincipal    = &DeniedError{"principal", "is not the caller, for whom alone this credential may act"}
	errObserve      = &DeniedError{Problem: "this needs a role on every scope (the scope \"*\")"}
	errNotEvery     = &DeniedError{Problem: "this needs the role admin on every scope"}
)

func (g *Grant) inScope(scope machine.Scope) bool {
	for i := range g.scopes {
		if g.scopes[i].match(scope) {
			return true
		}
	}
	return false
}

func (g *Grant) isClient(id string) bool {
	for i := range g.clients {
		if g.clients[i].match(id) {
			return true
		}
	}
	return false
}
