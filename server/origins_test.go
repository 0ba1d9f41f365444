package server

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

func TestLoopbackHost(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost:80": true, "127.0.0.1": true, "127.0.0.1:7400": true, "127.255.1.2:1": true,
		"[::1]": true, "[::1]:7400": true, "[::ffff:127.0.0.1]:1": true,
		"": false, "example.com": false, "example.com:80": false, "localhost.example.com": false, "10.0.0.1": false,
		"0.0.0.0": false, "[::]:80": false, "127.0.0.1.example.com": false, "[::1%eth0]:80": false, "128.0.0.1": false,
		"localhost@example.com": false, "127.1": false, "2130706433": false,
	} {
		check.Equal(t, loopbackHost(host), want, "%q: got %t", host)
	}
}

// FuzzLoopbackHost: a Host that is taken for this machine is so for a URL's reader, too, whatever is written around it.
func FuzzLoopbackHost(f *testing.F) {
	for _, host := range []string{
		"localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:7450", "[::1]:80", "[::1]",
		"::1", "[::1%25lo]:80", "[::ffff:127.0.0.1]",
		"localhost.", "127.0.0.1.example.org", "example.org:127", "localhost:80:80",
		"[localhost]", "[127.0.0.1]:1", "0x7f.1", "",
	} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if !loopbackHost(host) {
			return
		}
		name := strings.ToLower(host)
		if u, err := url.Parse("http://" + host); err == nil && u.User == nil {
			name = strings.ToLower(u.Hostname())
		} else if h, _, err := net.SplitHostPort(name); err == nil {
			name = h
		}
		name = strings.Trim(name, "[]")
		if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Errorf("%q was taken for this machine", host)
		}
	})
}
