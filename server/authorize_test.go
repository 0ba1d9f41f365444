package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// guarded is a server with an auth file.
type guarded struct {
	*harness
	authority *auth.Authority
	path      string
	entries   map[string]string // by id
	keys      map[string]string // by id
	log       *syncBuffer
}

// syncBuffer may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// callers are the ids of the keys of guard and what they may do.
var callers = map[string]string{
	"reader":     "role: reader, scopes: [acme/main]",
	"inspector":  `role: reader, scopes: [acme/main], client_ids: ["till-*"]`,
	"writer":     `role: writer, scopes: [acme/main], client_ids: ["till-*"]`,
	"elsewhere":  `role: writer, scopes: ["acme", "other/*"], client_ids: ["*"]`,
	"foreman":    `role: admin, scopes: ["acme/main"], client_ids: ["*"]`,
	"prometheus": `role: reader, scopes: ["*"]`,
	"operations": `role: admin, scopes: ["*"]`,
	"root":       `role: admin, scopes: ["*"], client_ids: ["*"]`,
}

// guard starts a server whose auth file has the callers, and more.
func guard(t testing.TB, o server.Options, more map[string]string) *guarded {
	t.Helper()
	g := newGuard(t, &o, more)
	g.harness = startWith(t, o)
	return g
}

// newGuard is guard that starts no server, but makes its options.
func newGuard(t testing.TB, o *server.Options, more map[string]string) *guarded {
	t.Helper()
	g := &guarded{path: filepath.Join(t.TempDir(), "auth.yaml"), entries: map[string]string{},
		keys: map[string]string{}, log: new(syncBuffer)}
	for _, set := range []map[string]string{callers, more} {
		for id, rights := range set {
			key, hash, err := auth.NewKey(id)
			must.Do(t, err)
			g.keys[id], g.entries[id] = key, fmt.Sprintf("- {id: %s, hash: %q, %s}\n", id, hash, rights)
		}
	}
	g.save(t)
	o.Logger = slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g.authority = must.Get(auth.Open(g.path, auth.Options{Logger: o.Logger}))(t)
	o.Auth = g.authority
	return g
}

func (g *guarded) save(t testing.TB) {
	t.Helper()
	content := "keys:\n"
	for _, entry := range g.entries {
		content += entry
	}
	must.Do(t, os.WriteFile(g.path, []byte(content), 0o600))
}

// reload saves the entries and has them read.
func (g *guarded) reload(t testing.TB) {
	t.Helper()
	g.save(t)
	must.Do(t, g.authority.Reload())
}

// withBearer adds a credential to each request.
type withBearer struct {
	text string
	next http.RoundTripper
}

func (w withBearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.text != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+w.text)
	}
	return w.next.RoundTrip(r)
}

// as returns clients that call with the key of an id; "" has none.
func (g *guarded) as(id string, o ...connect.ClientOption) (seqledgerv1connect.LedgerServiceClient,
	seqledgerv1connect.AdminServiceClient) {
	h := &http.Client{Transport: withBearer{g.keys[id], g.h2.Transport}}
	return seqledgerv1connect.NewLedgerServiceClient(h, g.url,
		o...), seqledgerv1connect.NewAdminServiceClient(h, g.url, o...)
}

// call makes one call and returns its error.
func call[Q, R any](t *testing.T,
	f func(context.Context, *connect.Request[Q]) (*connect.Response[R], error), q *Q) error {
	_, err := f(t.Context(), connect.NewRequest(q))
	return err
}

