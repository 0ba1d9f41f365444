package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/yamlfile"
)

// Settings are what the flags set for every request, and what a route in the file sets for its own requests.
type Settings struct {
	// Upstream is the service: an http or https URL, with an optional path that is prepended to that of each request.
	Upstream string
	// Timeout is how long the service may take until it sends the response header; 0 means no limit. If it takes
	// longer, the outcome of the request is unknown.
	Timeout time.Duration
	// IdleTimeout is how long an unused connection to the service is kept, at most; 0 keeps none. The service may
	// announce a shorter time, and requests with a key only get a connection that was used a moment ago.
	IdleTimeout time.Duration

	Methods                []string // for which a key is honored
	Required, Strict, Open bool     // see [idempotency.Options]
	Fingerprint            string   // raw, jcs, pointers or none
	Pointers               []string
	MaxBody                int64 // bytes
	TTL, RejectedTTL       time.Duration
	ForgetAfter            string // a duration, or never; empty forgets a key with its response
	Wait, Lease            time.Duration
	OnLeaseExpired         string // indeterminate or takeover
	// ServerErrors are indeterminate, release or store, for all responses of 500 or more, or for a status: 503=release.
	ServerErrors   []string
	EffectFree     []string
	Stored         string // response or outcome
	StoredHeaders  []string
	ReplayStatus   string // original or 200
	MismatchStatus string // 422 or 409
	FreshFields    []string
	// ReplayCheck is a method and a path, such as "GET /may", to which the service answers 2xx if a caller may see a
	// stored response; empty disables the check.
	ReplayCheck string

	// CORSOrigins are the origins, such as https://shop.example, whose pages may read the responses; if empty, the
	// service decides.
	CORSOrigins []string

	// At most one of these says who sends a request: a header set by a trusted proxy, claims of a session token, with
	// commas between them, or Shared for all callers together. The default is the Authorization header.
	PrincipalHeader, PrincipalClaim string
	Shared                          bool
	// Principal lists what tells the senders of requests apart; see [idempotency.Options.Identity]. Nil means
	// authorization, unless another setting says who sends a request, and host.
	Principal []string
	// RequestHeaders and VisitorHeader are as in [idempotency.Options].
	RequestHeaders []string
	VisitorHeader  string
}

// readSettings reads the fields of a route; absent fields keep their values in s.
func readSettings(o *yamlfile.Object, s Settings) Settings {
	list := func(name string, to *[]string) {
		if o.Has(name) {
			*to = append([]string{}, o.Texts(name, 100)...) // empty is not absent
		}
	}
	s.Upstream = o.Optional("upstream", s.Upstream)
	s.Timeout = o.Duration("upstream_timeout", s.Timeout)
	s.IdleTimeout = o.Duration("upstream_idle_timeout", s.IdleTimeout)
	list("methods", &s.Methods)
	s.Required, s.Strict = o.Bool("required", s.Required), o.Bool("strict", s.Strict)
	s.Open, s.Shared = o.Bool("open", s.Open), o.Bool("shared", s.Shared)
	s.Fingerprint = o.Optional("fingerprint", s.Fingerprint)
	list("pointers", &s.Pointers)
	if o.Has("max_body") {
		s.MaxBody = int64(o.Count("max_body", 1, maxBody))
	}
	s.TTL, s.RejectedTTL = o.Duration("ttl", s.TTL), o.Duration("rejected_ttl", s.RejectedTTL)
	s.ForgetAfter = o.Optional("forget_after", s.ForgetAfter)
	s.Wait, s.Lease = o.Duration("wait", s.Wait), o.Duration("lease", s.Lease)
	s.OnLeaseExpired = o.Optional("on_lease_expired", s.OnLeaseExpired)
	if o.Has("server_errors") {
		s.ServerErrors = o.Pairs("server_errors")
	}
	list("effect_free", &s.EffectFree)
	s.Stored = o.Optional("stored", s.Stored)
	list("stored_headers", &s.StoredHeaders)
	s.ReplayStatus = o.Optional("replay_status", s.ReplayStatus)
	s.MismatchStatus = o.Optional("mismatch_status", s.MismatchStatus)
	list("fresh_fields", &s.FreshFields)
	s.ReplayCheck = o.Optional("replay_check", s.ReplayCheck)
	list("cors_origins", &s.CORSOrigins)
	if o.Has("principal_header") || o.Has("principal_claim") || o.Has("shared") {
		s.PrincipalHeader, s.PrincipalClaim = "", ""
		s.Shared = o.Bool("shared", false)
		// The setting says who sends a request, in place of the credential.
		s.Principal = slices.DeleteFunc(slices.Clone(s.Principal), isCredential)
	}
	s.PrincipalHeader = o.Optional("principal_header", s.PrincipalHeader)
	s.PrincipalClaim = o.Optional("principal_claim", s.PrincipalClaim)
	list("principal", &s.Principal)
	list("request_headers", &s.RequestHeaders)
	s.VisitorHeader = o.Optional("visitor_header", s.VisitorHeader)
	return s
}

