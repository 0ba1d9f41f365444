package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// newKeyIn makes a key and adds it to an auth file.
func newKeyIn(t *testing.T, file, id string, flags ...string) string {
	t.Helper()
	r := seqledger(t, append([]string{"auth", "new-key", "--id", id, "--append", file}, flags...)...).expect(t,
		exitDone,
		"SIGHUP")
	return strings.TrimSpace(r.stdout)
}

// TestServeWithAuth is the way of an operator: make keys, serve, call with and
// without them, take one away.
func TestServeWithAuth(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "auth.yaml")
	writer := newKeyIn(t, file, "till-7", "--scope", "acme/main", "--client-id", "till-*", "--role", "writer")
	admin := newKeyIn(t, file, "boss", "--scope", "*", "--role", "admin")
	s := serve(t, "--auth", file, "--log-level", "debug")
	write := []string{"write", "--scope", "acme/main", "--client-id", "till-7", "--append", "x"}

	s.do(t, write...).expect(t, exitRefused, "unauthenticated", "--token")
	s.do(t, append(write, "--token", writer+"x")...).expect(t, exitRefused, "unauthenticated")
	r := s.do(t, append(write, "--json", "--token", writer)...).expect(t, exitDone)
	if r.field(t, "actor") != "client:till-7" {
		t.Errorf("want the actor client:till-7, got %v", r)
	}
	s.do(t, append([]string{"SEQLEDGER_TOKEN=" + writer}, write...)...).expect(t, exitDone)
	s.do(t, append(write, "--token-file", writeFile(t, "token", writer+"\n"))...).expect(t, exitDone)
	s.do(t, append(write, "--token", writer, "--token-file", file)...).expect(t, exitUsage, "give one of them")
	s.do(t, append(write, "--token-file", filepath.Join(t.TempDir(), "absent"))...).expect(t, exitUsage, "--token-file")
	s.do(t, "write", "--scope", "acme/main", "--client-id", "loader", "--append", "x", "--token", writer).
		expect(t, exitRefused, "PERMISSION_DENIED", "client_id", "auth check")
	s.do(t, "list", "clients", "--token", writer).expect(t, exitRefused, "PERMISSION_DENIED")
	s.do(t, "list", "clients", "--token", admin).expect(t, exitDone, "till-7")

	// A bad file changes nothing.
	good := must.Get(os.ReadFile(file))(t)
	s.reload(t, file, "keys: [", "the previous one stays in use")
	s.do(t, append(write, "--token", writer)...).expect(t, exitDone)
	// A good one takes a key away, and the watch that it has open.
	watch := start(t, "watch", "--server", s.address, "--scope", "acme/main", "--json", "--token", writer)
	awaitOutput(t, watch, "transactions")
	s.reload(t, file, strings.Replace(string(good), "till-7", "till-8", 1), "read again")
	if code := watch.wait(t); code != exitRefused || !strings.Contains(watch.stderr.String(), "revoked") {
		t.Errorf("want the watch to end with exit code %d, got %d: %s", exitRefused, code, watch.stderr.String())
	}
	s.do(t, append(write, "--token", writer)...).expect(t, exitRefused, "unauthenticated")
	s.do(t, "status", "--token", admin).expect(t, exitDone)
	awaitCount(t, s.process, "was not authenticated", 1)
	for _, key := range []string{writer, admin} {
		log := s.stderr.String()
		if strings.Contains(log, key[len(key)-40:]) || !strings.Contains(log, "was not authenticated") {
			t.Error("a key is in the log, or the refusals are not:", log)
		}
	}
}

// reload gives the server's auth file a new content and waits until the log says
// what came of it.
func (s *testServer) reload(t *testing.T, file, content, says string) {
	t.Helper()
	must.Do(t, os.WriteFile(file, []byte(content), 0o600))
	must.Do(t, s.cmd.Process.Signal(syscall.SIGHUP))
	awaitLog(t, s.process, says)
}

func TestAuthNewKey(t *testing.T) {
	t.Parallel()
	flags := []string{"auth", "new-key", "--id", "report", "--scope", "acme/*", "--scope", "acme", "--role", "reader"}
	r := seqledger(t, append(flags, "--json")...).expect(t, exitDone)
	key, _ := r.field(t, "key").(string)
	entry, _ := r.field(t, "entry").(string)
	file := writeFile(t, "auth.yaml", entry)
	seqledgerInput(t, key+"\n", "auth", "check", file, "--key", "-").expect(t,
		exitDone, "client:report", "acme/*", "reader")
	text := seqledger(t, flags...).expect(t, exitDone, "hash: sha256:").stdout
	if key, entry, _ := strings.Cut(text, "\n\n"); strings.Contains(entry, key) ||
		strings.Contains(entry, key[len(key)-43:]) {
		t.Error("the entry has the secret in it")
	}
	// An append is whole or not at all, and keeps the mode and a link.
	link := filepath.Join(t.TempDir(), "link.yaml")
	must.Do(t, os.Symlink(file, link))
	seqledger(t, append(flags, "--append", link)...).expect(t, exitUsage, "report", "already")
	if now, _ := os.ReadFile(file); string(now) != entry {
		t.Errorf("a refused key changed the file:\n%s", now)
	}
	newKeyIn(t, link, "second", "--scope", "*", "--role", "reader")
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link is no longer one:", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Error("the mode has changed:", info.Mode(), err)
	}
	seqledger(t, "auth", "check", file, "--json").expect(t, exitDone, `"keys":2`)
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) > 0 {
		t.Error("left behind:", left)
	}
}