// attempts are a call of every procedure that is not a stream: about acme/main and, where there is one, the client
// till-7.
func attempts(t *testing.T, l seqledgerv1connect.LedgerServiceClient,
	a seqledgerv1connect.AdminServiceClient, txID string) map[string]error {
	return map[string]error{
		"Write": call(t, l.Write, writeOf("till-7", 1, appendOp("x"))),
		"OpenSession": call(t, l.OpenSession,
			&seqledgerv1.OpenSessionRequest{Scope: scope(), ClientId: "till-8", AttemptId: make([]byte, 16)}),
		"GetClientState": call(t, l.GetClientState,
			&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "till-7"}),
		"GetEntity":         call(t, l.GetEntity, &seqledgerv1.GetEntityRequest{Scope: scope(), Key: "k"}),
		"ListEntities":      call(t, l.ListEntities, &seqledgerv1.ListEntitiesRequest{Scope: scope()}),
		"ListRelationships": call(t, l.ListRelationships, &seqledgerv1.ListRelationshipsRequest{Scope: scope()}),
		"GetTransaction": call(t, l.GetTransaction,
			&seqledgerv1.GetTransactionRequest{TxId: txID, IncludeProof: true}),
		"GetReceipt":   call(t, l.GetReceipt, &seqledgerv1.GetReceiptRequest{TxId: txID}),
		"GetBlock":     call(t, l.GetBlock, &seqledgerv1.GetBlockRequest{Scope: scope(), Height: 1}),
		"ListBlocks":   call(t, l.ListBlocks, &seqledgerv1.ListBlocksRequest{Scope: scope()}),
		"GetStatus":    call(t, a.GetStatus, &seqledgerv1.GetStatusRequest{}),
		"ListClients":  call(t, a.ListClients, &seqledgerv1.ListClientsRequest{Scope: scope()}),
		"ListRefusals": call(t, a.ListRefusals, &seqledgerv1.ListRefusalsRequest{}),
		"UpdateConfig": call(t, a.UpdateConfig, &seqledgerv1.UpdateConfigRequest{
			MaxStreamsSet: &seqledgerv1.UpdateConfigRequest_MaxStreams{MaxStreams: 1_000}}),
		"GetCluster": call(t, a.GetCluster, &seqledgerv1.GetClusterRequest{}),
		"ChangeCluster": call(t, a.ChangeCluster, &seqledgerv1.ChangeClusterRequest{
			Change: &seqledgerv1.ChangeClusterRequest_Remove{Remove: 7}}),
	}
}

// TestWhoMayCallWhat is the whole table, over the wire.
func TestWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	const read = "GetEntity ListEntities ListRelationships GetTransaction GetReceipt GetBlock ListBlocks GetStatus "
	const write = "Write OpenSession GetClientState "
	const admin = "ListClients ListRefusals UpdateConfig GetCluster ChangeCluster "
	allowed := map[string]string{
		"reader": read, "inspector": read + "GetClientState ", "writer": read + write, "elsewhere": "GetStatus ",
		"foreman": read + write, "operations": read + admin, "root": read + write + admin, "": "",
	}
	g := guard(t, server.Options{}, nil)
	l, _ := g.as("root")
	first := must.Get(l.Write(t.Context(), connect.NewRequest(writeOf("till-7", 1, appendOp("x"), setOp("k", "v")))))(t)
	for id, names := range allowed {
		for protocol, o := range wire {
			l, a := g.as(id, o...)
			for name, err := range attempts(t, l, a, first.Msg.Receipt.TxId) {
				got := connect.CodeOf(err)
				var want connect.Code
				switch {
				case strings.Contains(names, name+" "):
					if err != nil && got != connect.CodeFailedPrecondition { // the ledger's own decision
						t.Errorf("%s, %s, %s: %v", id, protocol, name, err)
					}
					continue
				case id == "":
					want = connect.CodeUnauthenticated
				case name == "GetTransaction", name == "GetReceipt":
					want = connect.CodeNotFound
				default:
					want = connect.CodePermissionDenied
				}
				if err == nil || got != want {
					t.Errorf("%s, %s, %s: got %v, want %v", id, protocol, name, err, want)
				}
			}
		}
	}
}

// TestNoOracle: absent and forbidden objects look the same.
func TestNoOracle(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	root, _ := g.as("root")
	first := must.Get(root.Write(t.Context(), connect.NewRequest(writeOf("till-7", 1, appendOp("x")))))(t)
	id := first.Msg.Receipt.TxId
	l, _ := g.as("elsewhere")
	hidden := call(t, l.GetTransaction, &seqledgerv1.GetTransactionRequest{TxId: id, IncludeProof: true})
	missing := call(t, l.GetTransaction,
		&seqledgerv1.GetTransactionRequest{TxId: id[:len(id)-6] + "0fffff", IncludeProof: true})
	sameID := strings.ReplaceAll(missing.Error(), id[:len(id)-6]+"0fffff", id)
	if connect.CodeOf(missing) != connect.CodeNotFound || hidden.Error() != sameID ||
		len(detailsOf(hidden)) != len(detailsOf(missing)) {
		t.Errorf("hidden: %v, missing: %v", hidden, missing)
	}
	for name, errs := range map[string][2]error{
		"scope": {
			call(t, l.GetEntity, &seqledgerv1.GetEntityRequest{Scope: scope(), Key: "k"}),
			call(t, l.GetEntity, &seqledgerv1.GetEntityRequest{Scope: &seqledgerv1.Scope{Organization: "no",
				Vault: "such"},
				Key: "k"}),
		},
		"client": {
			call(t, l.Write, writeOf("till-7", 1, appendOp("x"))), // would be a replay
			call(t, l.Write, writeOf("nobody", 7, appendOp("x"))), // would be a gap
		},
	} {
		if connect.CodeOf(errs[0]) != connect.CodePermissionDenied || errs[0].Error() != errs[1].Error() ||
			!proto.Equal(detail(errs[0]), detail(errs[1])) {
			t.Errorf("%s: %v and %v", name, errs[0], errs[1])
		}
	}
}

