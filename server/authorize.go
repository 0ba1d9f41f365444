package server

import (
	"context"
	"fmt"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// permission is what a procedure requires of its caller.
type permission int

const (
	// denyAll is the permission of procedures that are not in the table: all callers are refused.
	denyAll permission = iota
	// anyCredential allows every credential.
	anyCredential
	// readScope allows credentials that may read the request's scope.
	readScope
	// readStream allows credentials that may read the state of the request's client_id.
	readStream
	// writeAsClient allows credentials that may write as the request's client_id.
	writeAsClient
	// writeStreamed allows writers. The handler checks each write of the stream or batch.
	writeStreamed
	// readTransaction allows readers. The handler checks the transaction's scope, which is not in the request.
	readTransaction
	// administer allows admins on every scope.
	administer
	// actAs allows those that may act for the principal of the request's record.
	actAs
	// inspect allows those that may read the records of the request's principal, and settle those that may settle them.
	inspect
	settle
)

// permissions has every procedure. A procedure that is missing here is refused to all callers.
var permissions = map[string]permission{
	seqledgerv1connect.LedgerServiceWriteProcedure:             writeAsClient,
	seqledgerv1connect.LedgerServiceWriteStreamProcedure:       writeStreamed, // converter.convert
	seqledgerv1connect.LedgerServiceWriteBatchProcedure:        writeStreamed, // converter.convert
	seqledgerv1connect.LedgerServiceOpenSessionProcedure:       writeAsClient,
	seqledgerv1connect.LedgerServiceGetClientStateProcedure:    readStream,
	seqledgerv1connect.LedgerServiceGetEntityProcedure:         readScope,
	seqledgerv1connect.LedgerServiceListEntitiesProcedure:      readScope,
	seqledgerv1connect.LedgerServiceListRelationshipsProcedure: readScope,
	seqledgerv1connect.LedgerServiceGetTransactionProcedure:    readTransaction, // getTransaction
	seqledgerv1connect.LedgerServiceGetReceiptProcedure:        readTransaction, // getReceipt
	seqledgerv1connect.LedgerServiceGetBlockProcedure:          readScope,
	seqledgerv1connect.LedgerServiceListBlocksProcedure:        readScope,
	seqledgerv1connect.LedgerServiceWatchProcedure:             readScope,
	seqledgerv1connect.AdminServiceGetStatusProcedure:          anyCredential,
	seqledgerv1connect.AdminServiceListClientsProcedure:        administer,
	seqledgerv1connect.AdminServiceListRefusalsProcedure:       administer,
	seqledgerv1connect.AdminServiceUpdateConfigProcedure:       administer,
	seqledgerv1connect.AdminServiceBackupProcedure:             administer,
	seqledgerv1connect.AdminServiceArchivePointProcedure:       administer,
	seqledgerv1connect.AdminServiceGetClusterProcedure:         administer,
	seqledgerv1connect.AdminServiceChangeClusterProcedure:      administer,

	seqledgerv1connect.IdempotencyServiceReserveProcedure:       actAs,
	seqledgerv1connect.IdempotencyServiceCompleteProcedure:      actAs,
	seqledgerv1connect.IdempotencyServiceRejectProcedure:        actAs,
	seqledgerv1connect.IdempotencyServiceReleaseProcedure:       actAs,
	seqledgerv1connect.IdempotencyServiceHeartbeatProcedure:     actAs,
	seqledgerv1connect.IdempotencyServiceCheckpointProcedure:    actAs,
	seqledgerv1connect.IdempotencyServiceGetRecordProcedure:     inspect,
	seqledgerv1connect.IdempotencyServiceListRecordsProcedure:   inspect,
	seqledgerv1connect.IdempotencyServicePurgeRecordProcedure:   settle,
	seqledgerv1connect.IdempotencyServiceResolveRecordProcedure: settle,
}

// anonymous is the caller of a server without an auth file.
var anonymous = auth.Anonymous()

// caller returns the credential of a request. It is nil, which may do nothing, if the request has not passed
// authenticated.
func (s *Server) caller(ctx context.Context) *auth.Credential {
	if s.options.Auth == nil {
		return anonymous
	}
	if c := callOf(ctx); c != nil {
		return c.caller
	}
	return nil
}

// party returns the party that a request is admitted for.
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

// admitRole returns nil if the role of the caller is enough for a procedure. It checks nothing else, so it can run
// before the body is read: a message that is refused in any case must not take memory.
func (s *Server) admitRole(ctx context.Context, procedure string) error {
	c := s.caller(ctx)
	switch permissions[procedure] {
	case writeAsClient, writeStreamed, actAs, settle:
		return c.MayWrite()
	case administer:
		return c.Administer()
	default:
		return nil // authorize decides
	}
}

// authorize returns nil if the caller may make this request. It only uses the request and the credential, before
// anything is read, so that a refusal reveals nothing about the ledger. An invalid scope or client_id is a
// *machine.FieldError.
func (s *Server) authorize(ctx context.Context, procedure string, m any) error {
	c := s.caller(ctx)
	// Check again, because a body may arrive long after the headers.
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
	case actAs, inspect, settle:
		return s.authorizeRecord(ctx, kind, m)
	case readScope, readStream, writeAsClient:
	default:
		return &auth.DeniedError{Problem: "this procedure is refused to all callers"}
	}
	if w, ok := m.(*seqledgerv1.WriteRequest); ok && wire.IsKeyed(w) {
		return s.authorizeKeyedWrite(ctx, w)
	}
	about, ok := m.(scoped)
	if !ok {
		return fmt.Errorf("server: %T of %s has no scope", m, procedure)
	}
	scope, err := wire.RequireScope(about.GetScope())
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

// authorizeKeyedWrite is authorize for a write that belongs to no stream. Its client_id, which may be empty, only says
// who made it.
func (s *Server) authorizeKeyedWrite(ctx context.Context, m *seqledgerv1.WriteRequest) error {
	c := s.caller(ctx)
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return err
	}
	principal := principalOf(c, &m.Principal, m.Namespace)
	if err := c.Act(scope, principal); err != nil || m.ClientId == "" {
		return err
	}
	if err := machine.ValidateClientID(m.ClientId); err != nil {
		return err
	}
	return c.Write(scope, m.ClientId)
}

