package server

import "testing"

func TestLoopbackHost(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost:80": true, "127.0.0.1": true, "127.0.0.1:7400": true, "127.255.1.2:1": true,
		"[::1]": true, "[::1]:7400": true, "[::ffff:127.0.0.1]:1": true,
		"": false, "example.com": false, "example.com:80": false, "localhost.example.com": false, "10.0.0.1": false,
		"0.0.0.0": false, "[::]:80": false, "127.0.0.1.example.com": false, "[::1%eth0]:80": false, "128.0.0.1": false,
		"localhost@example.com": false, "127.1": false, "2130706433": false,
	} {
		if got := loopbackHost(host); got != want {
			t.Errorf("%q: got %t, want %t", host, got, want)
		}
	}
}
