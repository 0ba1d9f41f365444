package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestTokensThatAreNone: a token that cannot be sent is refused before anything is sent, and the error does not show
// it.
func TestTokensThatAreNone(t *testing.T) {
	t.Parallel()
	broken := errors.New("the vault is closed")
	for name, token := range map[string]func(context.Context) (string, error){
		"newline":        client.StaticToken("secret\n"),
		"none to be had": func(context.Context) (string, error) { return "", broken },
	} {
		c, err := client.New(client.Options{Server: "localhost:1", Token: token})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write(t.Context(), &seqledgerv1.WriteRequest{Sequence: 1})
		if !errors.Is(err, failure.ErrNotExecuted) || !strings.Contains(err.Error(), "Options.Token") ||
			strings.Contains(err.Error(), "secr") {
			t.Errorf("%s: got %v", name, err)
		}
		if name == "none to be had" && !errors.Is(err, broken) {
			t.Errorf("the cause is lost: %v", err)
		}
		_ = c.Close()
	}
}

// TestTokenOverTLS: the client verifies the certificate before it sends the token.
func TestTokenOverTLS(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	ask := func(config *tls.Config) {
		c, err := client.New(client.Options{Server: s.URL, Token: client.StaticToken("sl_a_b"), TLS: config,
			MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.GetEntity(t.Context(), &seqledgerv1.GetEntityRequest{})
		if err == nil {
			t.Error("no error")
		}
		_ = c.Close()
	}
	ask(&tls.Config{RootCAs: roots})
	if len(seen) > 0 {
		t.Fatal("an untrusted server got the token")
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	ask(&tls.Config{RootCAs: trusted})
	if len(seen) != 1 || <-seen != "Bearer sl_a_b" {
		t.Error("the token was not sent")
	}
}