// principalOf returns the principal whose rights a request about keyed records needs: the one that it names, or its
// caller. In a namespace that the caller shares, a request that names none is about the shared records, for which the
// caller has the same rights as for its own records. principalOf then sets that principal in the request.
func principalOf(c *auth.Credential, named *string, namespace string) string {
	if c.Shares(namespace) && (*named == "" || *named == auth.SharedPrincipal) {
		*named = auth.SharedPrincipal
		return c.Actor()
	}
	return wire.Principal(*named, c.Actor())
}

// Requests about keyed records name them in one of these ways.
type (
	aboutRecord interface {
		GetRecord() *seqledgerv1.RecordKey
	}
	byOwner interface {
		GetOwner() *seqledgerv1.Ownership
	}
)

// authorizeRecord is authorize for a request about keyed records.
func (s *Server) authorizeRecord(ctx context.Context, kind permission, m any) error {
	var record *seqledgerv1.RecordKey
	path := "record"
	list, lists := m.(*seqledgerv1.ListRecordsRequest)
	switch m := m.(type) {
	case *seqledgerv1.ListRecordsRequest:
		record, path = &seqledgerv1.RecordKey{Scope: m.Scope, Principal: m.Principal, Namespace: m.Namespace}, ""
	case aboutRecord:
		record = m.GetRecord()
	case byOwner:
		if m.GetOwner() == nil {
			return &machine.FieldError{Field: "owner", Problem: "is required"}
		}
		record, path = m.GetOwner().GetRecord(), "owner.record"
	default:
		return fmt.Errorf("server: %T names no record", m)
	}
	if record == nil {
		return &machine.FieldError{Field: path, Problem: "is required"}
	}
	scope, err := wire.RequireScope(record.Scope)
	if err != nil {
		if path != "" {
			err = wire.FieldAt(path, err)
		}
		return err
	}
	principal := ""
	if !lists || !list.EveryPrincipal {
		principal = principalOf(s.caller(ctx), &record.Principal, record.Namespace)
	}
	if lists {
		list.Principal = record.Principal
	}
	switch c := s.caller(ctx); kind {
	case actAs:
		return c.Act(scope, principal)
	case settle:
		return c.Settle(scope, principal)
	default:
		return c.Inspect(scope, principal)
	}
}

// authorizeStream is authorize for a streaming call, before its first message. For what depends on a message, the
// handler asks authorize or its authorization cache.
func (s *Server) authorizeStream(ctx context.Context, procedure string) error {
	switch permissions[procedure] {
	case readScope, readStream, writeAsClient:
		return s.caller(ctx).Check()
	default:
		return s.authorize(ctx, procedure, nil)
	}
}

// authorizationCache caches decisions for the writes of one WriteStream or WriteBatch, because a stream has a million
// writes of a few clients, and a map lookup beats pattern matching. Decisions are valid as long as the credential: a
// changed auth file ends the credential, and with it the stream. It is for one goroutine.
type authorizationCache struct {
	credential *auth.Credential
	known      map[authorizationKey]*authorization
	last       *authorization
	// first is the memory of the first decision: most callers have one stream.
	first authorization
}

// authorizationKey is a stream of the ledger.
type authorizationKey struct {
	scope    machine.Scope
	clientID string
}

// authorization is a decision about a stream.
type authorization struct {
	authorizationKey

	err error // nil: permitted
}

// maxAuthorizations is how many decisions are cached.
const maxAuthorizations = 1_024

func newAuthorizationCache(c *auth.Credential) *authorizationCache {
	a := &authorizationCache{credential: c, known: make(map[authorizationKey]*authorization)}
	a.last = &a.first // of the stream without a name, until there is another one
	a.first.err = c.Write(machine.Scope{}, "")
	return a
}

// write returns the stream of a write, and nil if the caller may make it. The write is valid. The stream is the same
// for all its writes while it is cached, so that keeping it with each write takes no memory.
func (a *authorizationCache) write(m *seqledgerv1.WriteRequest) (*authorizationKey, error) {
	key := authorizationKey{wire.Scope(m.Scope), m.ClientId}
	if key == a.last.authorizationKey {
		return &a.last.authorizationKey, a.last.err
	}
	found := a.known[key]
	if found == nil {
		if len(a.known) >= maxAuthorizations {
			clear(a.known)
		}
		if found = new(authorization); a.first.clientID == "" {
			found = &a.first
		}
		*found = authorization{key, a.credential.Write(key.scope, key.clientID)}
		a.known[key] = found
	}
	a.last = found
	return &found.authorizationKey, found.err
}
