package server

import (
	"context"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/auth"
)

// need is what a procedure asks of its caller.
type need int

const (
	// needsNobodyKnows is for procedures that are not in the table: nobody may
	// call them.
	needsNobodyKnows need = iota
	// needsCredential is met by any.
	needsCredential
	// needsScope is met by who may read the request's scope.
	needsScope
	// needsStream is met by who may read the state of the request's client_id.
	needsStream
	// needsWrite is met by who may write as the request's client_id.
	needsWrite
	// needsEverything is met by an admin on every scope.
	needsEverything
	// needsLater is decided by the handler, because the request as such does
	// not tell: a transaction's scope, and the writes of a stream.
	needsLater
)

// needs has every procedure. One that is missing here is refused to everybody.
var needs = map[string]need{
	seqledgerv1connect.LedgerServiceWriteProcedure:             needsWrite,
	seqledgerv1connect.LedgerServiceWriteStreamProcedure:       needsLater, // batch.convert
	seqledgerv1connect.LedgerServiceOpenSessionProcedure:       needsWrite,
	seqledgerv1connect.LedgerServiceGetClientStateProcedure:    needsStream,
	seqledgerv1connect.LedgerServiceGetEntityProcedure:         needsScope,
	seqledgerv1connect.LedgerServiceListEntitiesProcedure:      needsScope,
	seqledgerv1connect.LedgerServiceListRelationshipsProcedure: needsScope,
	seqledgerv1connect.LedgerServiceGetTransactionProcedure:    needsLater, // getTransaction
	seqledgerv1connect.LedgerServiceGetBlockProcedure:          needsScope,
	seqledgerv1connect.LedgerServiceListBlocksProcedure:        needsScope,
	seqledgerv1connect.LedgerServiceWatchProcedure:             needsScope,
	seqledgerv1connect.AdminServiceGetStatusProcedure:          needsCredential,
	seqledgerv1connect.AdminServiceListClientsProcedure:        needsEverything,
	seqledgerv1connect.AdminServiceUpdateConfigProcedure:       needsEverything,
	seqledgerv1connect.AdminServiceBackupProcedure:             needsEverything,
}

// anonymous calls a server without an auth file.
var anonymous = auth.Anonymous()

// callerKey finds the credential in a request's context.
type callerKey struct{}

// caller returns who calls; nil, which may do nothing, when nobody has looked.
func (s *Server) caller(ctx context.Context) *auth.Credential {
	if s.options.Auth == nil {
		return anonymous
	}
	c, _ := ctx.Value(callerKey{}).(*auth.Credential)
	return c
}

// scoped is a request about a scope, addressed one about a stream.
type (
	scoped    interface{ GetScope() *seqledgerv1.Scope }
	addressed interface {
		scoped
		GetClientId() string
	}
)

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
	kind := needs[procedure]
	switch kind {
	case needsCredential, needsLater:
		return nil
	case needsEverything:
		return c.Administer()
	case needsScope, needsStream, needsWrite:
	default:
		return &auth.DeniedError{Problem: "nobody may call this procedure"}
	}
	about, ok := m.(scoped)
	if !ok {
		return fmt.Errorf("server: %T of %s has no scope", m, procedure)
	}
	scope, err := requireScope(about.GetScope())
	if err != nil {
		return err
	}
	if kind == needsScope {
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
	if kind == needsStream {
		return c.ReadStream(scope, id)
	}
	return c.Write(scope, id)
}

// authorizeStream is authorize for a streaming call, before its first message.
// What depends on a message, the handler asks authorize or permits for.
func (s *Server) authorizeStream(ctx context.Context, procedure string) error {
	switch needs[procedure] {
	case needsScope, needsStream, needsWrite:
		return s.caller(ctx).Check()
	default:
		return s.authorize(ctx, procedure, nil)
	}
}