func detailsOf(err error) []*connect.ErrorDetail {
	var failed *connect.Error
	errors.As(err, &failed)
	return failed.Details()
}

// TestUnauthenticated: the answer is one that HTTP clients understand, and only health checks and the pages of the
// console need no credential.
func TestUnauthenticated(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 401, "/nothing": 401,
		"/": 200, // leads to the console, which asks for a credential itself
		"/seqledger.v1.AdminService/GetStatus?encoding=json&message=%7B%7D&connect=v1": 401,
	} {
		for header, challenge := range map[string]string{"": `Bearer realm="seqledger"`,
			"Bearer sl_writer_x": `Bearer realm="seqledger", error="invalid_token"`} {
			request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+path, http.NoBody))(t)
			request.Host = "ledger.example.com" // free, because a credential protects
			if header != "" {
				request.Header.Set("Authorization", header)
			}
			answer := must.Get(g.h1.Do(request))(t)
			_ = answer.Body.Close()
			if answer.StatusCode != want || want == 401 && answer.Header.Get("WWW-Authenticate") != challenge {
				t.Errorf("%s with %q: %d %q", path, header, answer.StatusCode, answer.Header.Get("WWW-Authenticate"))
			}
		}
	}
	for path, want := range map[string]int{"/grpc.health.v1.Health/Check": 200,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 401} {
		answer := must.Get(g.h1.Post(g.url+path, "application/json", strings.NewReader("{}")))(t)
		_ = answer.Body.Close()
		check.Equal(t, answer.StatusCode, want, "%s: got %d", path)
	}
	// Of one scope, not even an admin sees what all others do.
	for _, who := range []string{"reader", "foreman"} {
		answer, err := (&http.Client{Transport: withBearer{g.keys[who], g.h1.Transport}}).Get(g.url + "/metrics")
		if err != nil || answer.StatusCode != http.StatusForbidden {
			t.Error("metrics for", who, answer, err)
		}
		said, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || !strings.Contains(string(said), "every scope") ||
			strings.Contains(string(said), "seqledger_") {
			t.Errorf("%s is told %q (%v)", who, said, err)
		}
	}
	withKey := &http.Client{Transport: withBearer{g.keys["prometheus"], g.h1.Transport}}
	answer := must.Get(withKey.Get(g.url + "/metrics"))(t)
	must.Equal(t, answer.StatusCode, 200, "metrics with a credential: %v")
	var metrics bytes.Buffer
	_, _ = metrics.ReadFrom(answer.Body)
	_ = answer.Body.Close()
	if !strings.Contains(metrics.String(), `seqledger_auth_refused_total{reason="missing"}`) ||
		!strings.Contains(metrics.String(), `seqledger_auth_reloads_total{result="failed"} 0`) {
		t.Error("the metrics of authentication are missing")
	}
}

// TestCredentialLimits: beyond them, a caller is told when to retry, and others are not affected.
func TestCredentialLimits(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"narrow": `role: writer, scopes: ["*"], client_ids: ["*"], limits: {streams: 1, requests: 2}`,
		"slow":   `role: reader, scopes: ["*"], limits: {requests_per_second: 1}`,
	})
	l, a := g.as("narrow")
	watch := must.Get(l.Watch(t.Context(), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope()})))(t)
	second, err := l.Watch(t.Context(), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope()}))
	if err == nil {
		second.Receive()
		err = second.Err()
		_ = second.Close()
	}
	mustSayWhen(t, err)
	must.Do(t, call(t, a.GetStatus, new(seqledgerv1.GetStatusRequest)),
		"one stream and one request are within the limits")
	_ = watch.Close()
	_, a = g.as("slow")
	must.Do(t, call(t, a.GetStatus, new(seqledgerv1.GetStatusRequest)), "the first request")
	mustSayWhen(t, call(t, a.GetStatus, new(seqledgerv1.GetStatusRequest)))
	_, a = g.as("root")
	must.Do(t, call(t, a.GetStatus, new(seqledgerv1.GetStatusRequest)), "another credential")
}

func mustSayWhen(t *testing.T, err error) {
	t.Helper()
	if connect.CodeOf(err) != connect.CodeResourceExhausted || err == nil {
		t.Fatalf("got %v, want resource_exhausted", err)
	}
	for _, d := range detailsOf(err) {
		if m, err := d.Value(); err == nil {
			if info, ok := m.(*errdetails.RetryInfo); ok && info.RetryDelay.AsDuration() > 0 {
				return
			}
		}
	}
	t.Error("nobody says when to try again:", err)
}
