package transport

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/listen"
)

// Headers that a node sends with every request to another node. A forwarded call has them in addition to those of its
// caller, which is why they have names of their own.
const (
	headerToken      = "Seqledger-Join-Token"
	headerPeerLedger = "Seqledger-Peer-Ledger"
	headerPeerFrom   = "Seqledger-Peer-From"
	headerPeerTo     = "Seqledger-Peer-To"
)

// peerPaths is the prefix of the paths of requests that nodes make on their own. Other requests are forwarded and have
// the Authorization header of their callers.
const peerPaths = "/seqledger.peer.v1/"

// Identity is what a node sends to the others with each request.
type Identity struct {
	Token  string // the join token; empty if the node has none
	Ledger string // empty while the node joins and does not know it
	From   uint64 // id of the node; 0 while it joins and has none
}

// show sets the identity headers of a request, and overwrites any that its caller may have set.
func (i Identity) show(h http.Header) {
	set := func(name, value string) {
		if h.Del(name); value != "" {
			h.Set(name, value)
		}
	}
	set(headerToken, i.Token)
	set(headerPeerLedger, i.Ledger)
	from := ""
	if i.From != 0 {
		from = strconv.FormatUint(i.From, 10)
	}
	set(headerPeerFrom, from)
}

// AddressTo makes every node other than id refuse a request, because the address may now belong to another node. A
// forwarded call omits it, because any node may answer; see [AddressToAny].
func AddressTo(h http.Header, id uint64) { h.Set(headerPeerTo, strconv.FormatUint(id, 10)) }

// AddressToAny undoes AddressTo, which the caller of a forwarded call may have imitated.
func AddressToAny(h http.Header) { h.Del(headerPeerTo) }

// As returns a RoundTripper that sends requests with a node's identity.
func As(t http.RoundTripper, node func() Identity) http.RoundTripper { return bearer{t, node} }

type bearer struct {
	http.RoundTripper

	node func() Identity
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	b.node().show(r.Header)
	return b.RoundTripper.RoundTrip(r)
}

// CloseIdleConnections is for http.Client.
func (b bearer) CloseIdleConnections() {
	if t, ok := b.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Access decides which requests of other nodes a node answers. Its functions may be called from any goroutine.
type Access struct {
	// Token returns the join token. While it is empty, every request is refused.
	Token func() string
	// Member reports whether a node is a member, whether it was one, and the address at which the others reach it.
	Member func(id uint64) (peer string, is, was bool)
	// Joining holds the paths that a node may request before it is a member. Their handlers check the address that a
	// certificate is for: see [CertificateFor].
	Joining []string
	// Unannounced holds the paths that a member may request before it has announced an address. Over TLS, such a member
	// is refused everywhere else, because nothing ties a certificate to it.
	Unannounced []string
}

func (a *Access) validate() error {
	if a.Token == nil || a.Member == nil {
		return errors.New("transport: Options.Access lacks a function")
	}
	return nil
}

// Refusal is the response to a refused request, as JSON.
type Refusal struct {
	Message string `json:"error"`
	Final   bool   `json:"final,omitempty"`   // the same request will be refused again
	Removed bool   `json:"removed,omitempty"` // because the requesting node was removed
	Ledger  string `json:"ledger,omitempty"`  // of this node, because the requesting node has another one
}

// refusal is a Refusal with what is needed to send it.
type refusal struct {
	status   int
	expected bool // of a node that has just joined; it is not logged
	Refusal
}

// errorWriter writes errors for streams of the consensus and forwarded calls.
var errorWriter = connect.NewErrorWriter(options())

// write sends the refusal. It marks a forwarded call as retryable, because the caller can do nothing about a problem
// between the nodes.
func (no *refusal) write(w http.ResponseWriter, r *http.Request) {
	err := connect.NewError(connect.CodeUnavailable,
		errors.New("the nodes of the cluster refuse each other: "+no.Message))
	if r.URL.Path == Procedure {
		err = connect.NewError(connect.CodePermissionDenied, errors.New(no.Message))
	}
	if !strings.HasPrefix(r.URL.Path, peerPaths) && errorWriter.IsSupported(r) {
		_ = errorWriter.Write(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(no.status)
	_ = json.NewEncoder(w).Encode(no.Refusal)
}

// guard accepts requests from nodes that belong to the cluster, on any path.
func (t *Transport) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sender, no := t.o.Access.check(t.o.Ledger, t.o.ID, r)
		if no != nil {
			t.refused(r, no)
			no.write(w, r) // an error can be ignored: the node asks again
			return
		}
		listen.LetIn(r.Context())
		for _, name := range []string{headerToken, headerPeerLedger, headerPeerFrom, headerPeerTo} {
			r.Header.Del(name) // handlers do not need them
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), senderKey{}, sender)))
	})
}