func TestAuthCheck(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "auth.yaml")
	key := newKeyIn(t, file, "a", "--scope", "*", "--role", "admin", "--expires", "2099-01-01T00:00:00Z")
	seqledger(t, "auth", "check", file).expect(t, exitDone, "keys", "1")
	seqledger(t, "auth", "check", file, "--key", key).expect(t, exitDone, "client:a", "admin", "2099")
	other := newKeyIn(t, filepath.Join(t.TempDir(), "other.yaml"), "a", "--scope", "*", "--role", "admin")
	seqledger(t, "auth", "check", file, "--key", other).expect(t, exitRefused, "not valid")
	seqledger(t, "auth", "check", file, "--token", key).expect(t, exitRefused, "client:a")
	seqledger(t, "auth", "check", file, "--token", "a.b.c").expect(t, exitRefused, "takes nothing else")
	seqledger(t, "auth", "check", file, "--token", key, "--key", key).expect(t, exitUsage, "one of them")
	bad := writeFile(t, "bad.yaml", "keys:\n- id: a\n  hash: x\n  role: root\nuser: 1\n")
	seqledger(t, "auth", "check", bad).expect(t, exitUsage, "bad.yaml:3: keys[0].hash", "bad.yaml:5: user")
	seqledger(t, "serve", "--auth", bad, "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "never")).
		expect(t, exitUsage, "bad.yaml:3: keys[0].hash", "auth check")
}

// selfSigned writes a certificate of 127.0.0.1 and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private))(t)
	pkcs8 := must.Get(x509.MarshalPKCS8PrivateKey(private))(t)
	cert = writeFile(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	key = writeFile(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
	return cert, key
}

// TestServeTLS calls over TLS, with and without a client's certificate.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t)
	s := serve(t, "--tls-cert", cert, "--tls-key", key)
	write := []string{"write", "--scope", "acme", "--client-id", "a", "--append", "x"}
	seqledger(t, append(write, "--server", s.address, "--tls-ca", cert)...).expect(t, exitDone)
	seqledger(t, append(write, "--server", "https://"+s.address, "--tls-ca", cert)...).expect(t, exitDone)
	seqledger(t, append(write, "--server", "https://"+s.address, "--timeout", "2s")...).expect(t, exitFailed,
		"certificate")
	input := numberedLines(t, 100)
	seqledger(t, "import", "--scope", "acme", "--client-id", "i", "--server", s.address,
		"--tls-ca", cert, input).expect(t, exitDone)

	second := serve(t, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
	seqledger(t, append(write, "--server", second.address, "--tls-ca", cert, "--timeout", "2s")...).expect(t,
		exitFailed)
	seqledger(t, append(write, "--server", second.address, "--tls-ca", cert, "--tls-cert", cert,
		"--tls-key", key)...).expect(t, exitDone)
	seqledger(t, append(write, "--server", second.address, "--tls-cert", cert)...).expect(t, exitUsage,
		"belong together")
	seqledger(t, append(write, "--server", second.address, "--tls-ca", input)...).expect(t, exitUsage, "no certificate")
}

// TestServeAccessFlags: what opens the server to strangers is warned of. TestServeMessages has what is refused.
func TestServeAccessFlags(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t)
	file := filepath.Join(t.TempDir(), "auth.yaml")
	newKeyIn(t, file, "a", "--scope", "*", "--role", "reader")
	s := serveOn(t, t.TempDir(), "0.0.0.0:0", "--insecure")
	awaitCount(t, s.process, "INSECURE: everyone", 1)
	awaitCount(t, s.process, "INSECURE: the network", 1)
	open := serveOn(t, t.TempDir(), "0.0.0.0:0", "--auth", file, "--tls-cert", cert, "--tls-key", key)
	_, port, err := net.SplitHostPort(open.address)
	must.Do(t, err)
	seqledger(t, "status", "--server", "127.0.0.1:"+port, "--tls-ca", cert).expect(t, exitRefused, "unauthenticated")
	open.kill() // then all of its log is here
	if strings.Contains(open.stderr.String(), "INSECURE") {
		t.Error("a warning about a server with auth and TLS:", open.stderr.String())
	}
}

// TestTokenInClear: a key goes over the network in clear only if a flag says so.
func TestTokenInClear(t *testing.T) {
	t.Parallel()
	status := func(args ...string) result {
		t.Helper()
		return seqledger(t, append([]string{"status", "--timeout", "1ms", "--token", "secret-token"}, args...)...)
	}
	for _, server := range []string{"192.0.2.1:1", "http://192.0.2.1", "127.0.0.1:1,192.0.2.1:1"} {
		r := status("--server", server).expect(t, exitUsage, "in clear", "--cleartext-token", "192.0.2.1")
		if strings.Contains(r.stderr, "secret-token") {
			t.Error("the token is repeated:", r)
		}
		status("--server", server, "--cleartext-token").expect(t, exitFailed)
	}
	status("--server", "https://192.0.2.1").expect(t, exitFailed)
	s := serve(t)
	if r := s.do(t, "status", "--token", "x").expect(t, exitDone); strings.Contains(r.stderr, "in clear") {
		t.Error("a warning on loopback:", r)
	}
}
