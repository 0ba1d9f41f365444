package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/seqledger/seqledger/server/admission"
)

// maxKeys bounds the keys of a file.
const maxKeys = 10_000

// maxLimit and maxBytes are practically unlimited, and small enough for arithmetic.
const (
	maxLimit = 1_000_000
	maxBytes = 1 << 60
)

// policy is the content of an auth file.
type policy struct {
	keys   map[string]*key // by id
	tokens *issuer         // nil: session tokens are not accepted
}

// parseFile parses an auth file. read returns the content of another file that it names; if
// read is nil, those files and the tokens are skipped. The error joins a *FileError for each
// mistake.
func parseFile(path string, content []byte, read func(name string) ([]byte, error)) (*policy, error) {
	r := &reader{path: path}
	root, err := parseYAML(content)
	if err != nil {
		return nil, &FileError{Path: path, Problem: err.Error()}
	}
	if alias := findAlias(root); alias != nil {
		r.fail(alias, "", "anchors and aliases (& and *name) are not taken here; put a pattern with a star in quotes")
		return nil, r.err()
	}
	o := r.object(root, "", "keys", "tokens")
	p := &policy{keys: make(map[string]*key)}
	lines := make(map[string]int)
	for i, n := range o.elements("keys", maxKeys) {
		k := r.key(n, fmt.Sprintf("keys[%d]", i))
		if first, twice := lines[k.id]; twice && k.id != "" {
			r.fail(n, fmt.Sprintf("keys[%d].id", i), "%q was given at line %d already", k.id, first)
		}
		lines[k.id], p.keys[k.id] = n.Line, k
	}
	if o.has("tokens") {
		p.tokens = r.issuer(o.values["tokens"], read)
	}
	if len(p.keys) == 0 && !o.has("tokens") && r.failures == 0 {
		r.fail(root, "",
			"has neither keys nor tokens, so no caller would be accepted; seqledger auth new-key --append makes a key")
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// parseYAML returns the one document of a file.
func parseYAML(content []byte) (root *yaml.Node, err error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the file is empty")
		}
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file must be one YAML document")
	}
	if len(document.Content) != 1 {
		return nil, errors.New("the file is empty")
	}
	return document.Content[0], nil
}

// findAlias returns the first anchor or alias. They are refused, because one line would depend
// on another, and a small file could expand to a huge one.
func findAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return n
	}
	for _, child := range n.Content {
		if found := findAlias(child); found != nil {
			return found
		}
	}
	return nil
}

// key reads an entry of keys.
func (r *reader) key(n *yaml.Node, at string) *key {
	o := r.object(n, at, "id", "hash", "role", "scopes", "client_ids", "expires", "limits")
	k := &key{id: o.text("id")}
	if err := validateKeyID(k.id); err != nil && k.id != "" {
		o.fail("id", "%v", err)
	}
	var err error
	if k.hash, err = parseHash(o.text("hash")); err != nil && o.has("hash") {
		o.fail("hash", "%v", err)
	}
	k.credential = &Credential{
		actor: "client:" + k.id, grant: r.grant(o), expires: o.moment("expires"), limits: r.limits(o),
	}
	k.credential.ended, k.credential.end = context.WithCancelCause(context.Background())
	return k
}

func (r *reader) grant(o *object) Grant {
	before := r.failures
	role, scopes, clients := o.text(fieldRole), o.texts(fieldScopes, maxPatterns), o.texts(fieldClientIDs, maxPatterns)
	if r.failures > before {
		return Grant{} // other errors may only follow from that
	}
	grant, err := newGrant(role, scopes, clients)
	var mistake *grantError
	switch {
	case !errors.As(err, &mistake):
	case mistake.index < 0:
		o.fail(mistake.field, "%v", mistake.err)
	default:
		r.fail(o.values[mistake.field].Content[mistake.index],
			fmt.Sprintf("%s%s[%d]", o.at, mistake.field, mistake.index), "%v", mistake.err)
	}
	return grant
}

// limits reads what a credential may use. All fields are optional.
func (r *reader) limits(o *object) admission.Limits {
	if !o.has("limits") {
		return admission.Limits{}
	}
	l := r.object(o.values["limits"], o.at+"limits", "requests", "requests_per_second", "streams", "connections",
		"keys", "waiters",
		"message_bytes", "reads", "writes_per_second", "stored_bytes")
	return admission.Limits{
		Requests: l.count("requests", 1, maxLimit), RequestsPerSecond: l.count("requests_per_second", 1, maxLimit),
		Streams: l.count("streams", 1, maxLimit), Connections: l.count("connections", 1, maxLimit),
		MessageBytes:    l.count("message_bytes", admission.MinMessageBytes, maxBytes),
		Reads:           l.count("reads", 1, maxLimit),
		WritesPerSecond: l.count("writes_per_second", 1, maxLimit), StoredBytes: l.count("stored_bytes", 1, maxBytes),
		Keys: l.count("keys", 1, maxLimit), Waiters: l.count("waiters", 1, maxLimit),
	}
}

// algorithms that a token may be signed with. HMAC is not among them, because a key that
// verifies such a token can also sign one; "none" is not a signature.
var algorithms = []string{"RS256", "ES256", "EdDSA"}

// issuer reads the section tokens.
func (r *reader) issuer(n *yaml.Node, read func(name string) ([]byte, error)) *issuer {
	o := r.object(n, "tokens", "issuer", "audience", "algorithms", "jwks", "leeway", "claims", "limits")
	before := r.failures
	s := issuerSettings{
		issuer: o.text("issuer"), audience: o.text("audience"), algorithms: o.texts("algorithms", len(algorithms)),
		leeway: r.leeway(o), limits: r.limits(o),
	}
	for i, name := range s.algorithms {
		if !slices.Contains(algorithms, name) {
			r.fail(o.values["algorithms"].Content[i], fmt.Sprintf("tokens.algorithms[%d]", i),
				"must be one of %v, is %q", algorithms, clip(name))
		}
	}
	if len(s.algorithms) == 0 {
		o.fail("algorithms", "must have one of %v", algorithms)
	}
	if o.has("claims") {
		c := r.object(o.values["claims"], "tokens.claims", "role", "scopes", "client_ids")
		s.roleClaim, s.scopesClaim, s.clientIDsClaim = c.text("role"), c.text("scopes"), c.optional("client_ids", "")
	} else {
		o.fail("claims", "is required: it names the claims that have role, scopes and client_ids")
	}
	name := o.text("jwks")
	if r.failures > before || read == nil {
		return nil
	}
	content, err := read(name)
	if err == nil {
		s.jwks = string(content)
		s.keys, err = parseJWKS(content, s.algorithms)
	}
	if err != nil {
		o.fail("jwks", "%s: %v", name, err)
		return nil
	}
	return newIssuer(s)
}
