package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/internal/address"
)

// unreachableError says why a server gives no answer.
type unreachableError struct {
	what  string // the problem
	at    string // the address where it is wrong, if known
	hint  string // what to do
	final bool   // retrying does not help
}

// undecided is why there is no answer from a server that can be reached.
var undecided = &unreachableError{what: "the server can be reached and has not decided", hint: noLeader}

func (e *unreachableError) Error() string {
	if e.at == "" {
		return e.what
	}
	return e.what + " at " + e.at
}

// from returns the name of the server and the error, without repeating the name. A name may have several addresses,
// and --server several names; then the address shows which one failed.
func (e *unreachableError) from(server string) string {
	if _, bare, ok := strings.Cut(baseURL(server), "://"); ok && strings.TrimSuffix(bare, "/") == e.at {
		return server + ": " + e.what
	}
	return server + ": " + e.Error()
}

const isItRunning = "is the server running and is --server right? seqledger serve starts one"

// whyUnreachable explains an error of opening a connection. It returns nil for any other error.
func whyUnreachable(err error) *unreachableError {
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return untrustedCertificate(untrusted)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
		return &unreachableError{what: "the server there does not speak TLS", final: true,
			hint: "omit https:// and the --tls flags, or start the server with --tls-cert and --tls-key"}
	}
	// A TLS alert; package tls has no type for it.
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return &unreachableError{
			what: "the server ended the TLS handshake: " + strings.TrimPrefix(alert.Err.Error(), "tls: "),
			hint: "if it is about a certificate: give --tls-cert and --tls-key with one that its --tls-client-ca has " +
				"signed",
			final: true,
		}
	}
	if unknown, ok := errors.AsType[*net.DNSError](err); ok && unknown.IsNotFound {
		what := fmt.Sprintf("no machine has the name %q", unknown.Name)
		return &unreachableError{what: what, hint: "is --server right?"}
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		why := &unreachableError{what: "connection refused", hint: isItRunning}
		if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Addr != nil {
			why.at = dial.Addr.String()
		}
		return why
	}
	return nil
}

// untrustedCertificate explains why a server's certificate is not trusted.
func untrustedCertificate(err *tls.CertificateVerificationError) *unreachableError {
	e := &unreachableError{final: true}
	name, wrongName := errors.AsType[x509.HostnameError](err.Err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err.Err)
	_, noAuthority := errors.AsType[x509.UnknownAuthorityError](err.Err)
	switch {
	case noAuthority:
		e.what = "the server's certificate is not signed by a trusted authority"
		e.hint = "--tls-ca names a file with the authority's certificate, or with a self-signed server certificate"
	case wrongName:
		names := name.Certificate.DNSNames
		for _, ip := range name.Certificate.IPAddresses {
			names = append(names, ip.String())
		}
		e.what = fmt.Sprintf("the server's certificate is not for %q but for %q", name.Host, names)
		e.hint = "give --server a name that the certificate has"
	case isInvalid && invalid.Reason == x509.Expired:
		e.what = fmt.Sprintf("the server's certificate is only valid from %s to %s",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
		e.hint = "renew it, or set the clock"
	default:
		e.what = "the server's certificate is not valid: " + strings.TrimPrefix(err.Err.Error(), "x509: ")
	}
	return e
}

// probeTime bounds a probe.
const probeTime = 2 * time.Second

// probe checks whether a server answers, and returns why it does not: undecided if it can be reached, and nil if the
// reason is not known. It sends no credential.
func probe(ctx context.Context, server string, config *tls.Config) *unreachableError {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	status, body, err := askPage(ctx, server, "/healthz", config)
	if err == nil && status != http.StatusBadRequest {
		return undecided
	}
	why := whyUnreachable(err)
	base, parseErr := url.Parse(baseURL(server))
	switch {
	case why != nil || parseErr != nil || ctx.Err() != nil:
		return why
	case base.Scheme == "https":
		return whyUnreachable(shakeHands(ctx, base, config))
	case strings.Contains(body, "HTTPS") || speaksTLS(ctx, base):
		return &unreachableError{
			what: "the server speaks TLS, and --server is not https://", hint: "give --server as https://" + base.Host,
			final: true,
		}
	}
	return nil
}

// shakeHands returns the error of a TLS handshake. It sends nothing after its own part, so that
// the peer's alert is not lost with a broken connection.
func shakeHands(ctx context.Context, base *url.URL, config *tls.Config) (err error) {
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", address.Of(base))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(probeTime / 2)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1)) // a server that accepts the handshake waits for a request
	return err
}

// speaksTLS reports whether a TLS handshake begins at an address.
func speaksTLS(ctx context.Context, base *url.URL) bool {
	// The peer's identity does not matter, because nothing is sent and nothing is trusted.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", address.Of(base))
	if err == nil {
		_ = conn.Close()
		return true
	}
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error"
}

// askPage gets a page that needs no credential over a separate connection. It returns the status
// and the beginning of the body.
func askPage(ctx context.Context, server, path string, config *tls.Config) (status int, body string, err error) {
	alone := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config.Clone(), DisableKeepAlives: true,
	}}
	page := strings.TrimSuffix(baseURL(server), "/") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	answer, err := alone.Do(request)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the method and the URL
		}
		return 0, "", err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	return answer.StatusCode, string(text), errors.Join(err, answer.Body.Close())
}

// baseURL adds the scheme that --server may omit.
func baseURL(server string) string {
	if strings.Contains(server, "://") {
		return server
	}
	return "http://" + server
}
