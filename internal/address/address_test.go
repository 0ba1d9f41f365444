package address

import (
	"net/url"
	"testing"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"http://ledger": "ledger:80", "http://ledger:7450": "ledger:7450", "https://ledger": "ledger:443",
		"https://[::1]": "[::1]:443", "http://[::1]:7": "[::1]:7",
	} {
		base, err := url.Parse(server)
		if err != nil || Of(base) != want {
			t.Errorf("%s: want %s, got %v, %v", server, want, base, err)
		}
	}
}
