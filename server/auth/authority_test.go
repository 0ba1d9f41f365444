package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/server/admission"
)

// debugLog logs everything to a buffer. No other goroutine may log meanwhile.
func debugLog() (*bytes.Buffer, *slog.Logger) {
	log := new(bytes.Buffer)
	return log, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

const readsAcme = "role: reader, scopes: [acme]"

func TestKeys(t *testing.T) {
	t.Parallel()
	good, entry := newKey(t, "till-7", readsAcme)
	expired, entry2 := newKey(t, "old", readsAcme+", expires: 2020-01-01T00:00:00Z")
	stranger, _ := newKey(t, "till-7", readsAcme)
	nobody, _ := newKey(t, "nobody", readsAcme)
	a := open(t, "keys:\n"+entry+entry2)
	must.Equal(t, must.Get(a.Authenticate(bearer(good)))(t).Actor(), "client:till-7")
	for name, test := range map[string]struct {
		header []string
		reason string
	}{
		"none":              {nil, "missing"},
		"two headers":       {[]string{"Bearer " + good, "Bearer " + good}, "malformed"},
		"basic":             {[]string{"Basic dXNlcjpwYXNz"}, "malformed"},
		"no scheme":         {[]string{good}, "malformed"},
		"empty":             {[]string{"Bearer "}, "malformed"},
		"control character": {[]string{"Bearer " + good + "\x00"}, "malformed"},
		"two keys":          {[]string{"Bearer " + good + "," + good}, "malformed"},
		"another secret":    {[]string{"Bearer " + stranger}, "unknown_key"},
		"another id":        {[]string{"Bearer " + strings.Replace(good, "till-7", "till-8", 1)}, "unknown_key"},
		"nobody's":          {[]string{"Bearer " + nobody}, "unknown_key"},
		"expired":           {[]string{"Bearer " + expired}, "expired"},
		"short":             {[]string{"Bearer " + good[:len(good)-1]}, "malformed"},
		"long":              {[]string{"Bearer " + strings.Replace(good, "till-7_", "till-7_A", 1)}, "malformed"},
		"no secret":         {[]string{"Bearer sl_till-7_"}, "malformed"},
		"no id":             {[]string{"Bearer sl__" + good[len("sl_till-7_"):]}, "malformed"},
		"the hash": {[]string{"Bearer " + strings.Fields(strings.ReplaceAll(entry, `"`, " "))[4]},
			"malformed"},
		"a token":            {[]string{"Bearer " + esToken(t, goodClaims())}, "no_tokens"},
		"an enormous header": {[]string{"Bearer " + strings.Repeat("a", 1<<20)}, "malformed"},
	} {
		_, err := a.Authenticate(http.Header{"Authorization": test.header})
		var r *RefusedError
		if !errors.As(err, &r) || r.Reason != test.reason {
			t.Errorf("%s: got %v, want a refusal because of %s", name, err, test.reason)
		}
	}
	if unknown, wrong := a.Stats().Refused["unknown_key"], a.Stats().Refused["missing"]; unknown != 3 || wrong != 1 {
		t.Error("the refusals are not counted:", a.Stats())
	}
	must.Do(t, check.Err(a.Authenticate(http.Header{"Authorization": {"bEARER  " + good}})),
		"the scheme may be written in any case")
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"a.b-C9", "payment_service", "a_", "a__b", strings.Repeat("a_", 32)} {
		one, hash, err := NewKey(want)
		two, _, _ := NewKey(want)
		if err != nil || one == two {
			t.Fatal("two keys are the same:", one, err)
		}
		if id, ok := parseKey(one); !ok || id != want {
			t.Errorf("%s has the id %q, want %q", one, id, want)
		}
		if strings.Contains(hash, one[len(one)-secretText:]) {
			t.Error("the hash has the secret in it")
		}
	}
	secret := strings.Repeat("_", secretText-1) + "8" // an underscore is a digit of base64url
	for key, want := range map[string]string{
		"sl_a_" + secret: "a", "sl_a_b_" + secret: "a_b", "sl_a" + secret: "", "sl__" + secret: "", "sl_" + secret: "",
		"sl_a_" + secret[1:]: "", "sl_a": "", "sl_": "",
	} {
		if id, ok := parseKey(key); id != want && ok || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", key, id, ok, want)
		}
	}
	for _, id := range []string{"", "-a", ".a", "_a", "a b", "a:b", "a/b", "é", "a\n", strings.Repeat("a", 65)} {
		if _, _, err := NewKey(id); err == nil {
			t.Errorf("%q was taken for an id", id)
		}
	}
}

