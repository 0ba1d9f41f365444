package server

import (
	"context"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// permission is what a procedure asks of its caller.
type permission int

const (
	// denyAll is for procedures that are not in the table: they are refused to all
	// callers.
	denyAll permission = iota
	// anyCredential is met by every credential.
	anyCredential
	// readScope is met by a credential that may read the request's scope.
	readScope
	// readStream is met by one that may read the state of the request's client_id.
	readStream
	// writeAsClient is met by one that may write as the request's client_id.
	writeAsClient
	// writeStreamed is met by a writer. The handler looks at each write of the stream
	// by itself.
	writeStreamed
	// readTransaction is met by a reader. The handler looks at the transaction's
	// scope, which the request does not tell.
	readTransaction
	// administer is met by an admin on every scope.
	administer
)

// permissions has every procedure. One that is missing here is refused to all
// callers.
var permissions = map[string]permission{
	seqledgerv1connect.LedgerServiceWriteProcedure:             writeAsClient,
	seqledgerv1connect.LedgerServiceWriteStreamProcedure:       writeStreamed, // batch.convert
	seqledgerv1connect.LedgerServiceOpenSessionProcedure:       writeAsClient,
	seqledgerv1connect.LedgerServiceGetClientStateProcedure:    readStream,
	seqledgerv1connect.LedgerServiceGetEntityProcedure:         readScope,
	seqledgerv1connect.LedgerServiceListEntitiesProcedure:      readScope,
	seqledgerv1connect.LedgerServiceListRelationshipsProcedure: readScope,
	seqledgerv1connect.LedgerServiceGetTransactionProcedure:    readTransaction, // getTransaction
	seqledgerv1connect.LedgerServiceGetBlockProcedure:          readScope,
	seqledgerv1connect.LedgerServiceListBlocksProcedure:        readScope,
	seqledgerv1connect.LedgerServiceWatchProcedure:             readScope,
	seqledgerv1connect.AdminServiceGetStatusProcedure:          anyCredential,
	seqledgerv1connect.AdminServiceListClientsProcedure:        administer,
	seqledgerv1connect.AdminServiceUpdateConfigProcedure:       administer,
	seqledgerv1connect.AdminServiceBackupProcedure:             administer,
}

// anonymous calls a server without an auth file.
var anonymous = auth.Anonymous()

// callerKey finds the credential in a request's context.
type callerKey struct{}

// caller returns the credential of a request; nil, which may do nothing, when the
// request has not passed authenticated.
func (s *Server) caller(ctx context.Context) *auth.Credential {
	if s.options.Auth == nil {
		return anonymous
	}
	c, _ := ctx.Value(callerKey{}).(*auth.Credential)
	return c
}

// party returns whom a request is admitted for.
func (s *Server) party(ctx context.Context) admission.Party {
	c := s.caller(ctx)
	return s.admission.Party(c.Share(), c.Limits())
}

// scoped is a request about a scope, addressed one about a stream.
type (
	scoped    interface{ GetScope() *seqledgerv1.Scope }
	addressed interface {
		scoped
		GetClientId() string
	}
)

// admitRole returns nil if the role of the caller is enough for a procedure. It
// looks at nothing else, so that it can come before the body: a message that is
// refused in any case must not take memory.
func (s *Server) admitRole(ctx context.Context, procedure string) error {
	c := s.caller(ctx)
	switch permissions[procedure] {
	case writeAsClient, writeStreamed:
		return c.MayWrite()
	case administer:
		return c.Administer()
	default:
		return nil // authorize decides
	}
}

// authorize returns nil if the caller may make this request. It looks at the
// request and the credential alone, and before anything is read, so that a
// refusal tells nothing about the ledger. A scope or client_id that cannot be
// is a *machine.FieldError.
func (s *Server) authorize(ctx context.Context, procedure string, m any) error {
	c := s.caller(ctx)
	// Again, because a body may come long after the headers.
	if err := c.Check(); err != nil {
		return err
	}
	kind := permissions[procedure]
	switch kind {
	case anyCredential, readTransaction:
		return nil
	case writeStreamed:
		return c.MayWrite()
	case administer:
		return c.Administer()
	case readScope, readStream, writeAsClient:
	default:
		return &auth.DeniedError{Problem: "this procedure is refused to all callers"}
	}
	about, ok := m.(scoped)
	if !ok {
		return fmt.Errorf("server: %T of %s has no scope", m, procedure)
	}
	scope, err := requireScope(about.GetScope())
	if err != nil {
		return err
	}
	if kind == readScope {
		return c.Read(scope)
	}
	stream, ok := m.(addressed)
	if !ok {
		return fmt.Errorf("server: %T of %s has no client_id", m, procedure)
	}
	id := stream.GetClientId()
	if err := machine.ValidateClientID(id); err != nil {
		return err
	}
	if kind == readStream {
		return c.ReadStream(scope, id)
	}
	return c.Write(scope, id)
}

// authorizeStream is authorize for a streaming call, before its first message.
// What depends on a message, the handler asks authorize or its authorization cache
// for.
func (s *Server) authorizeStream(ctx context.Context, procedure string) error {
	switch permissions[procedure] {
	case readScope, readStream, writeAsClient:
		return s.caller(ctx).Check()
	default:
		return s.authorize(ctx, procedure, nil)
	}
}
