package idempotency

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// credential is the value of an Authorization header.
type credential struct {
	scheme string // in lower case; "" if the value has only one word
	rest   string
	text   string // scheme and rest, with single spaces: equal for the same party
	// signs is set for a credential that is made for one request.
	signs bool
}

// lasting are the schemes whose credentials stay the same from request to request, whatever they look like. A DPoP
// token does; its proof is in another header.
var lasting = []string{"basic", "bearer", "dpop", "gnap"}

// perRequest are schemes whose credentials are made for one request or for one connection. A scheme with one of
// signingWords in its name is one of them, too.
var (
	perRequest = []string{
		"acs", "aws", "aws3", "bce-auth-v1", "concealed", "cos", "digest", "eg1", "goog1", "hawk", "hoba", "kerberos",
		"mac", "mutual", "negotiate", "ntlm", "obs", "oss", "privatetoken", "qbox", "qiniu", "sharedkey",
		"sharedkeylite", "ucloud", "upyun", "vapid", "webpush", "wsse",
	}
	signingWords = []string{"hmac", "sha1", "sha256", "sha384", "sha512", "ecdsa", "ed25519", "rsa", "scram", "sign"}
)

// perRequestParameters are parameters of a credential that change with each request. A credential with one of them is
// made for one request, whatever its scheme.
var perRequestParameters = []string{
	"bodyhash", "body_hash", "cnonce", "date", "hmac", "mac", "nc", "nonce", "nonce_str", "response", "sig", "sign",
	"signature", "time", "timestamp", "ts",
}

// lastingParameters are parameters of a credential for one request that name its owner.
var lastingParameters = []string{
	"access", "access_token", "accesskeyid", "ak", "app_id", "appid", "client_token", "consumer_key", "credential",
	"id", "k", "key", "key_id", "keyid", "kid", "mchid", "realm", "serial_no", "token", "user", "userid", "username",
	"username*",
}

var errOneCredential = errors.New("send one Authorization header with a credential")

// parseCredential reads the values of an Authorization header. The error may be shown to the client.
func parseCredential(values []string) (*credential, error) {
	if len(values) != 1 {
		return nil, errOneCredential
	}
	words := strings.Fields(values[0])
	if len(words) == 0 || len(words) == 1 && slices.Contains(lasting, strings.ToLower(words[0])) {
		return nil, errOneCredential
	}
	c := &credential{rest: strings.Join(words, " ")}
	c.text = c.rest
	if len(words) > 1 {
		c.scheme, c.rest = strings.ToLower(words[0]), strings.Join(words[1:], " ")
		c.text = c.scheme + " " + c.rest
	}
	name := c.scheme
	if name == "" { // a few schemes follow their name with a slash
		name, _, _ = strings.Cut(strings.ToLower(words[0]), "/")
	}
	if slices.Contains(lasting, c.scheme) {
		return c, nil
	}
	c.signs = slices.Contains(perRequest, name) || c.scheme != "" && slices.ContainsFunc(signingWords,
		func(word string) bool { return strings.Contains(name, word) })
	for _, p := range c.parameters() {
		c.signs = c.signs || slices.Contains(perRequestParameters, p[0])
	}
	return c, nil
}

// refusal is the error of a credential made for one request where it would have to name a party.
func (c *credential) refusal() error {
	scheme := c.scheme
	if scheme == "" {
		scheme = "without a name"
	}
	return fmt.Errorf("a credential of the scheme %.40s is made for one request, so that a repeat would look like "+
		"another sender. Configure who sends a request: a claim of a token (principal_claim), a header of a trusted "+
		"proxy (principal_header), or the credential's stable part (principal: [authorization-id, host]) together "+
		"with replay_check", scheme)
}

// parameters returns the names, in lower case and without their scheme's prefix, and the values of the parameters.
func (c *credential) parameters() (all [][2]string) {
	quoted := false
	for _, field := range strings.FieldsFunc(c.rest, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ',' || r == ';' || r == '&' || r == ' ')
	}) {
		name, value, found := strings.Cut(field, "=")
		if !found {
			continue
		}
		name = strings.ToLower(strings.TrimSpace(name))
		for _, prefix := range []string{"oauth_", "x-amz-", "q-"} {
			name = strings.TrimPrefix(name, prefix)
		}
		all = append(all, [2]string{name, strings.Trim(value, ` "`)})
	}
	return all
}

// stable returns what names the owner of a credential made for one request, or nil.
func (c *credential) stable() []string {
	var parts []string
	for _, p := range c.parameters() {
		if !slices.Contains(lastingParameters, p[0]) || p[1] == "" {
			continue
		}
		if p[0] == "credential" { // it continues with the day and the service
			p[1], _, _ = strings.Cut(p[1], "/")
		}
		parts = append(parts, p[0]+"="+p[1])
	}
	if parts == nil {
		// An account and a signature, as in SharedKey account:signature.
		id, signature, _ := strings.Cut(c.rest, ":")
		if id != "" && signature != "" && !strings.ContainsAny(id, "= ") {
			parts = []string{id}
		}
	}
	if parts == nil || len(parts) == 1 && strings.HasPrefix(parts[0], "realm=") {
		return nil
	}
	slices.Sort(parts)
	return append([]string{c.scheme}, parts...)
}
