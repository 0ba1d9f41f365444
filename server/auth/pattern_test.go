package auth

import (
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

func TestScopePattern(t *testing.T) {
	t.Parallel()
	scopes := []machine.Scope{
		{Organization: "acme"}, {Organization: "acme", Vault: "main"}, {Organization: "acme", Vault: "shop-1"},
		{Organization: "acme", Vault: "shop-1/till"}, {Organization: "acme-2", Vault: "main"},
		{Organization: "acme/main"}, {Organization: "acme/main", Vault: "x"},
	}
	for pattern, want := range map[string]string{
		"*":           "1111111",
		"acme":        "1......",
		"acme/main":   ".1.....",
		"acme/*":      ".111...",
		"acme/shop-*": "..11...",
		"acme*":       "1....1.",
		"*/*":         ".1111.1",
		"*/main":      ".1..1..",
		"**":          "1....1.", // organizations themselves, and not every scope
		"acme%2Fmain": ".....1.", "acme%2Fmain/x": "......1",
		"acme/shop-1%2Ftill": "...1...",
	} {
		p, err := newScopePattern(pattern)
		if err != nil {
			t.Error(err)
			continue
		}
		got := ""
		for _, scope := range scopes {
			if p.match(scope) {
				got += "1"
			} else {
				got += "."
			}
		}
		check.Equal(t, got, want, "%q: got %s", pattern)
	}
	for _, bad := range []string{
		"", "/", "acme/", "/main", "a/b/c", "a b", "a%2fb", "a%", "a%*2F", "a\x00", "é", strings.Repeat("a", 129),
		"acme/main\n", strings.Repeat("*", maxPatternBytes+1),
	} {
		if _, err := newScopePattern(bad); err == nil {
			t.Errorf("%q was taken for a pattern", bad)
		}
	}
}

// TestDecisions is the complete table of who may do what.
func TestDecisions(t *testing.T) {
	t.Parallel()
	in, out := machine.Scope{Organization: "acme", Vault: "main"}, machine.Scope{Organization: "acme"}
	for _, test := range []struct {
		role            string
		scopes, clients []string
		// want: read in, read out, state own, state other, write own, write other, write out, administer, observe
		want string
	}{
		{"reader", []string{"acme/main"}, nil, "1........"},
		{"reader", []string{"acme/main"}, []string{"till-*"}, "1.1......"},
		{"reader", []string{"*"}, []string{"*"}, "1111....1"},
		{"writer", []string{"acme/main"}, []string{"till-*"}, "1.1.1...."},
		{"writer", []string{"acme/main", "acme"}, []string{"till-*"}, "111.1.1.."},
		{"writer", []string{"*"}, []string{"*"}, "1111111.1"},
		{"admin", []string{"acme/main"}, []string{"till-*"}, "1.1.1...."},
		{"admin", []string{"*"}, nil, "11.....11"},
		{"admin", []string{"*/*", "**"}, nil, "11......."},
		{"admin", []string{"*"}, []string{"*"}, "111111111"},
	} {
		g := must.Get(newGrant(test.role, test.scopes, test.clients))(t)
		check.Equal(t, decisions(&Credential{grant: g}, in, out), test.want, "%s %v %v: got %s", test.role, test.scopes,
			test.clients)
	}
	check.Equal(t, decisions(nil, in, out), ".........", "nobody may do something: %v")
	check.Equal(t, decisions(new(Credential), in, out), ".........", "the zero credential may do something: %v")
	if got := decisions(Anonymous(), in, out); got != "111111111" || Anonymous().Actor() != "system:anonymous" {
		t.Error("without a file, everybody may do everything:", got)
	}
}

func decisions(c *Credential, in, out machine.Scope) string {
	got := ""
	for _, err := range []error{
		c.Read(in), c.Read(out), c.ReadStream(in, "till-7"), c.ReadStream(in, "other"),
		c.Write(in, "till-7"), c.Write(in, "other"), c.Write(out, "till-7"), c.Administer(), c.Observe(),
	} {
		if err == nil {
			got += "1"
		} else {
			got += "."
		}
	}
	return got
}

// TestDecisionsDoNotAllocate: a stream asks a million times.
func TestDecisionsDoNotAllocate(t *testing.T) {
	g := must.Get(newGrant("writer", []string{"other/*", "acme/*"}, []string{"x", "till-*"}))(t)
	c := &Credential{grant: g}
	scope := machine.Scope{Organization: "acme", Vault: "main"}
	check.Equal(t, testing.AllocsPerRun(100, func() {
		if c.Write(scope, "till-7") != nil || c.Write(scope, "y") == nil {
			t.Error("wrong decision")
		}
	}), 0, "%v allocations for a decision")
}
