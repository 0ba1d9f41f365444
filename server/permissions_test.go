package server

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/auth"
)

// procedures returns every procedure of the API.
func procedures() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("seqledger.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	return all
}

func procedureName(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// A new procedure must define who may call it.
func TestEveryProcedureIsInTheTable(t *testing.T) {
	t.Parallel()
	all := procedures()
	if len(all) < 14 {
		t.Fatalf("only %d procedures were found", len(all))
	}
	for _, m := range all {
		name := procedureName(m)
		kind := permissions[name]
		fields := m.Input().Fields()
		switch {
		case kind == denyAll:
			t.Errorf("%s is not in the table of permissions: say what it asks of its caller", name)
		case strings.HasPrefix(name, "/seqledger.v1.AdminService/") && kind != administer && m.Name() != "GetStatus":
			t.Errorf("%s administers the ledger and does not need admin on every scope", name)
		case kind == readScope && fields.ByName("scope") == nil,
			(kind == readStream || kind == writeAsClient) &&
				(fields.ByName("scope") == nil || fields.ByName("client_id") == nil):
			t.Errorf("%s needs a field that its request does not have", name)
		// A request that names a client must not be decided by its scope alone.
		case fields.ByName("client_id") != nil && kind != readStream && kind != writeAsClient:
			t.Errorf("%s has a client_id that nobody looks at", name)
		}
	}
}

// TestUnknownProcedureIsRefused: a handler that is mounted but not in the table refuses every caller, even without
// authentication.
func TestUnknownProcedureIsRefused(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	mux := http.NewServeMux()
	unary(s, mux, "/x/New", writing,
		func(context.Context, *seqledgerv1.GetStatusRequest) (*seqledgerv1.GetStatusResponse, error) {
			t.Error("the handler was called")
			return nil, nil
		})
	if w := post(mux, "/x/New", `{}`); w.Code != http.StatusForbidden {
		t.Error(w.Code, w.Body)
	}
	if err := s.authorizeStream(t.Context(), "/x/New"); err == nil {
		t.Error("a stream that is not in the table was opened")
	}
	// With an auth file and no caller in the context, nothing is allowed.
	s.options.Auth = new(auth.Authority)
	for _, m := range procedures() {
		request := &seqledgerv1.WriteRequest{Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientId: "a"}
		if s.authorize(t.Context(), procedureName(m), request) == nil {
			t.Errorf("%s was allowed to nobody", m.Name())
		}
	}
	check.Equal(t, s.caller(t.Context()).Actor(), "", "nobody has an actor: %v")
}

// Every decision is that of the credential, however many clients a stream has.
func TestAuthorizationCache(t *testing.T) { // not parallel, because it counts allocations
	p := newAuthorizationCache(nil)
	if _, err := p.write(new(seqledgerv1.WriteRequest)); err == nil {
		t.Error("the first question was answered without looking")
	}
	p = newAuthorizationCache(anonymous)
	request := &seqledgerv1.WriteRequest{Scope: &seqledgerv1.Scope{Organization: "acme"}}
	for i := range 2 * maxAuthorizations {
		request.ClientId = strings.Repeat("a", 1+i%200) + strings.Repeat("b", i/200)
		for range 2 { // decided, then cached
			stream, err := p.write(request)
			if err != nil || stream.clientID != request.ClientId || stream.scope.Organization != "acme" {
				t.Fatal("refused, or another stream:", stream, err)
			}
		}
		if len(p.known) > maxAuthorizations {
			t.Fatal("too many decisions are kept:", len(p.known))
		}
	}
	check.Equal(t, testing.AllocsPerRun(100, func() { _, _ = p.write(request) }), 0,
		"%v allocations for a write of a known stream")
}
