package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// identity is a certificate and its key.
type identity struct {
	cert, key []byte // PEM
	parsed    *x509.Certificate
	private   *ecdsa.PrivateKey
}

// issue makes a certificate of 127.0.0.1 and of clients; without an issuer it is an authority.
func issue(t testing.TB, name string, issuer *identity) *identity {
	t.Helper()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: issuer == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	id := &identity{private: private}
	parent, signer := template, private
	if issuer != nil {
		parent, signer = issuer.parsed, issuer.private
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer))(t)
	id.parsed = must.Get(x509.ParseCertificate(der))(t)
	pkcs8 := must.Get(x509.MarshalPKCS8PrivateKey(private))(t)
	id.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	id.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	return id
}

func (i *identity) pair(t testing.TB) tls.Certificate {
	t.Helper()
	pair := must.Get(tls.X509KeyPair(i.cert, i.key))(t)
	return pair
}

// save writes a certificate and its key over those that are there.
func (i *identity) save(t testing.TB, f server.TLSFiles) {
	t.Helper()
	for path, content := range map[string][]byte{f.Cert: i.cert, f.Key: i.key} {
		must.Do(t, os.WriteFile(path, content, 0o600))
	}
}

// secured is a server that speaks TLS.
type secured struct {
	address string
	files   server.TLSFiles
	ca      *identity
	log     *syncBuffer
}

func serveTLS(t *testing.T, clientCA *identity) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{
		files: server.TLSFiles{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")},
		ca:    issue(t, "authority", nil), log: new(syncBuffer),
	}
	issue(t, "first", s.ca).save(t, s.files)
	if clientCA != nil {
		s.files.ClientCA = filepath.Join(dir, "ca.pem")
		must.Do(t, os.WriteFile(s.files.ClientCA, clientCA.cert, 0o600))
	}
	logger := slog.New(slog.NewTextHandler(s.log, nil))
	config := must.Get(server.LoadTLS(s.files, logger))(t)
	h := startWith(t, server.Options{TLS: config, Logger: logger})
	s.address = strings.TrimPrefix(h.url, "http://")
	return s
}

// dial makes a handshake and lets the server judge it.
func (s *secured) dial(t *testing.T, change func(*tls.Config)) (tls.ConnectionState, error) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(s.ca.parsed)
	config := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}
	if change != nil {
		change(config)
	}
	conn, err := tls.Dial("tcp", s.address, config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	// In TLS 1.3 a client learns only when it reads that its certificate was refused; a server of HTTP/2 speaks first.
	_, err = conn.Read(make([]byte, 1))
	return conn.ConnectionState(), err
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, nil)
	state, err := s.dial(t, nil)
	if err != nil || state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "h2" {
		t.Errorf("%v, version %x, protocol %q", err, state.Version, state.NegotiatedProtocol)
	}
	state, err = s.dial(t, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
	if err != nil || state.Version != tls.VersionTLS12 {
		t.Error("TLS 1.2:", err)
	}
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.1":      func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 },
		"unknown root": func(c *tls.Config) { c.RootCAs = x509.NewCertPool() },
		"CBC suites": func(c *tls.Config) {
			c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
		},
		"unknown protocol": func(c *tls.Config) { c.NextProtos = []string{"spdy"} },
	} {
		if _, err := s.dial(t, change); err == nil {
			t.Error(name, "was taken")
		}
	}
	for _, http2 := range []bool{true, false} {
		h := transport(t, http2)
		tr, _ := h.Transport.(*http.Transport)
		tr.Protocols.SetHTTP2(http2)
		tr.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
		tr.TLSClientConfig.RootCAs.AddCert(s.ca.parsed)
		admin := seqledgerv1connect.NewAdminServiceClient(h, "https://"+s.address)
		must.Do(t, check.Err(admin.GetStatus(t.Context(), connect.NewRequest(new(seqledgerv1.GetStatusRequest)))),
			"HTTP/2 %v", http2)
	}
	if answer, err := transport(t, true).Get("http://" + s.address + "/healthz"); err == nil {
		_ = answer.Body.Close()
		t.Error("cleartext HTTP/2 was answered on a TLS port")
	}
}

