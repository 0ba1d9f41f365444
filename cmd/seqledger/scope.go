package main

import (
	"strings"

	"github.com/alecthomas/kong"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// scopeFlags name a scope. An organization and a vault may contain slashes. Because a wrong guess where
// one ends could write to the wrong scope, --scope takes at most one slash and the rest
// needs the explicit flags.
type scopeFlags struct {
	Scope        string `help:"Organization, or organization/vault. For names with slashes use --organization and --vault." placeholder:"ORG[/VAULT]"`
	Organization string `help:"Organization, in place of --scope; may hold slashes." placeholder:"ORG"`
	Vault        string `help:"Vault of --organization; may hold slashes." placeholder:"VAULT"`
}

// AfterApply implements kong's hook of that name. The two ways to name a scope are
// alternatives: the one on the command line replaces the other one from the environment or a
// file.
func (f *scopeFlags) AfterApply(ctx *kong.Context) error {
	said := make(map[string]bool)
	for _, path := range ctx.Path {
		if path.Flag != nil && !path.Resolved {
			said[path.Flag.Name] = true
		}
	}
	explicit := said["organization"] || said["vault"]
	switch {
	case explicit && !said["scope"]:
		f.Scope = ""
	case said["scope"] && !explicit:
		f.Organization, f.Vault = "", ""
	}
	return nil
}

// scope returns the scope; the error is one of usage.
func (f *scopeFlags) scope() (*seqledgerv1.Scope, error) {
	if !f.given() {
		return nil, usage("--scope is missing: name an organization, or organization/vault")
	}
	return f.optional()
}

// given reports whether any scope is set.
func (f *scopeFlags) given() bool { return f.Scope != "" || f.Organization != "" || f.Vault != "" }

// optional is scope for commands that also work on all scopes: nil means all.
func (f *scopeFlags) optional() (*seqledgerv1.Scope, error) {
	switch {
	case !f.given():
		return nil, nil
	case f.Scope != "" && (f.Organization != "" || f.Vault != ""):
		return nil, usage("--scope excludes --organization and --vault: give one of them")
	case f.Scope == "" && f.Organization == "":
		return nil, usage("--vault needs --organization")
	case f.Scope == "":
		return &seqledgerv1.Scope{Organization: f.Organization, Vault: f.Vault}, nil
	}
	organization, vault, slash := strings.Cut(f.Scope, "/")
	switch {
	case strings.Contains(vault, "/"):
		return nil, usage(
			"--scope %s has more than one slash, and either part may hold one: use --organization and --vault", f.Scope)
	case organization == "", slash && vault == "":
		return nil, usage("--scope %s: nothing may be empty on either side of the slash", f.Scope)
	}
	return &seqledgerv1.Scope{Organization: organization, Vault: vault}, nil
}

// scopeName formats a scope for messages.
func scopeName(scope *seqledgerv1.Scope) string {
	switch {
	case scope.GetVault() == "":
		return scope.GetOrganization()
	case strings.Contains(scope.GetOrganization()+scope.GetVault(), "/"):
		// --scope must never take this form, because it would be read as another scope.
		return scope.GetOrganization() + " / " + scope.GetVault()
	}
	return scope.GetOrganization() + "/" + scope.GetVault()
}

// streamFlags name a stream.
type streamFlags struct {
	scopeFlags `embed:""`
	ClientID   string `name:"client-id" help:"Client id of the writes: 1 to 256 bytes of printable ASCII." required:"" type:"clientid" placeholder:"ID"`
}