// TestReload: an unchanged credential stays valid, a changed or removed one ends, and a bad file changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	same, sameEntry := newKey(t, "same", readsAcme)
	gone, goneEntry := newKey(t, "gone", readsAcme)
	changed, changedEntry := newKey(t, "changed", readsAcme)
	rotated, rotatedEntry := newKey(t, "rotated", readsAcme)
	fresh, freshEntry := newKey(t, "rotated", readsAcme)
	a := open(t, "keys:\n"+sameEntry+goneEntry+changedEntry+rotatedEntry+tokensFile)
	token := esToken(t, goodClaims())
	credentials := make(map[string]*Credential)
	for name, text := range map[string]string{"same": same, "gone": gone,
		"changed": changed, "rotated": rotated, "token": token} {
		c, err := a.Authenticate(bearer(text))
		if err != nil {
			t.Fatal(name, explain(err))
		}
		credentials[name] = c
	}
	a.rewrite(t, "keys: [{id: broken}]")
	if err := a.Reload(); err == nil || a.Stats().FailedReloads != 1 || a.Stats().Reloads != 0 {
		t.Error("a bad file:", err, a.Stats())
	}
	for name, c := range credentials {
		if c.Check() != nil {
			t.Error("a bad file ended", name)
		}
	}
	a.rewrite(t, "keys:\n"+sameEntry+strings.Replace(changedEntry, "reader", "admin", 1)+freshEntry+tokensFile)
	if err := a.Reload(); err != nil || a.Stats().Reloads != 1 {
		t.Fatal(err, a.Stats())
	}
	for name, want := range map[string]error{"same": nil, "gone": ErrRevoked,
		"changed": ErrChanged, "rotated": ErrRevoked, "token": nil} {
		check.Is(t, credentials[name].Check(), want, "%s", name)
	}
	for text, want := range map[string]bool{same: true, gone: false, changed: true,
		rotated: false, fresh: true, token: true} {
		if _, err := a.Authenticate(bearer(text)); (err == nil) != want {
			t.Errorf("%s…: %v", text[:10], err)
		}
	}
	if c, _ := a.Authenticate(bearer(changed)); c.Grant().Role != Admin || c.Share() != credentials["changed"].Share() {
		t.Error("the new rights do not hold, or the count was lost")
	}
	a.rewrite(t, "keys:\n"+sameEntry+strings.Replace(tokensFile, "requests: 2", "requests: 3", 1))
	if err := a.Reload(); err != nil || !errors.Is(credentials["token"].Check(), ErrChanged) {
		t.Error("tokens must be looked at anew when anything about them changes:", err, credentials["token"].Check())
	}
	a.rewrite(t, "keys:\n"+sameEntry)
	if err := a.Reload(); err != nil || credentials["same"].Check() != nil {
		t.Error(err)
	}
	if _, err := a.Authenticate(bearer(token)); err == nil {
		t.Error("a token was let in although the file no longer takes any")
	}
}

