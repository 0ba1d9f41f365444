package auth

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/seqledger/seqledger/server/admission"
)

// Options configure an Authority.
type Options struct {
	// Logger receives events for operators, never a credential. Default: slog.Default().
	Logger *slog.Logger
}

// Authority authenticates the credentials of an auth file. It is safe for concurrent use.
type Authority struct {
	path   string
	logger *slog.Logger
	policy atomic.Pointer[policy]
	shares admission.Registry
	reload sync.Mutex

	reloads, failures atomic.Uint64
	refusals          [len(reasons)]atomic.Uint64
}

// reasons are the possible reasons of a RefusedError.
var reasons = [...]string{"missing", "malformed", "unknown_key", "expired", "signature", "claims", "no_tokens"}

// Open reads an auth file. The error joins a *FileError for each mistake.
func Open(path string, o Options) (*Authority, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	p, err := load(path, o.Logger)
	if err != nil {
		return nil, err
	}
	a := &Authority{path: path, logger: o.Logger}
	if err := a.adopt(p); err != nil {
		return nil, err
	}
	a.policy.Store(p)
	return a, nil
}

// adopt sets the shares of the keys' credentials.
func (a *Authority) adopt(p *policy) (err error) {
	for _, k := range p.keys {
		if k.credential.share, err = a.shares.Of(k.credential.actor); err != nil {
			return err
		}
	}
	return nil
}

// Reload reads the files again. If they have a mistake the old ones stay in effect, and the error describes it.
func (a *Authority) Reload() error {
	a.reload.Lock()
	defer a.reload.Unlock()
	p, err := load(a.path, a.logger)
	if err == nil {
		err = a.adopt(p)
	}
	if err != nil {
		a.failures.Add(1)
		a.logger.Error("the auth file has a mistake; the previous one stays in use", "file", a.path, "error", err)
		return err
	}
	old := a.policy.Load()
	ending := p.succeed(old)
	// Store the new policy first, so that a caller whose credential ends and who retries gets the new one.
	a.policy.Store(p)
	for _, end := range ending {
		end()
	}
	a.reloads.Add(1)
	a.logger.Info("the auth file was read again", "file", a.path, "keys", len(p.keys), "ended", len(ending))
	return nil
}

// succeed keeps the credentials that are the same in the older policy, and returns the functions that end the others.
func (p *policy) succeed(old *policy) (ending []func()) {
	for id, was := range old.keys {
		now := p.keys[id]
		switch {
		case now == nil:
			ending = append(ending, func() { was.credential.end(ErrRevoked) })
		case now.same(was):
			p.keys[id] = was
		case now.hash != was.hash: // another secret: the old one is no longer valid
			ending = append(ending, func() { was.credential.end(ErrRevoked) })
		default:
			ending = append(ending, func() { was.credential.end(ErrChanged) })
		}
	}
	switch {
	case old.tokens.same(p.tokens):
		p.tokens = old.tokens
	case old.tokens != nil && p.tokens == nil:
		ending = append(ending, func() { old.tokens.end(ErrRevoked) })
	case old.tokens != nil:
		ending = append(ending, func() { old.tokens.end(ErrChanged) })
	}
	return ending
}

// Authenticate returns the credential of a request with these headers. The error is a *RefusedError, unless the server
// itself is at a limit.
func (a *Authority) Authenticate(h http.Header) (*Credential, error) {
	text, err := bearerOf(h)
	var c *Credential
	if err == nil {
		c, err = a.Find(text)
	}
	if err != nil {
		a.count(err)
		return nil, err
	}
	return c, nil
}

// Find returns the credential of an API key or session token. The error is that of Authenticate.
func (a *Authority) Find(text string) (*Credential, error) {
	p := a.policy.Load()
	switch {
	case isKey(text):
		return findKey(p.keys, text)
	case p.tokens == nil:
		return nil, refused("no_tokens", "the credential is not an API key, and this server takes nothing else")
	}
	return p.tokens.find(text, &a.shares)
}

func (a *Authority) count(err error) {
	var r *RefusedError
	if !errors.As(err, &r) {
		return
	}
	for i, reason := range reasons {
		if reason == r.Reason {
			a.refusals[i].Add(1)
		}
	}
}

// Stats are counted since the start.
type Stats struct {
	// Reloads that took the new files, and those that did not.
	Reloads, FailedReloads uint64
	// Refused requests by [RefusedError].Reason, with every reason.
	Refused map[string]uint64
	// Keys in the file.
	Keys int
}

// Stats returns the counters.
func (a *Authority) Stats() Stats {
	s := Stats{Reloads: a.reloads.Load(), FailedReloads: a.failures.Load(), Refused: make(map[string]uint64)}
	for i, reason := range reasons {
		s.Refused[reason] = a.refusals[i].Load()
	}
	s.Keys = len(a.policy.Load().keys)
	return s
}
