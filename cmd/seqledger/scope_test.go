package main

import (
	"strings"
	"testing"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func TestScope(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags               scopeFlags
		organization, vault string
		refused             string
	}{
		{flags: scopeFlags{Scope: "acme"}, organization: "acme"},
		{flags: scopeFlags{Scope: "acme/main"}, organization: "acme", vault: "main"},
		{flags: scopeFlags{Organization: "a/b"}, organization: "a/b"},
		{flags: scopeFlags{Organization: "a/b", Vault: "c/d"}, organization: "a/b", vault: "c/d"},
		{flags: scopeFlags{Scope: "a/b/c"}, refused: "more than one slash"},
		{flags: scopeFlags{Scope: "acme/"}, refused: "empty"},
		{flags: scopeFlags{Scope: "/main"}, refused: "empty"},
		{flags: scopeFlags{Vault: "main"}, refused: "needs --organization"},
		{flags: scopeFlags{Scope: "acme", Organization: "acme"}, refused: "excludes"},
		{flags: scopeFlags{Scope: "acme", Vault: "main"}, refused: "excludes"},
		{refused: "--scope is missing"},
	} {
		scope, err := test.flags.scope()
		if test.refused != "" {
			if err == nil || !strings.Contains(err.Error(), test.refused) {
				t.Errorf("%+v: want a refusal with %q, got %v, %v", test.flags, test.refused, scope, err)
			} else if code, _ := classify(err); code != exitUsage {
				t.Errorf("%+v: want exit code 2, got %d", test.flags, code)
			}
			continue
		}
		if err != nil || scope.GetOrganization() != test.organization || scope.GetVault() != test.vault {
			t.Errorf("%+v: want %q and %q, got %v, %v", test.flags, test.organization, test.vault, scope, err)
		}
	}
}

// TestScopeName expects two scopes never to look the same: a/b may be a vault,
// or an organization with a slash.
func TestScopeName(t *testing.T) {
	t.Parallel()
	seen := make(map[string]*seqledgerv1.Scope)
	for _, scope := range []*seqledgerv1.Scope{
		{Organization: "a"}, {Organization: "a", Vault: "b"},
		{Organization: "a/b", Vault: "c"}, {Organization: "a", Vault: "b/c"},
	} {
		name := scopeName(scope)
		if other := seen[name]; other != nil {
			t.Errorf("%v and %v are both shown as %s", scope, other, name)
		}
		seen[name] = scope
	}
}