// TestCertificateRotation: the next connection gets the new certificate, an invalid one is ignored, and an open
// connection continues.
func TestCertificateRotation(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, nil)
	served := func() string {
		state := must.Get(s.dial(t, nil))(t)
		return state.PeerCertificates[0].Subject.CommonName
	}
	must.Equal(t, served(), "first", "not the first certificate: %v")
	second := issue(t, "second", s.ca)
	must.Do(t, os.WriteFile(s.files.Cert, second.cert, 0o600)) // half way
	for range 3 {
		check.Equal(t, served(), "first", "a certificate without its key is served: %v")
	}
	check.Equal(t, strings.Count(s.log.String(), "TLS files have a mistake"), 1,
		"the mistake is in the log %d times, want once")
	second.save(t, s.files)
	check.Equal(t, served(), "second", "the new certificate is not served: %v")
	must.Do(t, os.Remove(s.files.Key))
	check.Equal(t, served(), "second", "a missing file must change nothing: %v")
	issue(t, "third", s.ca).save(t, s.files)
	check.Equal(t, served(), "third", "the files are there again and not served: %v")
	if block, _ := pem.Decode(second.key); strings.Contains(s.log.String(), string(block.Bytes)) ||
		strings.Contains(s.log.String(), "PRIVATE") {
		t.Error("the key is in the log")
	}
}

// TestClientCertificates are demanded before anything else.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	clients := issue(t, "clients", nil)
	s := serveTLS(t, clients)
	show := func(i *identity) func(*tls.Config) {
		return func(c *tls.Config) { c.Certificates = []tls.Certificate{i.pair(t)} }
	}
	must.Do(t, check.Err(s.dial(t, show(issue(t, "till-7", clients)))), "a client with a certificate")
	if _, err := s.dial(t, nil); err == nil {
		t.Error("a client without a certificate was let in")
	}
	if _, err := s.dial(t, show(issue(t, "till-7", issue(t, "clients", nil)))); err == nil {
		t.Error("a client of another authority was let in")
	}
	// The authority changes like the certificate.
	others := issue(t, "others", nil)
	must.Do(t, os.WriteFile(s.files.ClientCA, others.cert, 0o600))
	if _, err := s.dial(t, show(issue(t, "till-7", clients))); err == nil {
		t.Error("a client of the authority before was let in")
	}
	must.Do(t, check.Err(s.dial(t, show(issue(t, "till-7", others)))), "a client of the new authority")
}

func TestLoadTLSRefuses(t *testing.T) {
	t.Parallel()
	ca := issue(t, "a", nil)
	dir := t.TempDir()
	good := server.TLSFiles{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	ca.save(t, good)
	empty := filepath.Join(dir, "empty")
	must.Do(t, os.WriteFile(empty, nil, 0o600))
	for says, files := range map[string]server.TLSFiles{
		"no such file":            {Cert: filepath.Join(dir, "absent"), Key: good.Key},
		"TLS key":                 {Cert: good.Cert, Key: filepath.Join(dir, "absent")},
		"certificate and key":     {Cert: empty, Key: good.Key},
		"there is no certificate": {Cert: good.Cert, Key: good.Key, ClientCA: empty},
		"authorities":             {Cert: good.Cert, Key: good.Key, ClientCA: filepath.Join(dir, "absent")},
	} {
		if _, err := server.LoadTLS(files, slog.New(slog.DiscardHandler)); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error about %q", err, says)
		}
	}
}

// outside is a listener that claims to be reachable from other machines.
type outside struct{ net.Listener }

func (outside) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7450} }

