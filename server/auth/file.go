package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/seqledger/seqledger/internal/yamlfile"
	"github.com/seqledger/seqledger/server/admission"
)

// FileError is a mistake in an auth file.
type FileError = yamlfile.Error

// reader reads the parts of an auth file.
type reader struct{ *yamlfile.Reader }

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

// parseFile parses an auth file. read returns the content of another file that it names; if read is nil, those files
// and the tokens are skipped. The error joins a *FileError for each mistake.
func parseFile(path string, content []byte, read func(name string) ([]byte, error)) (*policy, error) {
	r := &reader{yamlfile.NewReader(path)}
	root, err := yamlfile.Parse(content)
	if err != nil {
		return nil, &FileError{Path: path, Problem: err.Error()}
	}
	if alias := yamlfile.FindAlias(root); alias != nil {
		r.Fail(alias, "", "anchors and aliases (& and *name) are not taken here; put a pattern with a star in quotes")
		return nil, r.Err()
	}
	o := r.Object(root, "", "keys", "tokens")
	p := &policy{keys: make(map[string]*key)}
	lines := make(map[string]int)
	for i, n := range o.Elements("keys", maxKeys) {
		k := r.key(n, fmt.Sprintf("keys[%d]", i))
		if first, twice := lines[k.id]; twice && k.id != "" {
			r.Fail(n, fmt.Sprintf("keys[%d].id", i), "%q was given at line %d already", k.id, first)
		}
		lines[k.id], p.keys[k.id] = n.Line, k
	}
	if o.Has("tokens") {
		p.tokens = r.issuer(o.Node("tokens"), read)
	}
	if len(p.keys) == 0 && !o.Has("tokens") && r.Failures() == 0 {
		r.Fail(root, "",
			"has neither keys nor tokens, so no caller would be accepted; seqledger auth new-key --append makes a key")
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// key reads an entry of keys.
func (r *reader) key(n *yaml.Node, at string) *key {
	o := r.Object(n, at, "id", "hash", "role", "scopes", "client_ids", "shared_namespaces", "expires", "limits")
	k := &key{id: o.Text("id")}
	if err := validateKeyID(k.id); err != nil && k.id != "" {
		o.Fail("id", "%v", err)
	}
	var err error
	if k.hash, err = parseHash(o.Text("hash")); err != nil && o.Has("hash") {
		o.Fail("hash", "%v", err)
	}
	k.credential = &Credential{
		actor: "client:" + k.id, grant: r.grant(o), expires: o.Moment("expires"), limits: r.limits(o),
	}
	k.credential.ended, k.credential.end = context.WithCancelCause(context.Background())
	return k
}

func (r *reader) grant(o *yamlfile.Object) Grant {
	before := r.Failures()
	role, scopes, clients := o.Text(fieldRole), o.Texts(fieldScopes, maxPatterns), o.Texts(fieldClientIDs, maxPatterns)
	if r.Failures() > before {
		return Grant{} // other errors may only follow from that
	}
	grant, err := newGrant(role, scopes, clients)
	if err == nil && o.Has(fieldShared) {
		err = grant.share(o.Texts(fieldShared, maxPatterns))
	}
	var mistake *grantError
	switch {
	case !errors.As(err, &mistake):
	case mistake.index < 0:
		o.Fail(mistake.field, "%v", mistake.err)
	default:
		r.Fail(o.Node(mistake.field).Content[mistake.index],
			fmt.Sprintf("%s[%d]", o.At(mistake.field), mistake.index), "%v", mistake.err)
	}
	return grant
}

// limits reads what a credential may use. All fields are optional.
func (r *reader) limits(o *yamlfile.Object) admission.Limits {
	if !o.Has("limits") {
		return admission.Limits{}
	}
	l := r.Object(o.Node("limits"), o.At("limits"), "requests", "requests_per_second", "streams", "connections",
		"keys", "waiters",
		"message_bytes", "reads", "writes_per_second", "stored_bytes")
	return admission.Limits{
		Requests: l.Count("requests", 1, maxLimit), RequestsPerSecond: l.Count("requests_per_second", 1, maxLimit),
		Streams: l.Count("streams", 1, maxLimit), Connections: l.Count("connections", 1, maxLimit),
		MessageBytes:    l.Count("message_bytes", admission.MinMessageBytes, maxBytes),
		Reads:           l.Count("reads", 1, maxLimit),
		WritesPerSecond: l.Count("writes_per_second", 1, maxLimit), StoredBytes: l.Count("stored_bytes", 1, maxBytes),
		Keys: l.Count("keys", 1, maxLimit), Waiters: l.Count("waiters", 1, maxLimit),
	}
}

// algorithms that a token may be signed with. HMAC is not among them, because a key that verifies such a token can also
// sign one; "none" is not a signature.
var algorithms = []string{"RS256", "ES256", "EdDSA"}

// tokenFields are the fields of a section that ReadVerifier reads.
var tokenFields = []string{"issuer", "audience", "algorithms", "jwks", "leeway"}

// ReadVerifier reads the fields issuer, audience, algorithms, jwks and leeway, and reports their mistakes to the reader
// of the object. read returns the content of a JWKS by what the file calls it; if read is nil, the JWKS is skipped. The
// result is nil after a mistake, and without read.
func ReadVerifier(r *yamlfile.Reader, o *yamlfile.Object, read func(name string) ([]byte, error)) *Verifier {
	before := r.Failures()
	v := &Verifier{
		issuer: o.Text("issuer"), audience: o.Text("audience"), algorithms: o.Texts("algorithms", len(algorithms)),
		leeway: readLeeway(o),
	}
	for i, name := range v.algorithms {
		if !slices.Contains(algorithms, name) {
			r.Fail(o.Node("algorithms").Content[i], fmt.Sprintf("%s[%d]", o.At("algorithms"), i),
				"must be one of %v, is %q", algorithms, yamlfile.Clip(name))
		}
	}
	if len(v.algorithms) == 0 {
		o.Fail("algorithms", "must have one of %v", algorithms)
	}
	name := o.Text("jwks")
	if r.Failures() > before || read == nil {
		return nil
	}
	content, err := read(name)
	if err == nil {
		v, err = v.WithKeys(content)
	}
	if err != nil {
		o.Fail("jwks", "%s: %v", name, err)
		return nil
	}
	return v
}

// issuer reads the section tokens.
func (r *reader) issuer(n *yaml.Node, read func(name string) ([]byte, error)) *issuer {
	o := r.Object(n, "tokens", append([]string{"claims", "limits"}, tokenFields...)...)
	before := r.Failures()
	s := issuerSettings{limits: r.limits(o)}
	if o.Has("claims") {
		c := r.Object(o.Node("claims"), "tokens.claims", "role", "scopes", "client_ids")
		s.roleClaim, s.scopesClaim, s.clientIDsClaim = c.Text("role"), c.Text("scopes"), c.Optional("client_ids", "")
	} else {
		o.Fail("claims", "is required: it names the claims that have role, scopes and client_ids")
	}
	if r.Failures() > before {
		read = nil // no further errors that follow from these
	}
	v := ReadVerifier(r.Reader, o, read)
	if v == nil {
		return nil
	}
	return newIssuer(v, s)
}
