package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// The words of Options.Identity that are not the names of headers.
const (
	// IdentityAuthorization is the credential in the Authorization header.
	IdentityAuthorization = "authorization"
	// IdentityAuthorizationID is the part of a credential made for one request that stays the same: an access key id,
	// or a user name. It is not a secret, so it is accepted only with Options.AllowReplay. Other credentials count as
	// with IdentityAuthorization.
	IdentityAuthorizationID = "authorization-id"
	// IdentityHost is the host name in the Host header, without the port. An address, or localhost, is like no name.
	// Interceptor knows it through WithHost alone.
	IdentityHost = "host"
	// HeadersAnyTenant are the common headers in which a client with one credential says for which tenant it acts. It
	// may also be in Options.RequestHeaders.
	HeadersAnyTenant = "any-tenant"
	// HeadersAnyVersion are the common headers for the version of an API, and for dry runs and test modes. It may also
	// be in Options.RequestHeaders.
	HeadersAnyVersion = "any-version"
)

// presets are the headers of the words for several headers. A header that a request does not have changes nothing, so
// that a list may grow.
var presets = map[string][]string{
	HeadersAnyTenant: {
		"stripe-account", "stripe-context", "openai-organization", "openai-project", "xero-tenant-id",
		"x-goog-user-project", "x-scope-orgid", "x-shop-id", "x-site-id", "x-store-id", "tenant", "tenant-id",
		"x-tenant", "x-tenant-id", "x-tenant-name", "x-org", "x-org-id", "x-organization", "x-organization-id",
		"account-id", "x-account", "x-account-id", "x-company-id", "x-customer-id", "x-merchant", "x-merchant-id",
		"x-project", "x-project-id", "x-workspace", "x-workspace-id", "on-behalf-of", "x-on-behalf-of",
		"impersonate-user", "x-impersonate-user", "x-organisation", "x-organisation-id", "x-team", "x-team-id",
		"x-company", "x-customer", "x-shop", "x-store", "x-site", "x-sub-account", "x-sub-account-id", "x-realm",
		"x-act-as", "sudo", "accept-profile", "content-profile", "paypal-auth-assertion", "x-shopify-shop-domain",
		"x-forwarded-prefix", // where a proxy removes the name of the tenant from the path
	},
	HeadersAnyVersion: {
		"stripe-version", "square-version", "anthropic-version", "anthropic-beta", "openai-beta", "notion-version",
		"plaid-version", "intercom-version", "x-github-api-version", "x-ms-version", "api-version", "x-api-version",
		"accept-version", "odata-version", "dry-run", "x-dry-run", "x-test-mode", "x-sandbox", "x-environment",
		"prefer", "revision", "x-revision", "version", "x-version", "linkedin-version",
	},
}

// changing are headers that differ from one request to its repeat, so that they tell nothing apart.
var changing = regexp.MustCompile(`^(b3|baggage|cf-ray|date|dpop|idempotency-key|sentry-trace|signature(-input)?|` +
	`traceparent|tracestate|x-(acs|amz|bce|goog|ms|obs|oss|tc)-date|x-(b3|datadog)-.*|x-amzn-trace-id|` +
	`x-cloud-trace-context|(x-)?(correlation|request|span|trace)-id)$`)

// changingSender are further ones that tell no senders apart, because they are made for a request or for its body.
var changingSender = regexp.MustCompile(`(^|-)(hmac|nonce|signature|timestamp)(-|$)`)

// public are further headers that are no secrets: every client may send the same value.
var public = regexp.MustCompile(`^(accept(-.*)?|content-.*|x-forwarded-.*|forwarded|from|origin|referer|user-agent)$`)

// isSecret reports whether a word of a list can say who sends a request.
func isSecret(word string) bool {
	named := slices.Concat(presets[HeadersAnyTenant], presets[HeadersAnyVersion])
	return word != IdentityHost && presets[word] == nil && !slices.Contains(named, word) && !public.MatchString(word) &&
		!slices.Contains(actingHeaders, textproto.CanonicalMIMEHeaderKey(word))
}

// maxIdentity bounds the text of a list of headers, so that a principal with their names has room.
const maxIdentity = 200

