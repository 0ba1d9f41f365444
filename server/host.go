package server

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// loopbackOnly refuses requests whose Host is not this machine. A page that a
// browser got from elsewhere can make its own name resolve to 127.0.0.1 (DNS
// rebinding); the browser then sends that name as Host, and it is all that
// tells such a page from a local program.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopbackHost(r.Host) {
			http.Error(w, "this server answers only to a loopback Host: localhost, 127.0.0.0/8 or [::1]",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// loopbackHost tells whether a Host header, with or without a port, names this
// machine.
func loopbackHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		name = host[1 : len(host)-1]
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	// A zone would make it the address of an interface, so netip's
	// IsLoopback is asked only about plain addresses.
	address, err := netip.ParseAddr(name)
	return err == nil && address.Zone() == "" && address.Unmap().IsLoopback()
}

// loopbackListener tells whether only this machine can reach a listener.
func loopbackListener(l net.Listener) bool {
	tcp, ok := l.Addr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