// senderKey is the key of the context value that Sender reads.
type senderKey struct{}

// Sender returns the id of the member that sent a request, from the context of the request that a handler gets. It is 0
// if the request was let in without one. Over TLS, the sender has shown a certificate for the address of that member.
func Sender(ctx context.Context) uint64 {
	id, _ := ctx.Value(senderKey{}).(uint64)
	return id
}

// check returns the member that sent a request, see Sender, or the reason for refusing the request.
func (a *Access) check(ledger string, self uint64, r *http.Request) (member uint64, no *refusal) {
	if no := a.checkToken(r); no != nil {
		return 0, no
	}
	joining := slices.Contains(a.Joining, r.URL.Path)
	switch meant := r.Header.Get(headerPeerLedger); {
	case meant == ledger, meant == "" && joining:
	default:
		no := refuse(http.StatusForbidden, "it comes from a node of ledger %.64q, and this is ledger %q", meant, ledger)
		no.Ledger = ledger
		return 0, no
	}
	if to := r.Header.Get(headerPeerTo); to != "" && to != strconv.FormatUint(self, 10) {
		return 0, refuse(http.StatusMisdirectedRequest, "it is for node %.64q, and this is node %d", to, self)
	}
	sender := r.Header.Get(headerPeerFrom)
	if sender == "" && joining {
		return 0, nil
	}
	id, err := strconv.ParseUint(sender, 10, 64)
	if err != nil {
		return 0, refuse(http.StatusForbidden, "the request says that it is of node %.64q", sender)
	}
	address, is, was := a.Member(id)
	switch {
	case was:
		no := refuse(http.StatusForbidden, "node %d was removed from the cluster", id)
		no.Final, no.Removed = true, true
		return 0, no
	case !is: // it may have joined without this node knowing yet
		return 0, refuse(http.StatusForbidden, "node %d is no member of the cluster", id)
	case joining:
		return 0, nil
	case address == "" && r.TLS != nil && slices.Contains(a.Unannounced, r.URL.Path):
		return 0, nil
	case address == "" && r.TLS != nil:
		no := refuse(http.StatusForbidden, "node %d has announced no address yet", id)
		no.expected = true
		return 0, no
	case address == "":
		return id, nil
	}
	if err := CertificateFor(r, address); err != nil {
		return 0, refuse(http.StatusForbidden, "node %d: %v", id, err)
	}
	return id, nil
}

// checkToken returns the reason for refusing a request because of its token, or nil.
func (a *Access) checkToken(r *http.Request) *refusal {
	want, got := a.Token(), r.Header.Get(headerToken)
	// Hashed, because the comparison would leak the length.
	wanted, shown := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(got))
	// A node without a token refuses every request; otherwise one without a token would match.
	if want != "" && subtle.ConstantTimeCompare(wanted[:], shown[:]) == 1 {
		return nil
	}
	no := refuse(http.StatusUnauthorized, "the join token is missing or wrong: give the node that of the "+
		"cluster with --join-token-file, such as JOIN-TOKEN in the data directory of another node")
	no.Final = true
	return no
}

// CertificateFor returns an error if the certificate of a request is not for the address, host and port, of a node.
// Without TLS there is no certificate, and the join token must suffice.
func CertificateFor(r *http.Request, address string) error {
	if r.TLS == nil {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("its address: %w", err)
	}
	if len(r.TLS.PeerCertificates) == 0 {
		return errors.New("it has shown no certificate")
	}
	if err := r.TLS.PeerCertificates[0].VerifyHostname(host); err != nil {
		return fmt.Errorf("the certificate is another node's: %w", err)
	}
	return nil
}

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status: status, Refusal: Refusal{Message: fmt.Sprintf(format, args...)}}
}

// refused logs a refused request, once for each reason and host.
func (t *Transport) refused(r *http.Request, no *refusal) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	if !no.expected && t.told.add(host+" "+no.Message) {
		t.o.Logger.Warn("a request of a node was refused", "from", r.RemoteAddr, "path", r.URL.Path, "why", no.Message)
	}
}

// maxTold bounds the number of logged refusals, so that refused requests fill neither memory nor the log.
const maxTold = 64

// told is the set of logged messages.
type told struct {
	mu   sync.Mutex
	said map[string]bool
}

// add reports whether a message is new and may be logged.
func (t *told) add(message string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.said[message] || len(t.said) >= maxTold {
		return false
	}
	if t.said == nil {
		t.said = map[string]bool{}
	}
	t.said[message] = true
	return true
}