// maxBody is the upper limit for the max_body of a route, because the body of a keyed request is held in memory.
const maxBody = 64 << 20

// route returns the route for the settings and reports their mistakes.
func (s *Settings) route(report func(field, format string, args ...any)) *route {
	choice := func(field, value string, words ...string) string {
		if !slices.Contains(words, value) {
			report(field, "must be %s, is %q", strings.Join(words, " or "), yamlfile.Clip(value))
		}
		return value
	}
	o := idempotency.Options{
		Settings: idempotency.Settings{TTL: s.TTL, RejectedTTL: s.RejectedTTL, Wait: s.Wait, Lease: s.Lease},
		Required: s.Required, Strict: s.Strict, Open: s.Open, Shared: s.Shared, Pointers: s.Pointers,
		MaxBody: s.MaxBody, FreshFields: s.FreshFields, RequestHeaders: s.RequestHeaders,
		VisitorHeader: s.VisitorHeader, StoredHeaders: s.StoredHeaders,
	}
	o.ForgetAfter = s.forgetAfter(report)
	// 0 disables the wait here and means the default there, so that it has to be negative.
	if s.Wait == 0 {
		o.Wait = -1
	}
	o.Fingerprint = map[string]idempotency.FingerprintMode{
		"raw": idempotency.FingerprintRaw, "jcs": idempotency.FingerprintJCS,
		"pointers": idempotency.FingerprintPointers, "none": idempotency.FingerprintNone,
	}[choice("fingerprint", s.Fingerprint, "raw", "jcs", "pointers", "none")]
	if choice("on_lease_expired", s.OnLeaseExpired, "indeterminate", "takeover") == "takeover" {
		o.OnLeaseExpired = idempotency.TakeOver
	}
	o.OutcomeOnly = choice("stored", s.Stored, "response", "outcome") == "outcome"
	if choice("replay_status", s.ReplayStatus, "original", "200") == "200" {
		o.ReplayStatus = http.StatusOK
	}
	o.MismatchStatus = http.StatusUnprocessableEntity
	if choice("mismatch_status", s.MismatchStatus, "422", "409") == "409" {
		o.MismatchStatus = http.StatusConflict
	}
	s.readMethods(report, &o)
	s.readStatuses(report, &o)
	s.readServerErrors(report, &o)
	s.checkTimes(report)
	one := &route{
		upstream: s.upstreamURL(report), connections: connections{s.Timeout, s.IdleTimeout},
		header: s.PrincipalHeader, claim: s.PrincipalClaim,
		options: o, check: s.readCheck(report),
	}
	s.checkPrincipal(report)
	one.options.Identity = s.identity(report)
	s.checkPointers(report)
	s.readOrigins(report)
	one.cors = newCORS(s.CORSOrigins, s.StoredHeaders)
	return one
}

// upstreamURL returns the URL of the service, or nil.
func (s *Settings) upstreamURL(report func(field, format string, args ...any)) *url.URL {
	if s.Upstream == "" {
		return nil
	}
	upstream, err := url.Parse(s.Upstream)
	switch {
	case err != nil || upstream.Host == "" || upstream.Scheme != "http" && upstream.Scheme != "https":
		report("upstream", "must be an http or https URL, such as http://127.0.0.1:8080")
	case upstream.RawQuery != "" || upstream.Fragment != "" || upstream.User != nil:
		report("upstream", "must not have a user, a query or a fragment")
	}
	return upstream
}

