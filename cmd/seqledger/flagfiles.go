package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// This file checks what flags name: key pairs, certificates, addresses and directories. The
// errors are usage errors and name the flag.

// keyPair reads the files of --tls-cert and --tls-key.
func keyPair(cert, key string) (tls.Certificate, error) {
	certificate, err := os.ReadFile(cert)
	if err != nil {
		return tls.Certificate{}, usage("--tls-cert: %w", err)
	}
	private, err := os.ReadFile(key)
	if err != nil {
		return tls.Certificate{}, usage("--tls-key: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, private)
	if err != nil {
		return pair, usage("--tls-cert %s, --tls-key %s: %s", cert, key, strings.TrimPrefix(err.Error(), "tls: "))
	}
	return pair, nil
}

// certificatePool reads the certificates that a flag names.
func certificatePool(flag, path string) (*x509.CertPool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, usage("%s %s: contains no certificate in PEM", flag, path)
	}
	return pool, nil
}

// checkListen refuses an invalid listen address, and returns the host.
func checkListen(flag, address string) (host string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", usage("%s %s: must be a host and a port, such as 127.0.0.1:7450 or [::1]:7450", flag, address)
	}
	return host, checkPort(flag, address, port)
}

// flagMistakes gathers the mistakes in flags, so that all of them are told at once.
type flagMistakes []error

// when adds a mistake if there is one.
func (m *flagMistakes) when(wrong bool, format string, args ...any) {
	if wrong {
		*m = append(*m, usage(format, args...))
	}
}

// listenOn listens on the address of a flag.
func listenOn(flag, address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		hint := ""
		if errors.Is(err, syscall.EADDRINUSE) {
			hint = "another process listens there, perhaps a seqledger; stop it, or give another " + flag
		}
		return nil, fail(exitFailed, hint, "%s %s: %w", flag, address, err)
	}
	return listener, nil
}

// checkPort refuses an invalid port.
func checkPort(flag, address, port string) error {
	if _, err := net.LookupPort("tcp", port); err != nil {
		return usage("%s %s: %q must be a port from 0 to 65535", flag, address, port)
	}
	return nil
}

// checkThere refuses paths that do not exist, given as pairs of a flag and its path, so that a mistyped name does not
// look like damage.
func checkThere(pairs ...string) error {
	for pair := range slices.Chunk(pairs, 2) {
		if _, err := os.Stat(pair[1]); pair[1] != "" && errors.Is(err, fs.ErrNotExist) {
			return usage("%s: %w", pair[0], err)
		}
	}
	return nil
}

// checkParent refuses a file that cannot be created because its directory does not exist.
// Otherwise the error would name a temporary file.
func checkParent(flag, path string) error {
	parent := filepath.Dir(path)
	info, err := os.Stat(parent)
	if err == nil && !info.IsDir() {
		err = errors.New(parent + " is not a directory")
	}
	if err != nil {
		return usage("%s %s: %w", flag, path, err)
	}
	return nil
}
