package server

import (
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/auth"
)

// authorizationCache caches decisions for the writes of one WriteStream: a stream has a million
// writes of a few clients, and a map lookup beats pattern matching. Decisions are valid as long
// as the credential: a changed auth file ends the credential, and with it the stream. It is for
// one goroutine.
type authorizationCache struct {
	credential *auth.Credential
	known      map[authorizationKey]error // nil errors: permitted
	last       authorizationKey
	lastErr    error
}

// authorizationKey is a stream of the ledger.
type authorizationKey struct {
	scope    machine.Scope
	clientID string
}

// maxAuthorizations is how many decisions are cached.
const maxAuthorizations = 1_024

func newAuthorizationCache(c *auth.Credential) *authorizationCache {
	a := &authorizationCache{credential: c, known: make(map[authorizationKey]error)}
	a.lastErr = c.Write(a.last.scope, a.last.clientID)
	return a
}

// write returns nil if the caller may make this write. The write is valid.
func (a *authorizationCache) write(m *seqledgerv1.WriteRequest) error {
	key := authorizationKey{wire.Scope(m.Scope), m.ClientId}
	if key == a.last {
		return a.lastErr
	}
	err, found := a.known[key]
	if !found {
		if len(a.known) >= maxAuthorizations {
			clear(a.known)
		}
		err = a.credential.Write(key.scope, key.clientID)
		a.known[key] = err
	}
	a.last, a.lastErr = key, err
	return err
}