// TestReloadUnderLoad: while files change, a key that is in all of them is never refused, and one that is in none never
// let in.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	stays, staysEntry := newKey(t, "stays", readsAcme)
	never, _ := newKey(t, "never", readsAcme)
	_, comes := newKey(t, "comes", readsAcme)
	a := open(t, "keys:\n"+staysEntry)
	first := must.Get(a.Authenticate(bearer(stays)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 4 {
		// Ends with cancel; waited for below.
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := a.Authenticate(bearer(stays)); err != nil {
					t.Error("refused:", err)
					return
				}
				if _, err := a.Authenticate(bearer(never)); err == nil {
					t.Error("let in")
					return
				}
			}
		})
	}
	for i := range 50 {
		content := "keys:\n" + staysEntry
		switch i % 3 {
		case 1:
			content += comes
		case 2:
			content = strings.Replace(content, "[acme]", fmt.Sprintf("[acme-%d]", i), 1)
		}
		a.rewrite(t, content)
		must.Do(t, a.Reload())
	}
	cancel()
	callers.Wait()
	check.Equal(t, must.Get(a.Authenticate(bearer(stays)))(t).Share(), first.Share(),
		"what the key uses was forgotten: %v")
}

// The tokens of one user have one share, whatever they may do; another user and a key have their own.
func TestSharesAreOfActors(t *testing.T) {
	t.Parallel()
	key, entry := newKey(t, "a", readsAcme)
	a := open(t, "keys:\n"+entry+tokensFile)
	shares := make(map[*admission.Share]bool)
	for _, text := range []string{
		key, esToken(t, goodClaims()), esToken(t, claimsWith(map[string]any{"jti": "2"})),
		esToken(t, claimsWith(map[string]any{"sub": "other"})),
	} {
		c := must.Get(a.Authenticate(bearer(text)))(t)
		shares[c.Share()] = true
	}
	check.Equal(t, len(shares), 3, "%d shares, want one for the key and one for each of two users")
	var nobody *Credential
	if nobody.Share() != nil || nobody.Limits() != (admission.Limits{}) || nobody.MayWrite() == nil {
		t.Error("nobody has a share")
	}
}

// TestLogsHaveNoSecret also looks at the errors.
func TestLogsHaveNoSecret(t *testing.T) {
	t.Parallel()
	key, entry := newKey(t, "a", readsAcme)
	token := esToken(t, claimsWith(map[string]any{"aud": "other"}))
	dir := writeFiles(t, map[string]string{"auth.yaml": "keys:\n" + entry + tokensFile, "jwks.json": testKeys().jwks})
	log, logger := debugLog()
	a := must.Get(Open(dir+"/auth.yaml", Options{Logger: logger}))(t)
	said := ""
	for _, text := range []string{key, key + "x", strings.Replace(key, "sl_a", "sl_b", 1), token, token + "x"} {
		_, err := a.Authenticate(bearer(text))
		said += fmt.Sprint(err, explain(err))
	}
	a.rewrite(t, "keys: "+key)
	said += fmt.Sprint(a.Reload()) + log.String()
	secret := key[len(key)-secretText:]
	signature := token[strings.LastIndex(token, ".")+1:]
	if strings.Contains(said, secret) || strings.Contains(said, signature) {
		t.Error("a secret shows:", said)
	}
}

func FuzzBearer(f *testing.F) {
	key, entry := newKey(f, "a", readsAcme)
	a := open(f, "keys:\n"+entry+tokensFile)
	token := esToken(f, goodClaims())
	for _, seed := range []string{"Bearer " + key, "Bearer " + token, "Bearer sl_a_", "Bearer a.b.c",
		"Bearer eyJ.e30.", "Basic x", "Bearer  \t"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		c, err := a.Authenticate(http.Header{"Authorization": {header}})
		var r *RefusedError
		switch {
		case err != nil && (c != nil || !errors.As(err, &r)):
			t.Errorf("%q: %v, %v", header, c, err)
		case err == nil && !strings.HasSuffix(header, key) && !strings.HasSuffix(header, token):
			t.Errorf("%q was let in as %s", header, c.Actor())
		}
	})
}
