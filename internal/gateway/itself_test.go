package gateway

import (
	"net/url"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestIsItself checks that a gateway is not its own upstream, under any name of this machine.
func TestIsItself(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		listen, upstream string
		want             bool
	}{
		{"127.0.0.1:7480", "http://127.0.0.1:7480", true},
		{"127.0.0.1:7480", "http://localhost:7480/path", true},
		{"127.0.0.1:7480", "http://127.0.0.1:7481", false},
		{"127.0.0.1:7480", "http://127.0.0.2:7480", false},
		{"127.0.0.1:80", "http://127.0.0.1", true},
		{"127.0.0.1:80", "https://127.0.0.1", false},
		{":7480", "http://127.0.0.1:7480", true},
		{"0.0.0.0:7480", "http://127.0.0.9:7480", true},
		{":7480", "http://192.0.2.1:7480", false},
		{"127.0.0.1:0", "http://127.0.0.1:7480", false},
		{"", "http://127.0.0.1:7480", false},
	} {
		upstream := must.Get(url.Parse(test.upstream))(t)
		check.Equal(t, isItself(test.listen, upstream), test.want, "%s before %s: got %t", test.listen, test.upstream)
	}
}
