package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestOptionsThatAreRefused name the field, because the caller has given several.
func TestOptionsThatAreRefused(t *testing.T) {
	t.Parallel()
	token := func(context.Context) (string, error) { return "t", nil }
	for name, test := range map[string]struct {
		options Options
		says    string
	}{
		"no server":    {Options{}, "Options.Server: is empty"},
		"an empty one": {Options{Server: "a, ,b"}, "Options.Server: is empty"},
		"a scheme":     {Options{Server: "ftp://a"}, `Options.Server: scheme "ftp"`},
		"no host":      {Options{Server: "https://"}, "Options.Server"},
		"no URL":       {Options{Server: "http://a b"}, "Options.Server"},
		"TLS in clear": {Options{Server: "a", TLS: new(tls.Config)}, "Options.TLS needs"},
		"two ways of TLS": {Options{Server: "https://a", TLS: new(tls.Config), HTTPClient: new(http.Client)},
			"Options.TLS"},
		"a token in clear": {Options{Server: "https://a,http://b", Token: token}, "Options.Token would go to b"},
		"attempts":         {Options{Server: "a", MaxAttempts: -1}, "Options.MaxAttempts is -1"},
	} {
		c, err := New(test.options)
		if err == nil {
			_ = c.Close()
		}
		check.ErrorContains(t, err, "client: "+test.says, "%s: want %q", name, test.says)
	}
}

// TestAuthorize puts a token into the header that cannot become another field of it, and shows none in its errors.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	broken := errors.New("the vault is closed")
	for token, says := range map[string]string{
		"sl_a_b": "", "a.b-c~d+/=": "", "": "",
		"sec ret": "invalid character", "sec\r\nX: y": "invalid character", "séc": "invalid character",
		"sec\x7f": "invalid character", "\t": "invalid character",
	} {
		o := Options{Token: func(context.Context) (string, error) { return token, nil }}
		header := make(http.Header)
		got, err := o.Authorize(t.Context(), header)
		want := map[bool]string{true: "Bearer " + token}[token != "" && says == ""]
		if (err == nil) != (says == "") || header.Get("Authorization") != want || err == nil && got != token {
			t.Errorf("%q: %q, %v, header %v", token, got, err, header)
		}
		if err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "sec")) {
			t.Errorf("%q: %v", token, err)
		}
	}
	o := Options{Token: func(context.Context) (string, error) { return "", broken }}
	check.Is(t, check.Err(o.Authorize(t.Context(), make(http.Header))), broken, "the cause is lost")
	must.Do(t, check.Err(new(Options).Authorize(t.Context(), nil)), "without a token")
}

// TestARenewalIsAllowedOnce, for another token than the one refused, and for a refusal of the token alone.
func TestARenewalIsAllowedOnce(t *testing.T) {
	t.Parallel()
	refused := &failure.Error{ConnectCode: connect.CodeUnauthenticated}
	if !refused.Is(failure.ErrUnauthenticated) {
		t.Fatal("the refusal of the test is none")
	}
	token, broken := "b", error(nil)
	o := &Options{Token: func(context.Context) (string, error) { return token, broken }}
	var r TokenRenewal
	for _, step := range []struct {
		what  string
		token string
		fails bool
		old   string
		err   *failure.Error
		want  bool
	}{
		{"not about the token", "b", false, "a", new(failure.Error), false},
		{"the same token", "a", false, "a", refused, false},
		{"no token to be had", "b", true, "a", refused, false},
		{"another one", "b", false, "a", refused, true},
		{"and another one", "c", false, "b", refused, false},
	} {
		token, broken = step.token, nil
		if step.fails {
			broken = errors.New("broken")
		}
		check.Equal(t, r.Allows(t.Context(), o, step.old, step.err), step.want, "%s: %v", step.what)
	}
	if new(TokenRenewal).Allows(t.Context(), new(Options), "", refused) {
		t.Error("a Client without tokens repeats a refused call")
	}
}

// TestCloseWaitsForItsGoroutines, and says so when one does not end.
func TestCloseWaitsForItsGoroutines(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, err := New(Options{Server: "127.0.0.1:1"})
			must.Do(t, err)
			ended, release := false, make(chan struct{})
			c.Go(func() { // ends with the Client, or with the test
				<-c.Context().Done()
				if hangs {
					<-release
				}
				ended = true
			})
			began := time.Now()
			err = c.Close()
			switch waited := time.Since(began); {
			case hangs && (err == nil || !strings.Contains(err.Error(), "disk") || waited != closeTimeout):
				t.Errorf("after %v: %v", waited, err)
			case !hangs && (err != nil || !ended || waited != 0):
				t.Errorf("after %v: %v, the goroutine has ended: %v", waited, err, ended)
			}
			close(release)
		})
	}
}
