package server

import (
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/auth"
)

// permits remembers what one WriteStream's caller may write, because a stream
// has a million writes of a few clients, and patterns are slower than a map.
// They hold for as long as the credential does: a file that says something else
// ends it, and with it the stream. For one goroutine.
type permits struct {
	credential *auth.Credential
	known      map[permitKey]error // nil errors: permitted
	last       permitKey
	lastErr    error
}

// permitKey is a stream of the ledger.
type permitKey struct {
	scope    machine.Scope
	clientID string
}

// maxPermits is how many answers are remembered.
const maxPermits = 1_024

func newPermits(c *auth.Credential) *permits {
	p := &permits{credential: c, known: make(map[permitKey]error)}
	p.lastErr = c.Write(p.last.scope, p.last.clientID)
	return p
}

// write returns nil if the caller may make this write. The write is valid.
func (p *permits) write(m *seqledgerv1.WriteRequest) error {
	key := permitKey{scopeOf(m.Scope), m.ClientId}
	if key == p.last {
		return p.lastErr
	}
	err, found := p.known[key]
	if !found {
		if len(p.known) >= maxPermits {
			clear(p.known)
		}
		err = p.credential.Write(key.scope, key.clientID)
		p.known[key] = err
	}
	p.last, p.lastErr = key, err
	return err
}
