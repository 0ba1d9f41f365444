package auth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/server/admission"
)

const someHash = "sha256:5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"

// TestFileErrors: a mistake is named by its line and field, and nothing of the file is taken.
func TestFileErrors(t *testing.T) {
	t.Parallel()
	key := func(lines string) string { return "keys:\n- id: a\n  hash: " + someHash + "\n" + lines }
	const rights = "  role: reader\n  scopes: [acme]\n"
	for name, test := range map[string]struct {
		content string
		want    []string
	}{
		"empty":           {"", []string{"empty"}},
		"comments only":   {"# nothing\n", []string{"empty"}},
		"nobody":          {"keys: []\n", []string{":1: has neither"}},
		"a list":          {"- id: a\n", []string{":1: ", "mapping"}},
		"two documents":   {key(rights) + "---\nkeys: []\n", []string{"one YAML document"}},
		"not YAML":        {"keys: [", []string{"yaml"}},
		"unknown field":   {key(rights + "  roles: x\n"), []string{":6: keys[0].roles is an unknown field"}},
		"unknown section": {key(rights) + "users: []\n", []string{":6: users is an unknown field"}},
		"field twice":     {key(rights + "  role: admin\n"), []string{":6: keys[0].role was given at line 4"}},
		"section twice":   {key(rights) + "keys: []\n", []string{":6: keys was given at line 2"}},
		"id twice": {key(rights) + "- id: a\n  hash: " + someHash + "\n" + rights,
			[]string{":6: keys[1].id", "line 2"}},
		"no id": {"keys:\n- hash: " + someHash + "\n" + rights, []string{":2: keys[0].id is required"}},
		"id that begins with an underscore": {"keys:\n- id: _b\n  hash: " + someHash + "\n" + rights,
			[]string{":2: keys[0].id must have"}},
		"id of another kind": {"keys:\n- id: 'system:gc'\n  hash: " + someHash + "\n" + rights,
			[]string{":2: keys[0].id must have"}},
		"id with a newline": {"keys:\n- id: \"a\\nb\"\n  hash: " + someHash + "\n" + rights,
			[]string{":2: keys[0].id must have"}},
		"plain secret": {"keys:\n- id: a\n  hash: hunter2\n" + rights, []string{":3: keys[0].hash must be sha256:"}},
		"null":         {key("  role:\n  scopes: [acme]\n"), []string{":4: keys[0].role must have one plain value"}},
		"unknown role": {key("  role: root\n  scopes: [acme]\n"),
			[]string{":4: keys[0].role must be reader, writer, delegate or admin"}},
		"no scopes":        {key("  role: reader\n"), []string{":2: keys[0].scopes must have 1 to"}},
		"scopes is a text": {key("  role: reader\n  scopes: acme\n"), []string{":5: keys[0].scopes must be a list"}},
		"bad scope": {key("  role: reader\n  scopes:\n  - acme\n  - a/b/c\n"),
			[]string{":7: keys[0].scopes[1]", "more than one slash"}},
		"bad shared namespace": {key(rights + "  shared_namespaces: [jobs, \"\"]\n"),
			[]string{":6: keys[0].shared_namespaces[1] must be a namespace of 1 to 128"}},
		"bad client id": {key(rights + "  client_ids: [\"a\\tb\"]\n"),
			[]string{":6: keys[0].client_ids[0]", "printable"}},
		"writer, no clients": {key("  role: writer\n  scopes: [acme]\n"),
			[]string{":2: keys[0].client_ids must have a pattern"}},
		"expiry, no zone": {key(rights + "  expires: 2027-01-31\n"), []string{":6: keys[0].expires must be a time"}},
		"limit 0":         {key(rights + "  limits: {streams: 0}\n"), []string{":6: keys[0].limits.streams must be 1"}},
		"few bytes": {key(rights + "  limits:\n    message_bytes: 1000\n"),
			[]string{":7: keys[0].limits.message_bytes must be 25165824 to"}},
		"a limit is a text": {key(rights + "  limits:\n    writes_per_second: many\n"),
			[]string{":7: keys[0].limits.writes_per_second must be 1 to"}},
		"stored bytes": {key(rights + "  limits: {stored_bytes: -1}\n"),
			[]string{":6: keys[0].limits.stored_bytes must be 1 to"}},
		"reads": {key(rights + "  limits: {reads: 0}\n"), []string{":6: keys[0].limits.reads must be 1 to"}},
		"connections": {key(rights + "  limits: {connections: 1.5}\n"),
			[]string{":6: keys[0].limits.connections must be 1 to"}},
		"unknown limit": {key(rights + "  limits: {stream: 1}\n"), []string{":6: keys[0].limits.stream is an unknown"}},
		"unquoted star": {key("  role: reader\n  scopes: [*all]\n"), []string{"anchor"}},
		"anchor":        {key("  role: &r reader\n  scopes: [acme]\n"), []string{":4: ", "anchors"}},
		"alg none": {strings.Replace(tokensFile, "RS256", "none", 1),
			[]string{":4: tokens.algorithms[0] must be one of"}},
		"alg HS256": {strings.Replace(tokensFile, "RS256", "HS256", 1),
			[]string{":4: tokens.algorithms[0] must be one of"}},
		"no algorithms": {strings.Replace(tokensFile, "  algorithms: [RS256, ES256, EdDSA]\n", "", 1),
			[]string{":2: tokens.algorithms must have"}},
		"no audience": {strings.Replace(tokensFile, "  audience: seqledger\n", "", 1),
			[]string{":2: tokens.audience is required"}},
		"no issuer": {strings.Replace(tokensFile, "  issuer: https://issuer.test\n", "", 1),
			[]string{":2: tokens.issuer is required"}},
		"no claims": {strings.Replace(tokensFile, "  claims: {role: role, scopes: scopes, client_ids: clients}\n", "",
			1), []string{"tokens.claims is required"}},
		"long leeway": {strings.Replace(tokensFile, "10s", "1h", 1), []string{":6: tokens.leeway must be 0s to 2m0s"}},
		"JWKS not there": {strings.Replace(tokensFile, "jwks.json", "other.json", 1),
			[]string{":5: tokens.jwks other.json: no such file"}},
		"several": {key("  role: root\n  scopes: [acme]\n  x: 1\n") + "y: 2\n",
			[]string{":6: keys[0].x", ":7: y is"}},
	} {
		dir := writeFiles(t, map[string]string{"auth.yaml": test.content, "jwks.json": testKeys().jwks})
		_, err := Open(filepath.Join(dir, "auth.yaml"), Options{Logger: quiet()})
		if err == nil {
			t.Errorf("%s: was taken", name)
			continue
		}
		for _, want := range test.want {
			check.Contains(t, err.Error(), want, "%s: got %q", name, err)
		}
		if file := new(FileError); name != "unquoted star" && !errors.As(err, &file) {
			t.Errorf("%s: %T is no FileError", name, err)
		}
	}
}

