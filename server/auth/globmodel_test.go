package auth

import (
	"regexp"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// texts returns all texts of these letters with up to so many of them.
func texts(letters string, length int) []string {
	all, last := []string{""}, []string{""}
	for range length {
		var next []string
		for _, text := range last {
			for _, letter := range letters {
				next = append(next, text+string(letter))
			}
		}
		all, last = append(all, next...), next
	}
	return all
}

// TestGlobIsLikeAnExpression: every short pattern matches just what the regular expression does that has ".*" for a
// star. A pattern that matches more would open scopes to a credential that is not for them.
func TestGlobIsLikeAnExpression(t *testing.T) {
	t.Parallel()
	subjects := texts("ab", 5)
	for _, pattern := range texts("ab*", 5) {
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		want := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		g := newGlob(pattern)
		for _, text := range subjects {
			must.Equal(t, g.match(text), want.MatchString(text), "%q and %q: %v", pattern, text)
		}
	}
}

// TestAPatternIsForItsOwnScope: the names of an organization and a vault, written as a pattern without stars, match
// this scope and no other, whatever slashes are in the names.
func TestAPatternIsForItsOwnScope(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "a/b", "b/a", "a/", "/a", "/", "2F", "a/2F", "ab"}
	var scopes []machine.Scope
	for _, organization := range names {
		for _, vault := range append([]string{""}, names...) {
			scopes = append(scopes, machine.Scope{Organization: organization, Vault: vault})
		}
	}
	escape := strings.NewReplacer("/", "%2F")
	for i, scope := range scopes {
		text := escape.Replace(scope.Organization)
		if scope.Vault != "" {
			text += "/" + escape.Replace(scope.Vault)
		}
		p, err := newScopePattern(text)
		if err != nil {
			if scope.Validate("") == nil {
				t.Errorf("%q is no pattern for %+v: %v", text, scope, err)
			}
			continue
		}
		for k, other := range scopes {
			check.Equal(t, p.match(other), i == k, "%q, written for %+v, matches %+v: %v", text, scope, other)
		}
	}
}
