package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/seqledger/seqledger/client"
)

// connectionFlags name the server and the caller's credentials. The certificate has no
// environment variable, because serve's variable would be taken for the client's.
type connectionFlags struct {
	Server    string `help:"Address of the server, host:port or https://host:port; several of one ledger, separated by commas." default:"127.0.0.1:7450"`
	Token     string `help:"API key or session token. Other users can see it on a command line; prefer the variable or a file." placeholder:"TOKEN"`
	TokenFile string `help:"File with the API key or session token." type:"path" placeholder:"FILE"`
	Cleartext bool   `name:"cleartext-token" help:"Send the token without TLS to another host, where the network can read it." env:"-"`
	TLSCA     string `name:"tls-ca" help:"Certificates to trust instead of the system's, for https." type:"path" placeholder:"FILE"`
	TLSCert   string `name:"tls-cert" help:"Client certificate, for a server that requires one." type:"path" env:"-" placeholder:"FILE"`
	TLSKey    string `name:"tls-key" help:"Private key of --tls-cert." type:"path" env:"-" placeholder:"FILE"`
}

// options returns the client's options. The errors are usage errors.
func (f *connectionFlags) options() (o client.Options, err error) {
	servers, config, err := f.target()
	if err != nil {
		return o, err
	}
	o.Server, o.TLS = strings.Join(servers, ","), config
	token, err := f.token()
	if err != nil || token == "" {
		return o, err
	}
	o.Token, o.CleartextToken = client.StaticToken(token), f.Cleartext
	for _, server := range servers {
		if !f.Cleartext && !strings.HasPrefix(server, "https://") && !loopbackURL(server) {
			return o, usage(
				"--server %s: the token would go to %s in clear, where the network can read it; use https://, or "+
					"--cleartext-token",
				f.Server, server)
		}
	}
	return o, nil
}

// target returns the servers, with https:// if there are TLS flags, and the TLS configuration,
// nil without these flags.
func (f *connectionFlags) target() (servers []string, config *tls.Config, err error) {
	encrypted := f.TLSCA != "" || f.TLSCert != "" || f.TLSKey != ""
	if encrypted {
		if config, err = f.tls(); err != nil {
			return nil, nil, err
		}
	}
	for server := range strings.SplitSeq(f.Server, ",") {
		server = strings.TrimSpace(server)
		if !strings.Contains(server, "://") {
			if server = withPort(server); encrypted {
				server = "https://" + server
			}
		}
		if err := f.checkServer(baseURL(server)); err != nil {
			return nil, nil, err
		}
		servers = append(servers, server)
	}
	return servers, config, nil
}

// defaultPort is the port of serve, which a host alone means. A URL without a port means the one of its scheme.
const defaultPort = "7450"

// withPort adds the default port to a host without one.
func withPort(server string) string {
	if host := strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"); net.ParseIP(host) != nil {
		return net.JoinHostPort(host, defaultPort)
	}
	if server == "" || strings.ContainsAny(server, ":/") {
		return server
	}
	return net.JoinHostPort(server, defaultPort)
}

// checkServer refuses an invalid address.
func (f *connectionFlags) checkServer(base string) error {
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return usage("--server %s: must be host:port, http://host:port or https://host:port", f.Server)
	case u.Scheme != "http" && u.Scheme != "https":
		return usage("--server %s: %q must be http or https", f.Server, u.Scheme)
	case u.Hostname() == "":
		return usage("--server %s: the host is missing", f.Server)
	case u.User != nil:
		return usage("--server %s: must not have a user name or password; give the credential with --token-file",
			u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return usage("--server %s: nothing may follow the address", f.Server)
	case u.Port() == "0":
		return usage("--server %s: must have the port on which the server listens", f.Server)
	}
	return checkPort("--server", f.Server, u.Port())
}

// maxTokenFile exceeds the size of any token.
const maxTokenFile = 64 << 10

func (f *connectionFlags) token() (token string, err error) {
	defer func() {
		if err == nil && strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			token, err = "", usage("--token, $SEQLEDGER_TOKEN or --token-file: has a character that is not valid "+
				"in a token")
		}
	}()
	if f.TokenFile == "" {
		return strings.TrimSpace(f.Token), nil
	}
	if f.Token != "" {
		return "", usage("--token (or $SEQLEDGER_TOKEN) and --token-file say the same thing: give one of them")
	}
	file, err := os.Open(f.TokenFile)
	if err != nil {
		return "", usage("--token-file: %w", err)
	}
	defer func() { _ = file.Close() }() // read only
	content, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil {
		return "", usage("--token-file: %w", err)
	}
	token = strings.TrimSpace(string(content))
	if token == "" {
		return "", usage("--token-file %s: is empty", f.TokenFile)
	}
	return token, nil
}

func (f *connectionFlags) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.TLSCA != "" {
		var err error
		if config.RootCAs, err = certificatePool("--tls-ca", f.TLSCA); err != nil {
			return nil, err
		}
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return nil, usage("--tls-cert and --tls-key belong together")
	}
	if f.TLSCert != "" {
		pair, err := keyPair(f.TLSCert, f.TLSKey)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// loopbackURL reports whether a server's address is on this machine.
func loopbackURL(server string) bool {
	u, err := url.Parse(baseURL(server))
	return err == nil && loopbackName(u.Hostname())
}

func loopbackName(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}
