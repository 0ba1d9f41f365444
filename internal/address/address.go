// Package address tells where a server listens.
package address

import (
	"net"
	"net/url"
)

// Of returns the host:port that the server of an http or https URL listens on. Without a port in the URL it is the
// scheme's.
func Of(base *url.URL) string {
	port := base.Port()
	switch {
	case port != "":
	case base.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(base.Hostname(), port)
}