// TestListenerRules: callers on other machines need authentication and encryption.
func TestListenerRules(t *testing.T) {
	t.Parallel()
	authority := guard(t, server.Options{}, nil).authority
	for name, test := range map[string]struct {
		options server.Options
		want    error
	}{
		"nothing":   {server.Options{}, server.ErrNotLoopback},
		"TLS only":  {server.Options{TLS: new(tls.Config)}, server.ErrNotLoopback},
		"auth only": {server.Options{Auth: authority}, server.ErrNotEncrypted},
		"both": {server.Options{Auth: authority,
			TLS: &tls.Config{Certificates: []tls.Certificate{issue(t, "a", nil).pair(t)}}}, nil},
		"insecure":          {server.Options{Insecure: true}, nil},
		"insecure, auth":    {server.Options{Insecure: true, Auth: authority}, nil},
		"loopback, nothing": {server.Options{Version: "loopback"}, nil},
	} {
		test.options.Ledger = openLedger(t, ledger.Options{})
		test.options.Logger = slog.New(slog.DiscardHandler)
		s := must.Get(server.New(test.options))(t)
		listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		if test.options.Version == "" {
			listener = outside{listener}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // one that is let in drains at once
		if err := s.Serve(ctx, listener); !errors.Is(err, test.want) || test.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
		if _, err := listener.Accept(); err == nil {
			t.Errorf("%s: the listener is still open", name)
		}
	}
}

// TestCORS asks as a browser does.
func TestCORS(t *testing.T) {
	t.Parallel()
	const app, evil = "https://app.example.com", "https://evil.example.com"
	on := guard(t, server.Options{CORSOrigins: []string{app}}, nil)
	off := guard(t, server.Options{}, nil)
	ask := func(g *guarded, method, origin string, header map[string]string) *http.Response {
		path := "/seqledger.v1.AdminService/GetStatus"
		request := must.Get(http.NewRequestWithContext(t.Context(), method, g.url+path, strings.NewReader("{}")))(t)
		request.Header.Set("Origin", origin)
		for name, value := range header {
			request.Header.Set(name, value)
		}
		answer := must.Get(g.h1.Do(request))(t)
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		return answer
	}
	preflight := map[string]string{
		"Access-Control-Request-Method":  "POST",
		"Access-Control-Request-Headers": "authorization,connect-protocol-version,connect-timeout-ms,content-type",
	}
	call := func(g *guarded) map[string]string {
		return map[string]string{"Content-Type": "application/json", "Authorization": "Bearer " + g.keys["reader"]}
	}
	allowed := ask(on, http.MethodOptions, app, preflight)
	if allowed.StatusCode/100 != 2 || allowed.Header.Get("Access-Control-Allow-Origin") != app ||
		!strings.Contains(strings.ToLower(allowed.Header.Get("Access-Control-Allow-Headers")), "authorization") ||
		allowed.Header.Get("Access-Control-Allow-Credentials") != "" ||
		!strings.Contains(allowed.Header.Get("Vary"), "Origin") {
		t.Error("preflight:", allowed.StatusCode, allowed.Header)
	}
	if answer := ask(on, http.MethodPost, app, call(on)); answer.StatusCode != 200 ||
		answer.Header.Get("Access-Control-Allow-Origin") != app {
		t.Error("call:", answer.StatusCode, answer.Header)
	}
	for name, answer := range map[string]*http.Response{
		"preflight from elsewhere": ask(on, http.MethodOptions, evil, preflight),
		"call from elsewhere":      ask(on, http.MethodPost, evil, call(on)),
		"null":                     ask(on, http.MethodOptions, "null", preflight),
		"longer origin":            ask(on, http.MethodOptions, app+".evil.com", preflight),
		"preflight, off":           ask(off, http.MethodOptions, app, preflight),
		"call, off":                ask(off, http.MethodPost, app, call(off)),
		"PUT": ask(on, http.MethodOptions, app,
			map[string]string{"Access-Control-Request-Method": "PUT"}),
		"no credential, off": ask(off, http.MethodPost, app, map[string]string{"Content-Type": "application/json"}),
	} {
		for header := range answer.Header {
			if strings.HasPrefix(header, "Access-Control-Allow") {
				t.Errorf("%s: the answer has %s", name, header)
			}
		}
	}
}

func TestCORSOrigins(t *testing.T) {
	t.Parallel()
	for origin, want := range map[string][2]bool{ // without auth, with it
		"https://app.example.com": {true, true}, "http://localhost:3000": {true, true}, "*": {true, false},
		"": {}, "app.example.com": {}, "https://app.example.com/": {},
		"https://*.example.com": {}, "https://App.example.com": {},
		"null": {}, "ftp://a": {}, "https://a/b": {}, "https://user@a": {}, "https://a?b": {},
	} {
		for i, authenticated := range []bool{false, true} {
			check.Equal(t, (server.ValidateOrigins([]string{origin}, authenticated) == nil), want[i],
				"%q, authenticated %v: %v", origin, authenticated)
		}
	}
}
