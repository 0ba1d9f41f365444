package address

import (
	"net/url"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"http://ledger": "ledger:80", "http://ledger:7450": "ledger:7450", "https://ledger": "ledger:443",
		"https://[::1]": "[::1]:443", "http://[::1]:7": "[::1]:7",
	} {
		check.Equal(t, Of(must.Get(url.Parse(server))(t)), want, "%s: got %v", server)
	}
}
