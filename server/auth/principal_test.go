package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server/admission"
)

// Who may make, read and settle keyed records, of itself and of other principals, in a scope of its grant and in
// another one.
func TestPrincipalDecisions(t *testing.T) {
	t.Parallel()
	in, out := machine.Scope{Organization: "acme", Vault: "main"}, machine.Scope{Organization: "other"}
	for role, want := range map[string]string{
		// own, another's, all principals; in the scope and out of it: act, inspect, settle
		"reader":   "act ......  inspect 1.....  settle ......",
		"writer":   "act 1.....  inspect 1.....  settle 1.....",
		"delegate": "act 1.1.1.  inspect 1.....  settle 1.....",
		"admin":    "act 1.1.1.  inspect 1.1.1.  settle 1.1.1.",
	} {
		g := must.Get(newGrant(role, []string{"acme/main"}, []string{"*"}))(t)
		c := &Credential{actor: "client:a", grant: g}
		check.Equal(t, principalDecisions(c, in, out), want, "%s:\ngot %s", role)
	}
	const none = "act ......  inspect ......  settle ......"
	check.Equal(t, principalDecisions(nil, in, out), none, "without a credential: %s")
	check.Equal(t, principalDecisions(new(Credential), in, out), none, "the zero credential: %s")
}

func principalDecisions(c *Credential, in, out machine.Scope) string {
	var parts []string
	for _, kind := range []struct {
		name   string
		decide func(machine.Scope, string) error
	}{{"act", c.Act}, {"inspect", c.Inspect}, {"settle", c.Settle}} {
		text := kind.name + " "
		for _, principal := range []string{"client:a", "client:b", ""} {
			for _, scope := range []machine.Scope{in, out} {
				if kind.decide(scope, principal) == nil {
					text += "1"
				} else {
					text += "."
				}
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "  ")
}

// A refusal says what the credential lacks: the role, the scope, the client id or the principal, and nothing of what is
// there.
func TestRefusalsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	in, out := machine.Scope{Organization: "acme"}, machine.Scope{Organization: "other"}
	reader, writer := grantOf(t, "reader"), grantOf(t, "writer")
	for want, err := range map[string]error{
		"this needs a credential":                                 (*Credential)(nil).MayWrite(),
		"the role of the credential does not allow this":          reader.MayWrite(),
		"scope is not among those of the credential":              writer.Read(out),
		"client_id is not among those of the credential":          writer.Write(in, "other"),
		"principal is not the caller, for whom alone this creden": writer.Act(in, "client:b"),
	} {
		denied, ok := errors.AsType[*DeniedError](err)
		if !ok || !strings.HasPrefix(denied.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func grantOf(t *testing.T, role string) *Credential {
	t.Helper()
	g := must.Get(newGrant(role, []string{"acme"}, []string{"till-*"}))(t)
	return &Credential{actor: "client:a", grant: g}
}

// A grant has a bounded number of patterns, because each request may check all of them.
func TestPatternsAreBounded(t *testing.T) {
	t.Parallel()
	patterns := make([]string, maxPatterns+1)
	for i := range patterns {
		patterns[i] = fmt.Sprint("p", i)
	}
	must.Do(t, check.Err(newGrant("writer", patterns[1:], patterns[1:])), "as many as there may be")
	for name, lists := range map[string][2][]string{
		"scopes": {patterns, {"*"}}, "client_ids": {{"*"}, patterns},
	} {
		_, err := newGrant("writer", lists[0], lists[1])
		if err == nil || !strings.HasPrefix(err.Error(), name+" must have ") ||
			!strings.HasSuffix(err.Error(), "100 patterns, has 101") {
			t.Errorf("one more of %s: %v", name, err)
		}
	}
}

// The roles have names, and what is no role has one that no file may use.
func TestRoleNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"reader", "writer", "delegate", "admin"} {
		g, err := newGrant(name, []string{"*"}, []string{"*"})
		if err != nil || g.Role.String() != name {
			t.Errorf("%s became %s: %v", name, g.Role, err)
		}
	}
	check.Equal(t, Role(0).String(), "none", "the zero role is %s")
	if _, err := newGrant("none", []string{"*"}, nil); err == nil {
		t.Error("none must be no role of a file")
	}
}

// A verifier alone, as a gateway has it, gives out a claim of a token, and of none that it would not let in.
func TestClaimOfAToken(t *testing.T) {
	t.Parallel()
	v := open(t, tokensFile).policy.Load().tokens.verifier(t)
	if who, err := v.Claim(bearer(esToken(t, goodClaims())), "sub"); err != nil || who != "ann" {
		t.Errorf("%q, %v", who, explain(err))
	}
	for name, test := range map[string]struct {
		claims jwt.MapClaims
		claim  string
		reason string
	}{
		"expired":      {jwt.MapClaims{"exp": 1_000_000}, "sub", "expired"},
		"other issuer": {jwt.MapClaims{"iss": "https://other.test"}, "sub", "claims"},
		"absent":       {nil, "tenant", "claims"},
		"empty":        {jwt.MapClaims{"tenant": ""}, "tenant", "claims"},
		"a number":     {jwt.MapClaims{"tenant": 7}, "tenant", "claims"},
		"a list":       {jwt.MapClaims{"tenant": []string{"a"}}, "tenant", "claims"},
	} {
		who, err := v.Claim(bearer(esToken(t, claimsWith(test.claims))), test.claim)
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || refused.Reason != test.reason || who != "" {
			t.Errorf("%s: %q, %v", name, who, explain(err))
		}
	}
	_, err := v.Claim(nil, "sub")
	if refused, ok := errors.AsType[*RefusedError](err); !ok || !refused.Missing() {
		t.Errorf("without a token: %v", err)
	}
	if _, err := v.WithKeys([]byte("{")); err == nil {
		t.Error("a verifier took keys that are none")
	}
	again, err := v.WithKeys([]byte(v.jwks))
	if err != nil || !v.same(again) {
		t.Errorf("the same keys make another verifier: %v", err)
	}
}

// verifier is the part of an issuer that knows no roles.
func (i *issuer) verifier(t *testing.T) *Verifier {
	t.Helper()
	if i == nil || i.Verifier == nil {
		t.Fatal("the file has no issuer")
	}
	return i.Verifier
}

// What an operator sees of a credential is what the file says, and of none it is nothing.
func TestWhatACredentialShows(t *testing.T) {
	t.Parallel()
	key, entry := newKey(t, "a", "role: reader, scopes: [acme], expires: 2099-01-02T03:04:05Z, limits: {requests: 5}")
	c := must.Get(open(t, "keys:\n"+entry).Authenticate(bearer(key)))(t)
	want := time.Date(2099, time.January, 2, 3, 4, 5, 0, time.UTC)
	if !c.Expires().Equal(want) || c.Limits() != (admission.Limits{Requests: 5}) || c.Grant().Role != Reader ||
		c.Share() == nil {
		t.Errorf("it shows %v, %+v, %v", c.Expires(), c.Limits(), c.Grant())
	}
	var none *Credential
	if none.Actor() != "" || none.Share() != nil || none.Check() == nil {
		t.Error("no credential has an actor, a share, or is valid")
	}
	ended, stop := Anonymous().Ended()
	defer stop()
	if ended.Err() != nil || !Anonymous().Expires().IsZero() {
		t.Error("the credential of a server without a file ends")
	}
}

// An authority without a logger has the default one, and a file of keys that cannot be read is an error.
func TestOpenWithoutALogger(t *testing.T) {
	t.Parallel()
	_, entry := newKey(t, "a", readsAcme)
	dir := writeFiles(t, map[string]string{"auth.yaml": "keys:\n" + entry, "empty.yaml": "", "large.yaml": "# " +
		strings.Repeat("x", maxFileBytes)})
	must.Get(Open(dir+"/auth.yaml", Options{}))(t)
	for name, says := range map[string]string{
		"absent.yaml": "no such file", "empty.yaml": "is empty", "large.yaml": "more than",
	} {
		_, err := Open(dir+"/"+name, Options{Logger: slog.New(slog.DiscardHandler)})
		check.ErrorContains(t, err, says, "%s", name)
	}
}

// A credential shares the namespaces that its entry names, and no others; an entry that shares others is another one,
// so that streams under the old rights end.
func TestSharedNamespaces(t *testing.T) {
	t.Parallel()
	shared := grantOf(t, "writer")
	must.Do(t, shared.grant.share([]string{"jobs"}))
	for namespace, want := range map[string]bool{"jobs": true, "": false, "jobs/1": false, "job": false} {
		if shared.Shares(namespace) != want || (*Credential)(nil).Shares(namespace) {
			t.Errorf("%q is shared: %t, want %t", namespace, shared.Shares(namespace), want)
		}
	}
	if other := grantOf(t, "writer"); shared.grant.same(&other.grant) || !shared.grant.same(&shared.grant) {
		t.Error("entries that share other namespaces are the same")
	}
}