// TestFileModes: a user who may change the file could gain access.
func TestFileModes(t *testing.T) {
	t.Parallel()
	for mode, want := range map[os.FileMode]string{
		0o600: "", 0o400: "", 0o640: "", 0o644: "warn", 0o620: "chmod go-w", 0o602: "chmod go-w", 0o666: "chmod go-w",
	} {
		for _, name := range []string{"auth.yaml", "jwks.json"} {
			dir := writeFiles(t, map[string]string{"auth.yaml": tokensFile, "jwks.json": testKeys().jwks})
			must.Do(t, os.Chmod(filepath.Join(dir, name), mode))
			log, logger := debugLog()
			_, err := Open(filepath.Join(dir, "auth.yaml"), Options{Logger: logger})
			refuse, warn := strings.HasPrefix(want, "chmod"), want == "warn"
			if (err != nil) != refuse || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s with %04o: %v", name, mode, err)
			}
			if warned := strings.Contains(log.String(), "every user of this machine"); warned != warn {
				t.Errorf("%s with %04o: the log says %q", name, mode, log)
			}
		}
	}
	check.ErrorContains(t, check.Err(Open(t.TempDir(), Options{Logger: quiet()})), "regular file", "a directory")
}

// TestExampleFile keeps the file that users copy from rotting.
func TestExampleFile(t *testing.T) {
	t.Parallel()
	content := make(map[string]string)
	for _, name := range []string{"auth.yaml", "jwks.json"} {
		b := must.Get(os.ReadFile(filepath.Join("testdata", name)))(t)
		content[name] = string(b)
	}
	dir := writeFiles(t, content) // because a checkout may be group-writable
	a := must.Get(Open(filepath.Join(dir, "auth.yaml"), Options{Logger: quiet()}))(t)
	p := a.policy.Load()
	if len(p.keys) != 3 || p.tokens == nil {
		t.Errorf("%d keys, tokens %v", len(p.keys), p.tokens)
	}
	till := p.keys["till-7"].credential
	limits := admission.Limits{
		Requests: 100, RequestsPerSecond: 500, Streams: 4, Connections: 50, MessageBytes: 67_108_864, Reads: 4,
		WritesPerSecond: 2_000, StoredBytes: 100_000_000_000,
	}
	want := fmt.Sprintf("writer [acme/main acme/shop-*] [till-7 till-7-*] %v 2099", limits)
	check.Equal(t, fmt.Sprint(till.grant.Role, " ", till.grant.Scopes, " ", till.grant.ClientIDs, " ", till.limits,
		" ", till.expires.Year()), want)
}

