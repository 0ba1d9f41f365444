package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// TLSFiles are PEM files. They are checked again for every connection, so that a renewed certificate is used without a
// restart.
type TLSFiles struct {
	// Cert has the server's certificate and the intermediate ones; Key has its private key.
	Cert, Key string
	// ClientCA has the authorities of clients' certificates. If it is not empty, every client must have a certificate
	// in addition to its credential, also for health checks.
	ClientCA string
}

// LoadTLS returns a configuration for TLS 1.2 and 1.3 with HTTP/2. Files that become invalid later are logged, and the
// last valid ones stay in use.
func LoadTLS(files TLSFiles, logger *slog.Logger) (*tls.Config, error) {
	l := &tlsLoader{files: files, logger: logger}
	read, err := l.read()
	if err != nil {
		return nil, err
	}
	if l.current, err = read.config(); err != nil {
		return nil, err
	}
	l.seen = read
	// The outer configuration is never used itself: each connection gets the current one.
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         l.current.NextProtos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return l.now(), nil },
	}, nil
}

// tlsLoader caches the configuration of the current files.
type tlsLoader struct {
	files  TLSFiles
	logger *slog.Logger

	mu      sync.Mutex
	seen    pemFiles // what was read last, valid or not
	current *tls.Config
	failing string // the last error that was logged
}

// pemFiles are the contents of TLSFiles.
type pemFiles struct{ cert, key, clientCA []byte }

func (p *pemFiles) equal(q *pemFiles) bool {
	return bytes.Equal(p.cert, q.cert) && bytes.Equal(p.key, q.key) && bytes.Equal(p.clientCA, q.clientCA)
}

func (l *tlsLoader) read() (p pemFiles, err error) {
	if p.cert, err = os.ReadFile(l.files.Cert); err != nil {
		return p, fmt.Errorf("TLS certificate: %w", err)
	}
	if p.key, err = os.ReadFile(l.files.Key); err != nil {
		return p, fmt.Errorf("TLS key: %w", err)
	}
	if l.files.ClientCA != "" {
		if p.clientCA, err = os.ReadFile(l.files.ClientCA); err != nil {
			return p, fmt.Errorf("TLS authorities of clients: %w", err)
		}
	}
	return p, nil
}

// now returns the configuration for the next connection. It compares the contents of the files and not their times,
// which two versions may share; reading costs a hundredth of the handshake.
func (l *tlsLoader) now() *tls.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	read, err := l.read()
	if err == nil && read.equal(&l.seen) {
		return l.current
	}
	var fresh *tls.Config
	if err == nil {
		l.seen = read
		fresh, err = read.config()
	}
	if err != nil {
		if l.failing != err.Error() { // once, and not for every connection
			l.failing = err.Error()
			l.logger.Error("the TLS files have a mistake; the previous ones stay in use", "error", err)
		}
		return l.current
	}
	l.failing, l.current = "", fresh
	l.logger.Info("the TLS files were read again", "certificate", l.files.Cert)
	return l.current
}

// config builds the configuration from the files.
func (p *pemFiles) config() (*tls.Config, error) {
	pair, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate and key: %w", err)
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"h2", "http/1.1"},
		MinVersion:   tls.VersionTLS12,
		// For TLS 1.2: only forward-secret, authenticated ciphers, because HTTP/2 must not be used with others.
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
	}
	if p.clientCA == nil {
		return c, nil
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(p.clientCA) {
		return nil, errors.New("TLS authorities of clients: there is no certificate in the file")
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
}
