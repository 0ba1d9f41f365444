package client

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func TestOptionsOfAccess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options Options
		says    string // empty: good
	}{
		"TLS":                 {Options{Server: "https://localhost:1", TLS: new(tls.Config)}, ""},
		"https, no TLS":       {Options{Server: "https://localhost:1"}, ""},
		"TLS in cleartext":    {Options{Server: "http://localhost:1", TLS: new(tls.Config)}, "https"},
		"TLS, no scheme":      {Options{Server: "localhost:1", TLS: new(tls.Config)}, "https"},
		"TLS twice":           {Options{Server: "https://localhost:1", TLS: new(tls.Config), HTTPClient: http.DefaultClient}, "HTTPClient"},
		"token":               {Options{Server: "localhost:1", Token: "sl_a_b"}, ""},
		"token with newline":  {Options{Server: "localhost:1", Token: "secret\n"}, "Options.Token"},
		"token of two words":  {Options{Server: "localhost:1", Token: "secret secret"}, "Options.Token"},
		"token, not in ASCII": {Options{Server: "localhost:1", Token: "secrét"}, "Options.Token"},
	} {
		c, err := New(test.options)
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != (test.says == "") || err != nil && (!strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "secr")) {
			t.Errorf("%s: got %v, want an error about %q", name, err, test.says)
		}
	}
}

// TestTokenOverTLS: the certificate is looked at before the token is sent.
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
		c, err := New(Options{Server: s.URL, Token: "sl_a_b", TLS: config, MaxAttempts: 1})
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
		t.Fatal("a server that nobody trusts got the token")
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	ask(&tls.Config{RootCAs: trusted})
	if len(seen) != 1 || <-seen != "Bearer sl_a_b" {
		t.Error("the token was not sent")
	}
}