func TestAppendKey(t *testing.T) {
	t.Parallel()
	_, hash, err := NewKey("new")
	must.Do(t, err)
	entry := &Entry{ID: "new", Hash: hash, Role: "writer", Scopes: []string{"acme/main", "*"},
		ClientIDs: []string{"till-*"}, Expires: "2027-01-31T00:00:00Z"}
	example := must.Get(os.ReadFile("testdata/auth.yaml"))(t)
	for name, before := range map[string]string{
		"new": "", "example": string(example), "tokens only": tokensFile,
		"in brackets": "keys: [{id: a, hash: \"" + someHash + "\", role: reader, scopes: [acme]}]\n",
		"no keys":     "keys: []\n",
	} {
		after, err := AppendKey("auth.yaml", []byte(before), entry)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p, err := parseFile("auth.yaml", after, nil)
		if err != nil || p.keys["new"] == nil || p.keys["new"].credential.grant.Role != Writer ||
			p.keys["new"].credential.expires.IsZero() {
			t.Errorf("%s: %v in\n%s", name, err, after)
		}
		if name == "example" && (len(p.keys) != 4 ||
			!strings.Contains(string(after), "# A report that reads everything.")) {
			t.Errorf("the rest of the file is gone:\n%s", after)
		}
		if _, err := AppendKey("auth.yaml", after, entry); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("%s: an id was added twice: %v", name, err)
		}
	}
	for _, bad := range []Entry{
		{ID: "_b", Hash: hash, Role: "reader", Scopes: []string{"*"}},
		{ID: "a", Hash: hash, Role: "writer", Scopes: []string{"*"}},
		{ID: "a", Hash: hash, Role: "reader", Scopes: []string{"*"}, Expires: "tomorrow"},
	} {
		if _, err := AppendKey("auth.yaml", nil, &bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// FuzzAuthFile: parsing always ends, and an accepted file lets at least one caller in.
func FuzzAuthFile(f *testing.F) {
	example := must.Get(os.ReadFile("testdata/auth.yaml"))(f)
	for _, seed := range []string{string(example), tokensFile, "keys: [{id: a}]", "a: &a [*a]", "keys: {x: [",
		"? [a]: b", "!!binary x: y", "keys: !!null"} {
		f.Add(seed)
	}
	jwks := []byte(testKeys().jwks)
	f.Fuzz(func(t *testing.T, content string) {
		p, err := parseFile("f", []byte(content), func(string) ([]byte, error) { return jwks, nil })
		if err == nil && len(p.keys) == 0 && p.tokens == nil {
			t.Errorf("a file that lets nobody in: %q", content)
		}
		if err == nil {
			for id, k := range p.keys {
				if validateKeyID(id) != nil || k.credential.grant.Role == 0 || len(k.credential.grant.scopes) == 0 {
					t.Errorf("key %q of %q: %+v", id, content, k.credential)
				}
			}
		}
	})
}