// headerNames returns the canonical names of the headers in a list, with those of its presets, sorted.
func headerNames(list []string) []string {
	var names []string
	for _, word := range list {
		all, ok := presets[word]
		if !ok {
			all = []string{word}
		}
		for _, name := range all {
			names = append(names, textproto.CanonicalMIMEHeaderKey(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// identity says what tells the senders of requests apart.
type identity struct {
	credential string   // IdentityAuthorization, IdentityAuthorizationID, or ""
	words      []string // the rest of the list
	headers    []string // that the words stand for
	senders    []string // those of them that are secrets, and so can say who sends a request
}

// readIdentity fills in the defaults of Identity and RequestHeaders, and resolves both.
func (o *Options) readIdentity() error {
	if o.Identity == nil {
		switch {
		case o.Shared, o.Principal != nil:
			o.Identity = []string{IdentityHost}
		default:
			o.Identity = []string{IdentityAuthorization, IdentityHost}
		}
	}
	if o.RequestHeaders == nil {
		o.RequestHeaders = []string{HeadersAnyTenant, HeadersAnyVersion}
	}
	for field, list := range map[string]*[]string{"Identity": &o.Identity, "RequestHeaders": &o.RequestHeaders} {
		*list = slices.Clone(*list)
		for i, name := range *list {
			(*list)[i] = strings.ToLower(name)
			if problem := nameProblem(name, list == &o.Identity); problem != "" {
				return &InvalidError{field, problem}
			}
		}
	}
	o.who = identity{}
	for _, word := range o.Identity {
		if word != IdentityAuthorization && word != IdentityAuthorizationID {
			o.who.words = append(o.who.words, word)
		} else if o.who.credential != "" && o.who.credential != word {
			return &InvalidError{"Identity", "must not have both authorization and authorization-id"}
		} else {
			o.who.credential = word
		}
	}
	slices.Sort(o.who.words)
	o.who.words = slices.Compact(o.who.words)
	o.who.headers = headerNames(o.who.words)
	o.who.senders = headerNames(slices.DeleteFunc(slices.Clone(o.who.words), func(word string) bool {
		return !isSecret(word)
	}))
	o.compared = slices.DeleteFunc(headerNames(o.RequestHeaders), func(name string) bool {
		return slices.Contains(o.who.headers, name) || name == "Authorization"
	})
	given := o.who.credential != ""
	switch {
	case len(strings.Join(o.Identity, "+")) > maxIdentity:
		return &InvalidError{"Identity", fmt.Sprintf("must have at most %d characters", maxIdentity)}
	case given && (o.Shared || o.Principal != nil):
		return &InvalidError{"Identity", "must not have authorization where another setting says who sends a request"}
	case !given && !o.Shared && o.Principal == nil && len(o.who.senders) == 0:
		return &InvalidError{"Identity", "must have authorization, or another header that tells senders apart"}
	case o.who.credential == IdentityAuthorizationID && o.AllowReplay == nil:
		return &InvalidError{"Identity", "must not have authorization-id without AllowReplay: it is no secret, and a " +
			"caller that knows it would get stored responses"}
	case o.VisitorHeader != "" && (o.Shared || nameProblem(o.VisitorHeader, true) != ""):
		return &InvalidError{"VisitorHeader", "must be the name of a header, and not be set with Shared"}
	case o.VisitorHeader != "" && o.Principal == nil && o.AllowReplay == nil:
		return &InvalidError{"VisitorHeader", "needs a verified principal or a replay check: otherwise an expired or " +
			"invented credential could take over what a visitor began"}
	}
	return nil
}

// ComparedHeaders returns the canonical names of the headers that tell senders and requests apart. A proxy must not let
// a client hide them, or imitate them in another spelling. The error is that of invalid options.
func (o Options) ComparedHeaders() ([]string, error) {
	o, err := o.validate()
	names := slices.Concat(actingHeaders, o.who.headers, o.compared)
	if o.VisitorHeader != "" {
		names = append(names, http.CanonicalHeaderKey(o.VisitorHeader))
	}
	return names, err
}

// nameProblem returns why a list, which may be of what tells senders apart, may not have the name of a header, or "".
func nameProblem(name string, ofSenders bool) string {
	switch name = strings.ToLower(name); {
	case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return fmt.Sprintf("has %.40q, which is not the name of a header", name)
	case changing.MatchString(name), ofSenders && changingSender.MatchString(name):
		return fmt.Sprintf("has %s, which changes with each request", name)
	}
	return ""
}

// sender says who sends a request.
type sender struct {
	party     string // what [Options.Admit] counts
	principal string
	// visitor is the principal of the secret that a request with a credential has, or "".
	visitor string
}

// sender returns who sends a request. header includes Host. The error is an [*Error].
func (o *Options) sender(ctx context.Context, header http.Header, warn *sync.Once) (s sender, err error) {
	if s.party, err = o.party(ctx, header, warn); err == nil {
		err = o.checkSigned(header)
	}
	if err != nil {
		return s, err
	}
	visitor, err := o.visitor(header)
	switch {
	case err != nil:
		return s, err
	case visitor != "" && s.party == "":
		s.party = visitor
	case visitor != "":
		s.visitor = o.qualify(visitor, header)
	case s.party == "" && !o.Shared:
		return s, &Error{Code: CodePrincipalMissing, Cause: o.missing()}
	}
	s.principal = o.qualify(s.party, header)
	return s, nil
}

// missing returns what an anonymous request lacks. Its client may see it.
func (o *Options) missing() error {
	switch {
	case o.Principal != nil:
		return nil
	case o.who.credential != "":
		return errors.New("send one Authorization header")
	}
	return fmt.Errorf("send one of the headers %s", strings.Join(o.who.senders, ", "))
}

// party returns the party that sends a request, or "" for an anonymous one. The error is an [*Error].
func (o *Options) party(ctx context.Context, header http.Header, warn *sync.Once) (string, error) {
	switch {
	case o.Shared:
		return "", nil
	case o.Principal != nil:
		party, err := o.Principal(ctx, header)
		if err != nil {
			o.Logger.WarnContext(ctx, "a request with a key has no principal", "error", err)
			return "", &Error{Code: CodePrincipalMissing} // the client may not see the error
		}
		return party, nil
	case o.who.credential == "" && strings.Join(header.Values("Authorization"), "") != "":
		return "", &Error{Code: CodePrincipalMissing, Cause: errors.New("the list of principal leaves out the " +
			"Authorization header that the request has: add authorization")}
	case o.who.credential == "":
		// The principal has these headers; the party is what the limits of a party count.
		if values := valuesOf(header, o.who.senders); len(values) > 0 {
			return "headers:" + hashOf(values...), nil
		}
		return "", nil
	}
	values := header.Values("Authorization")
	if strings.Join(values, "") == "" {
		return "", nil
	}
	c, err := parseCredential(values)
	if err != nil {
		return "", &Error{Code: CodePrincipalMissing, Cause: err}
	}
	if c.signs {
		if o.who.credential != IdentityAuthorizationID {
			return "", &Error{Code: CodePrincipalMissing, Cause: c.refusal()}
		}
		id := c.stable()
		if id == nil {
			return "", &Error{Code: CodePrincipalMissing, Cause: fmt.Errorf("nothing in a credential of the scheme %s "+
				"stays the same in a repeat", c.scheme)}
		}
		return "authorization-id:" + hashOf(id...), nil
	}
	if (c.scheme == "bearer" || c.scheme == "jwt") && strings.Count(c.rest, ".") == 2 {
		warn.Do(func() {
			o.Logger.WarnContext(ctx, "the Authorization header looks like a JWT, and each new token is a new "+
				"principal; set Options.Principal to a claim of it")
		})
	}
	sum := sha256.Sum256([]byte(c.text))
	return "authorization:" + hex.EncodeToString(sum[:]), nil
}

// checkSigned refuses a credential made for one request in a further header, such as X-Authorization. The error is an
// [*Error].
func (o *Options) checkSigned(header http.Header) error {
	for _, name := range slices.Concat(o.who.headers, o.compared) {
		if !hasCredential(name) {
			continue
		}
		if c, err := parseCredential(header.Values(name)); err == nil && c.signs {
			return &Error{Code: CodePrincipalMissing, Cause: c.refusal()}
		}
	}
	return nil
}

// qualify returns the principal of a party: the party, and which other headers tell requests apart, with a hash of
// their values, as in authorization:9f…/host+stripe-account:4b….
func (o *Options) qualify(party string, header http.Header) string {
	if len(o.who.words) == 0 {
		return party
	}
	principal := strings.Join(o.who.words, "+") + ":" + hashOf(valuesOf(header, o.who.headers)...)
	if party == "" || o.who.credential == "" && o.Principal == nil && !strings.HasPrefix(party, "visitor:") {
		return principal
	}
	if len(party)+1+len(principal) > MaxPrincipal {
		party = "sha256:" + hashOf(party)
	}
	return party + "/" + principal
}

// valuesOf returns the names and values of headers. A header that is absent is like an empty one, and is left out.
func valuesOf(header http.Header, names []string) (parts []string) {
	for _, name := range names {
		value := strings.Join(header.Values(name), ",")
		switch {
		case name == "Host":
			value = canonicalHost(value)
		case hasCredential(name):
			value = canonicalCredential(header.Values(name))
		default:
			value = canonicalList(value)
		}
		if strings.Trim(value, ",") != "" {
			parts = append(parts, name, value)
		}
	}
	return parts
}

// canonicalList returns a list, whose lines are joined by commas, without the white space around its elements. A comma
// in quotes does not separate elements.
func canonicalList(text string) string {
	elements := splitQuoted(text, ',')
	for i, element := range elements {
		elements[i] = strings.TrimSpace(element)
	}
	return strings.Join(elements, ",")
}

// canonicalHost returns the name in an authority in lower case, without its port and the dot of a full name. It returns
// "" for an address: that names a machine, and a client may repeat its request at another one.
func canonicalHost(authority string) string {
	authority = strings.ToLower(strings.TrimSpace(authority))
	host, bracketed := strings.CutPrefix(authority, "[")
	if bracketed {
		host, _, _ = strings.Cut(host, "]")
	} else if _, err := netip.ParseAddr(host); err != nil { // not IPv6 without brackets
		host, _, _ = strings.Cut(host, ":")
	}
	host = strings.TrimSuffix(host, ".")
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return ""
	}
	return host
}

// withHost returns the header of a request with Host, which net/http keeps elsewhere.
func withHost(r *http.Request) http.Header {
	header := http.Header{}
	copyHeader(header, r.Header)
	header["Host"] = []string{r.Host}
	return header
}

// hashOf returns a hash of texts in hex.
func hashOf(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		writePart(h, []byte(text))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// qualifiers is the end of a principal with qualifiers; see qualify.
var qualifiers = regexp.MustCompile(`^(?:(.*)/)?([a-z0-9-]+(?:\+[a-z0-9-]+)*):[0-9a-f]{64}$`)

// IdentityOf returns what a principal that [Middleware] or [Interceptor] has stored was made of, in the words of
// [Options].Identity: for example authorization, host and stripe-account.
func IdentityOf(principal string) (words []string) {
	found := qualifiers.FindStringSubmatch(principal)
	if found == nil {
		return nil
	}
	if kind, _, ok := strings.Cut(found[1], ":"); ok {
		words = append(words, kind)
	}
	return append(words, strings.Split(found[2], "+")...)
}

// The length of a visitor's secret: at least 128 random bits in base64.
const (
	minVisitor = 22
	maxVisitor = 256
)

// visitor returns the party of a request with a visitor's secret, or "". The error is an [*Error].
func (o *Options) visitor(header http.Header) (string, error) {
	if o.VisitorHeader == "" {
		return "", nil
	}
	values := header.Values(o.VisitorHeader)
	switch {
	case strings.Join(values, "") == "":
		return "", nil
	case len(values) > 1, len(values[0]) < minVisitor, len(values[0]) > maxVisitor, firstOutside(values[0], '!') >= 0:
		return "", &Error{Code: CodePrincipalMissing, Cause: fmt.Errorf(
			"%s must be one secret of %d to %d visible ASCII characters, such as a random UUID", o.VisitorHeader,
			minVisitor, maxVisitor)}
	}
	return "visitor:" + hashOf(values[0]), nil
}

// visitorTTL is how long a visitor's secret belongs to the first user that sends it; it is longer than the records.
const visitorTTL = 30 * 24 * time.Hour

// signIn makes the visitor's principal that of the sender if the secret belongs to it: to the first verified user that
// sends it, as the store decides. A request that a visitor began stays the visitor's, even when a user repeats it. If
// the user's own records were looked up instead, a copy of the visitor's request that is still in flight could run as
// well. The error is an [*Error].
func (g *guard) signIn(ctx context.Context, o *Options, s *sender) error {
	claim := DoOptions{
		// To assign a secret to the same user twice is harmless.
		Settings: Settings{TTL: max(visitorTTL, g.TTL), OnLeaseExpired: TakeOver, StoreTimeout: g.StoreTimeout},
		Fingerprint: Fingerprint{
			Algorithm: uint8(FingerprintRaw), Digest: sha256.Sum256([]byte(s.principal)),
		},
	}
	key := RecordKey{Scope: o.Scope, Namespace: "visitors", Principal: s.visitor, Key: "user"}
	_, err := claim.Do(ctx, g.store, key, func(context.Context, *Owner) ([]byte, error) { return nil, nil })
	switch {
	case CodeOf(err) == CodeKeyReused:
		return nil
	case err != nil && !(g.open && bypasses(err)): // otherwise the request runs without the store, too
		return err
	}
	s.principal = s.visitor
	return nil
}
