package idempotency

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// credential is the value of an Authorization header.
type credential struct {
	scheme string // in lower case; of one word, what it begins with if that is known, or noScheme
	rest   string // after the scheme; of one word, all of it, without its escapes
	text   string // scheme and rest, with single spaces: equal for the same party
	word   bool   // the value has only one word
	// signs is set for a credential that is made for one request.
	signs bool
}

// noScheme is the scheme of a credential without one, for a message.
const noScheme = "without a name"

// lasting are the schemes whose credentials stay the same from request to request, whatever they look like. A DPoP
// token does; its proof is in another header. A token of SharedAccessSignature is signed, but not for one request;
// DocuSign only has the word in its name.
var lasting = []string{"basic", "bearer", "docusign", "dpop", "gnap", "sharedaccesssignature"}

// perRequest are schemes whose credentials are made for one request or for one connection. A scheme is one of them,
// too, if its name has one of signingTexts in it or one of signingWords as a word.
var (
	perRequest = []string{
		"acs", "amx", "apiauth", "aws", "aws3", "bce-auth-v1", "concealed", "cos", "credssp", "datahub", "dataplus",
		"digest", "eg1", "es256", "es256k", "es384", "es512", "fc", "goog1", "gssapi", "hawk", "hoba", "hs256",
		"hs384", "hs512", "httpsig", "kerberos", "kss", "log", "mac", "mns", "mqs", "mutual", "nego2", "negotiate",
		"nos", "ntlm", "obs", "odps", "oss", "otp", "pku2u", "pop", "privatetoken", "ps256", "ps384", "ps512", "qbox",
		"qiniu", "rs256", "rs384", "rs512", "sapisidhash", "sharedkey", "sharedkeylite", "spnego", "totp", "tsa",
		"ucloud", "upyun", "vapid", "webpush", "wsse",
	}
	signingTexts = []string{"hmac", "sha1", "sha256", "sha384", "sha512", "ecdsa", "eddsa", "ed25519", "signature"}
	signingWords = []string{"rsa", "scram", "sign", "signed"}
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
	if slices.Contains(lasting, c.scheme) {
		return c, nil
	}
	name, parted := words[0], true
	if c.word = len(words) == 1; c.word {
		c.scheme = noScheme
		if i := strings.IndexAny(name, "/:"); i >= 0 { // a few schemes follow their name with one of these
			name = name[:i]
		} else {
			parted = false
		}
		if strings.Contains(strings.ToLower(c.rest), "%3d") { // parameters that are escaped as a whole
			if plain, err := url.PathUnescape(c.rest); err == nil {
				c.rest = plain
			}
		}
	}
	if slices.Contains(perRequest, strings.ToLower(name)) || parted && signing(name) {
		c.scheme, c.signs = strings.ToLower(name), true
	}
	all := c.parameters()
	for _, p := range all {
		c.signs = c.signs || slices.Contains(perRequestParameters, p[0])
	}
	if c.word && len(all) > 0 && (all[0] == [2]string{"type", "aad"} || all[0] == [2]string{"type", "resource"}) {
		c.signs = false // the sig of these types of Azure Cosmos DB is a token
	}
	return c, nil
}

// hasCredential reports whether the values of a header have the form of those of Authorization.
func hasCredential(name string) bool { return strings.HasSuffix(name, "Authorization") }

// canonicalCredential returns the values of such a header in one spelling.
func canonicalCredential(values []string) string {
	if c, err := parseCredential(values); err == nil {
		return c.text
	}
	return strings.Join(strings.Fields(strings.Join(values, ",")), " ")
}

// signing reports whether the name of a scheme says that its credentials are signatures.
func signing(name string) bool {
	if strings.ContainsAny(name, `=&;,"%`) { // parameters, not a name
		return false
	}
	lower := strings.ToLower(name)
	return slices.ContainsFunc(signingTexts, func(text string) bool { return strings.Contains(lower, text) }) ||
		slices.ContainsFunc(wordsOf(name), func(word string) bool { return slices.Contains(signingWords, word) })
}

// wordsOf returns the words of a name in lower case: rsa, signed and key of RSASigned2-key.
func wordsOf(name string) []string {
	var spaced strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r):
			r = ' '
		case i > 0 && unicode.IsUpper(r) &&
			(unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			spaced.WriteByte(' ')
		}
		spaced.WriteRune(unicode.ToLower(r))
	}
	return strings.Fields(spaced.String())
}

// refusal is the error of a credential made for one request where it would have to name a party.
func (c *credential) refusal() error {
	return fmt.Errorf("a credential of the scheme %.40s is made for one request, so that a repeat would look like "+
		"another sender. Configure who sends a request: a claim of a token (principal_claim), a header of a trusted "+
		"proxy (principal_header), or the credential's stable part (principal: [authorization-id, host]) together "+
		"with replay_check", c.scheme)
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
		id, signature := c.account()
		if id != "" && signature != "" && !strings.ContainsAny(id, "= ") {
			parts = []string{id}
		}
	}
	if parts == nil || len(parts) == 1 && strings.HasPrefix(parts[0], "realm=") {
		return nil
	}
	slices.Sort(parts)
	if c.scheme == noScheme {
		return append([]string{""}, parts...)
	}
	return append([]string{c.scheme}, parts...)
}

// signedQueries are queries that are a credential for one request: a query with both marks has what is renewed in a
// repeat that is signed anew. The first is the signature.
var signedQueries = []struct{ signature, mark, renewed string }{
	{"x-amz-signature", "x-amz-credential", "x-amz-date x-amz-expires x-amz-security-token"},
	{"x-goog-signature", "x-goog-credential", "x-goog-date x-goog-expires"},
	{"x-oss-signature", "x-oss-credential", "x-oss-date x-oss-expires x-oss-security-token"},
	{"signature", "awsaccesskeyid", "expires x-amz-security-token"},
	{"signature", "googleaccessid", "expires"},
	{"signature", "ossaccesskeyid", "expires security-token"},
	{"signature", "key-pair-id", "expires policy"}, // CloudFront
	{"sig", "sv", "se st ske skt"},                 // a shared access signature of Azure
	{"oauth_signature", "oauth_nonce", "oauth_nonce oauth_timestamp"},
}

// withoutSignature returns a URL without the parameters of its query that a repeat which is signed anew has otherwise.
// What names the owner of the signature stays.
func withoutSignature(u *url.URL) *url.URL {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return u
	}
	names := map[string]string{}
	for name := range values {
		names[strings.ToLower(name)] = name
	}
	lasting := *u
	for _, q := range signedQueries {
		signature, mark := names[q.signature], names[q.mark]
		if signature == "" || mark == "" {
			continue
		}
		if id, _, dated := strings.Cut(values.Get(mark), "/"); dated && strings.HasSuffix(q.mark, "-credential") {
			values.Set(mark, id) // it continues with the day and the service
		}
		for name := range strings.FieldsSeq(q.signature + " " + q.renewed) {
			if written, ok := names[name]; ok {
				values.Del(written)
			}
		}
		lasting.RawQuery = values.Encode()
	}
	return &lasting
}

// account returns the account and the signature of SharedKey account:signature or of bce-auth-v1/account/signature.
func (c *credential) account() (id, signature string) {
	if !c.word {
		id, signature, _ = strings.Cut(c.rest, ":")
		return id, signature
	}
	name, after, _ := strings.Cut(c.rest, "/")
	if !strings.EqualFold(name, c.scheme) { // what follows may be of any order
		return "", ""
	}
	id, signature, _ = strings.Cut(after, "/")
	return id, signature
}