func (s *Settings) readMethods(report func(field, format string, args ...any), o *idempotency.Options) {
	if len(s.Methods) == 0 {
		report("methods", "must have one method")
	}
	for _, method := range s.Methods {
		method = strings.ToUpper(method)
		switch {
		case method == http.MethodHead || method == http.MethodOptions:
			report("methods", "%s has no effects to repeat", method)
		case method == "" || method == http.MethodConnect || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "":
			report("methods", "%q must be a method, such as POST", yamlfile.Clip(method))
		}
		o.Methods = append(o.Methods, method)
	}
}

// readStatuses reads effect_free.
func (s *Settings) readStatuses(report func(field, format string, args ...any), o *idempotency.Options) {
	for _, text := range s.EffectFree {
		status, err := strconv.Atoi(text)
		if _, wrong := (idempotency.Options{ReleaseStatuses: []int{status}}).Policy(); err != nil || wrong != nil {
			report("effect_free", "%q must be one of 401, 403, 407, 408, 409, 423, 425, 429", yamlfile.Clip(text))
		}
		o.ReleaseStatuses = append(o.ReleaseStatuses, status)
	}
}

// readServerErrors reads server_errors: a word for all statuses, and words for single ones.
func (s *Settings) readServerErrors(report func(field, format string, args ...any), o *idempotency.Options) {
	words := map[string]idempotency.Disposition{
		"indeterminate": idempotency.LeaveUnknown, "release": idempotency.ReleaseKey, "store": idempotency.StoreResult,
	}
	o.StatusErrors = map[int]idempotency.Disposition{}
	given := map[string]bool{}
	for _, text := range s.ServerErrors {
		status, word, found := strings.Cut(text, "=")
		if !found {
			status, word = "default", text
		}
		disposition, ok := words[word]
		number, err := strconv.Atoi(status)
		switch {
		case !ok:
			report("server_errors", "must be indeterminate or release or store, is %q", yamlfile.Clip(word))
		case given[status]:
			report("server_errors", "%s was given already", yamlfile.Clip(status))
		case status == "default":
			o.ServerErrors = disposition
		case err != nil || number < 500 || number > 599:
			report("server_errors", "%q must be a status of 500 to 599, or default", yamlfile.Clip(status))
		default:
			o.StatusErrors[number] = disposition
		}
		given[status] = true
	}
	for _, name := range s.StoredHeaders {
		if _, err := (idempotency.Options{StoredHeaders: []string{name}}).Policy(); err != nil {
			report("stored_headers", "%q must be the name of a header that belongs to a response, and not to one "+
				"delivery of it, as cookies, credentials and those of CORS do", yamlfile.Clip(name))
		}
	}
}

func (s *Settings) checkTimes(report func(field, format string, args ...any)) {
	within := func(field string, d, least, most time.Duration) {
		if d < least || d > most {
			report(field, "must be from %v to %v, is %v", least, most, d)
		}
	}
	within("wait", s.Wait, 0, idempotency.MaxWait)
	within("lease", s.Lease, idempotency.MinLease, idempotency.MaxLease)
	within("ttl", s.TTL, idempotency.MinTTL, idempotency.MaxTTL)
	within("rejected_ttl", s.RejectedTTL, idempotency.MinTTL, idempotency.MaxTTL)
	within("upstream_timeout", s.Timeout, 0, 24*time.Hour)
	within("upstream_idle_timeout", s.IdleTimeout, 0, 10*time.Minute)
	if s.MaxBody < 1 || s.MaxBody > maxBody {
		report("max_body", "must be 1 to %d bytes", maxBody)
	}
}

// forgetAfter returns how long a key stays taken after its request has ended.
func (s *Settings) forgetAfter(report func(field, format string, args ...any)) time.Duration {
	switch s.ForgetAfter {
	case "":
		return 0
	case "never":
		return idempotency.Never
	}
	d, err := time.ParseDuration(s.ForgetAfter)
	if err != nil || d < s.TTL || d > idempotency.MaxForgetAfter {
		report("forget_after", "must be never, or a duration of at least ttl (%v), such as 8760h, is %q", s.TTL,
			yamlfile.Clip(s.ForgetAfter))
	}
	return d
}

