package auth

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seqledger/seqledger/ledger/machine"
)

// glob matches a text; "*" is any run of bytes.
type glob struct {
	first string   // before the first star, or everything
	rest  []string // after each star
}

func newGlob(pattern string) glob {
	parts := strings.Split(pattern, "*")
	return glob{first: parts[0], rest: parts[1:]}
}

// match uses the leftmost position for each part. That is always right, because the part after a star may begin
// anywhere.
func (g *glob) match(text string) bool {
	if len(g.rest) == 0 {
		return text == g.first
	}
	text, ok := strings.CutPrefix(text, g.first)
	if !ok {
		return false
	}
	last := len(g.rest) - 1
	for _, part := range g.rest[:last] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, g.rest[last])
}

// everyScope is the only pattern that matches all scopes.
const everyScope = "*"

// maxPatternBytes allows two names in which every character is a slash.
const maxPatternBytes = 2*3*machine.MaxScopePart + 1

// scopePattern matches scopes; the package's comment defines it.
type scopePattern struct {
	text         string
	every        bool
	vaults       bool // vaults, rather than organizations themselves
	organization glob
	vault        glob
}

// newScopePattern parses a pattern. Its errors are messages for users.
func newScopePattern(text string) (scopePattern, error) {
	p := scopePattern{text: text, every: text == everyScope}
	if p.every {
		return p, nil
	}
	if len(text) > maxPatternBytes {
		return p, fmt.Errorf("must have at most %d bytes, has %d", maxPatternBytes, len(text))
	}
	organization, vault, slash := strings.Cut(text, "/")
	if strings.Contains(vault, "/") {
		return p, fmt.Errorf("%q has more than one slash; write a slash in a name as %%2F", text)
	}
	var err error
	if p.organization, err = newScopePart(organization); err != nil {
		return p, fmt.Errorf("%q: the organization %w", text, err)
	}
	if !slash {
		return p, nil
	}
	p.vaults = true
	if p.vault, err = newScopePart(vault); err != nil {
		return p, fmt.Errorf("%q: the vault %w", text, err)
	}
	return p, nil
}

func newScopePart(text string) (glob, error) {
	if text == "" {
		return glob{}, errors.New("is empty")
	}
	name := strings.ReplaceAll(text, "%2F", "/")
	// A star may match nothing, so the rest must be a part of a name.
	if plain := strings.ReplaceAll(name, "*", ""); plain != "" {
		if err := (machine.Scope{Organization: plain}).Validate(""); err != nil {
			return glob{}, errors.New(`must have at most 128 of [a-zA-Z0-9:_.-], "*" and %2F`)
		}
	}
	return newGlob(name), nil
}

func (p *scopePattern) match(s machine.Scope) bool {
	switch {
	case p.every:
		return true
	case p.vaults != (s.Vault != ""):
		return false
	case !p.organization.match(s.Organization):
		return false
	}
	return !p.vaults || p.vault.match(s.Vault)
}

// newClientPattern parses a pattern. Its errors are messages for users.
func newClientPattern(text string) (glob, error) {
	if machine.ValidateClientID(text) != nil {
		return glob{}, fmt.Errorf("%q must have 1 to %d bytes of printable ASCII", text, machine.MaxClientID)
	}
	return newGlob(text), nil
}
