package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/seqledger/seqledger/client"
)

// connectionFlags say where the server is, and who calls it. A certificate has
// no environment, because the one of serve would be taken for the client's.
type connectionFlags struct {
	Server    string `help:"Address of the server, host:port or https://host:port; several of one ledger with commas between them." default:"127.0.0.1:7450"`
	Token     string `help:"API key or session token. Other users of the machine can see it on a command line; better use the environment or a file." placeholder:"TOKEN"`
	TokenFile string `help:"File with the API key or session token." type:"path" placeholder:"FILE"`
	Cleartext bool   `name:"cleartext-token" help:"Send the token in clear to a host that is not this machine, where the network can read it." env:"-"`
	TLSCA     string `name:"tls-ca" help:"Certificates to trust in place of the system's, for https." type:"path" placeholder:"FILE"`
	TLSCert   string `name:"tls-cert" help:"Certificate to show, for a server that asks for one." type:"path" env:"-" placeholder:"FILE"`
	TLSKey    string `name:"tls-key" help:"Private key of --tls-cert." type:"path" env:"-" placeholder:"FILE"`
}

// options returns those of the client; the errors are of usage.
func (f *connectionFlags) options(e *environment) (client.Options, error) {
	o := client.Options{Server: f.Server}
	token, err := f.token()
	if err != nil {
		return o, err
	}
	if token != "" {
		o.Token, o.CleartextToken = client.StaticToken(token), f.Cleartext
	}
	wantsTLS := f.TLSCA != "" || f.TLSCert != "" || f.TLSKey != ""
	if wantsTLS {
		if o.TLS, err = f.tls(); err != nil {
			return o, err
		}
	}
	servers := strings.Split(f.Server, ",")
	for i, server := range servers {
		if wantsTLS && !strings.Contains(server, "://") {
			servers[i] = "https://" + strings.TrimSpace(server)
		}
		if token != "" && !f.Cleartext && !strings.HasPrefix(servers[i], "https://") && !loopbackURL(strings.TrimSpace(server)) {
			return o, usage("--server %s: the token would go to %s in clear, where the network can read it; use https://, or --cleartext-token",
				f.Server, server)
		}
	}
	o.Server = strings.Join(servers, ",")
	return o, nil
}

// maxTokenFile has room for any token.
const maxTokenFile = 64 << 10

func (f *connectionFlags) token() (token string, err error) {
	defer func() {
		if err == nil && strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			token, err = "", usage("--token, $SEQLEDGER_TOKEN or --token-file: has a character that no token has")
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
		content, err := os.ReadFile(f.TLSCA)
		if err != nil {
			return nil, usage("--tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(content) {
			return nil, usage("--tls-ca %s: there is no certificate in PEM", f.TLSCA)
		}
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return nil, usage("--tls-cert and --tls-key belong together")
	}
	if f.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(f.TLSCert, f.TLSKey)
		if err != nil {
			return nil, usage("--tls-cert, --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// loopbackURL tells whether an address of a server is this machine.
func loopbackURL(server string) bool {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	u, err := url.Parse(server)
	return err == nil && loopbackName(u.Hostname())
}

func loopbackName(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

// loopbackListen tells whether only this machine can reach an address.
func loopbackListen(listen string) (bool, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false, fmt.Errorf("--listen %s: %w", listen, err)
	}
	return loopbackName(host), nil
}