func (s *Settings) readCheck(report func(field, format string, args ...any)) *replayCheck {
	if s.ReplayCheck == "" {
		return nil
	}
	method, path, found := strings.Cut(s.ReplayCheck, " ")
	if target, err := url.Parse(path); !found || err != nil || !strings.HasPrefix(path, "/") || target.Host != "" ||
		method != http.MethodGet && method != http.MethodHead && method != http.MethodPost {
		report("replay_check", "must be GET, HEAD or POST, a space and a path, such as GET /may-read")
	}
	return &replayCheck{method, path}
}

func (s *Settings) checkPrincipal(report func(field, format string, args ...any)) {
	if s.PrincipalHeader != "" && s.PrincipalClaim != "" {
		report("principal_claim", "and principal_header: give one of them")
	}
	if s.Shared && s.PrincipalHeader+s.PrincipalClaim != "" {
		report("shared", "means that all callers are one principal; leave out principal_header and principal_claim")
	}
	if s.PrincipalHeader == "" {
		return
	}
	name := strings.ToLower(s.PrincipalHeader)
	o := idempotency.Options{Identity: []string{name}, Shared: true}
	if name == "host" || strings.HasSuffix(name, "authorization") {
		report("principal_header", "must have the user that a proxy has verified, such as X-User; what the client "+
			"sends itself is in the list principal")
	} else if _, err := o.Policy(); err != nil {
		report("principal_header", "must be the name of a header, such as X-User, that stays the same in a repeat")
	}
}

// identity returns what tells the senders of requests apart.
func (s *Settings) identity(report func(field, format string, args ...any)) []string {
	list := s.Principal
	switch known := s.Shared || s.PrincipalHeader+s.PrincipalClaim != ""; {
	case list == nil && known:
		list = []string{idempotency.IdentityHost}
	case list == nil:
		list = []string{idempotency.IdentityAuthorization, idempotency.IdentityHost}
	case known && slices.ContainsFunc(list, isCredential):
		report("principal", "must not have authorization where principal_header, principal_claim or shared says who "+
			"sends a request")
		return list
	}
	o := idempotency.Options{
		Identity: list, Shared: s.Shared, RequestHeaders: s.RequestHeaders, VisitorHeader: s.VisitorHeader,
	}
	if s.PrincipalHeader+s.PrincipalClaim != "" {
		o.Shared, o.Principal = false, func(context.Context, http.Header) (string, error) { return "", nil }
	}
	if s.ReplayCheck != "" {
		o.AllowReplay = func(*http.Request) (bool, error) { return false, nil }
	} else if slices.Contains(list, idempotency.IdentityAuthorizationID) {
		report("principal", "authorization-id is no secret: it needs a replay_check, which asks the service whether a "+
			"caller may see a stored response")
		return list
	}
	if _, err := o.Policy(); err != nil {
		field, problem := "principal", err.Error()
		if wrong, ok := errors.AsType[*idempotency.InvalidError](err); ok {
			problem = wrong.Problem
			field = cmp.Or(map[string]string{
				"RequestHeaders": "request_headers", "VisitorHeader": "visitor_header",
			}[wrong.Field], field)
		}
		report(field, "%s", problem)
	}
	return list
}

// isCredential reports whether an element of a list of principals says who sends a request.
func isCredential(word string) bool {
	word = strings.ToLower(word)
	return word == idempotency.IdentityAuthorization || word == idempotency.IdentityAuthorizationID
}

func (s *Settings) checkPointers(report func(field, format string, args ...any)) {
	if (s.Fingerprint == "pointers") != (len(s.Pointers) > 0) {
		report("pointers", "belong to fingerprint pointers, which needs one at least")
	}
	each := func(field string, pointers []string) {
		for _, pointer := range pointers {
			if _, err := (idempotency.Options{FreshFields: []string{pointer}}).Policy(); err != nil {
				report(field, "%q must be a JSON pointer, such as /requestId", yamlfile.Clip(pointer))
			}
		}
	}
	each("pointers", s.Pointers)
	each("fresh_fields", s.FreshFields)
}
