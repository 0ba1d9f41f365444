package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/storeurl"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// recordCalls are the calls about one record. A ledger's client has them, and storeRecords.
type recordCalls interface {
	GetRecord(ctx context.Context, r *seqledgerv1.GetRecordRequest) (*seqledgerv1.IdempotencyRecord, error)
	PurgeRecord(ctx context.Context, r *seqledgerv1.PurgeRecordRequest) (*seqledgerv1.PurgeRecordResponse, error)
	ResolveRecord(ctx context.Context, r *seqledgerv1.ResolveRecordRequest) (*seqledgerv1.ResolveRecordResponse, error)
}

// keyFlags say where a record is: in the ledger of a server, or in another store.
type keyFlags struct {
	clientFlags `embed:""`
	Store       string `help:"Store of the records: ledger for that of --server, or as for --store of gateway." default:"ledger" placeholder:"URL"`
}

// foreign reports whether the records are not in a ledger.
func (f *keyFlags) foreign() bool { return f.Store != "" && f.Store != "ledger" }

// store opens a store that is no ledger. ctx is for its opening and for calls about one record.
func (f *keyFlags) store(e *environment, do func(ctx context.Context, s idempotency.Store) error) error {
	if err := errors.Join(f.check(), storeurl.Check(f.Store)); err != nil {
		return usage("--store: %w", err)
	}
	ctx, cancel := context.WithTimeout(e.ctx, f.Timeout)
	defer cancel()
	s, closing, err := storeurl.Open(ctx, f.Store, e.log)
	if err != nil {
		return fail(exitFailed, "", "--store: %w", err)
	}
	return errors.Join(do(ctx, s), closing())
}

// records makes calls about a record.
func (f *keyFlags) records(e *environment, do func(ctx context.Context, calls recordCalls) error) error {
	if !f.foreign() {
		return f.call(e, func(ctx context.Context, c *client.Client) error { return do(ctx, c) })
	}
	return f.store(e, func(ctx context.Context, s idempotency.Store) error {
		resolver, ok := s.(idempotency.Resolver)
		if !ok {
			return fail(exitFailed, "", "--store: its records cannot be looked up")
		}
		return do(ctx, &storeRecords{resolver})
	})
}

// listStore lists the records of a store that is no ledger.
func listStore(
	ctx context.Context, s idempotency.Lister, request *seqledgerv1.ListRecordsRequest,
) iter.Seq2[*seqledgerv1.IdempotencyRecord, error] {
	scope := request.GetScope()
	listed := s.List(ctx, &idempotency.ListRequest{
		Scope:     idempotency.Scope{Organization: scope.GetOrganization(), Vault: scope.GetVault()},
		Namespace: request.GetNamespace(), Principal: request.GetPrincipal(),
		EveryPrincipal: request.GetEveryPrincipal(),
		State:          storeState(request.GetState()),
	})
	return func(yield func(*seqledgerv1.IdempotencyRecord, error) bool) {
		for r, err := range listed {
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(apiRecord(scope, r, r.Record), nil) {
				return
			}
		}
	}
}

// storeState returns a state of the API as stores name it, and 0 for none.
func storeState(s seqledgerv1.RecordState) idempotency.State {
	for state := idempotency.Pending; state <= idempotency.Expired; state++ {
		if apiState(state) == s {
			return state
		}
	}
	return 0
}

// apiState returns a store's state as the API names it.
func apiState(s idempotency.State) seqledgerv1.RecordState {
	return seqledgerv1.RecordState(seqledgerv1.RecordState_value["RECORD_STATE_"+s.String()])
}

// apiRecord returns a record of a store as a ledger's API has it.
func apiRecord(
	scope *seqledgerv1.Scope, of *idempotency.ListedRecord, r *idempotency.Record,
) *seqledgerv1.IdempotencyRecord {
	at := func(t time.Time) *timestamppb.Timestamp {
		if t.IsZero() {
			return nil
		}
		return timestamppb.New(t)
	}
	return &seqledgerv1.IdempotencyRecord{
		Scope: scope, Namespace: of.Namespace, Principal: of.Principal, KeyHash: of.KeyHash[:],
		State: apiState(r.State),
		Token: r.Token, Attempts: r.Attempts, LeaseExpiresAt: at(r.LeaseExpires), CreatedAt: at(r.Created),
		CompletedAt: at(r.Completed), ExpiresAt: at(r.Expires), ForgottenAt: at(r.Forgotten),
		Response: r.Response, Checkpoint: r.Checkpoint,
	}
}

// storeRecords makes calls about the records of a store that is no ledger.
type storeRecords struct{ store idempotency.Resolver }

// storeKey returns the key of a record in a store.
func storeKey(r *seqledgerv1.RecordKey) *idempotency.RecordKey {
	return &idempotency.RecordKey{
		Scope:     idempotency.Scope{Organization: r.GetScope().GetOrganization(), Vault: r.GetScope().GetVault()},
		Namespace: r.GetNamespace(), Principal: r.GetPrincipal(), Key: r.GetKey(),
	}
}

func (s *storeRecords) GetRecord(
	ctx context.Context, request *seqledgerv1.GetRecordRequest,
) (*seqledgerv1.IdempotencyRecord, error) {
	key := request.GetRecord()
	r, err := s.store.Get(ctx, storeKey(key))
	if errors.Is(err, idempotency.ErrNotFound) {
		return nil, failure.FromConnect(connect.NewError(connect.CodeNotFound, err), 0)
	}
	if err != nil {
		return nil, err
	}
	return apiRecord(key.GetScope(), &idempotency.ListedRecord{
		Namespace: key.GetNamespace(), Principal: key.GetPrincipal(), KeyHash: sha256.Sum256([]byte(key.GetKey())),
	}, r), nil
}

// storeOutcome returns the outcome of a call that settles a record.
func storeOutcome(answer *idempotency.Answer, err error) (seqledgerv1.RecordOutcome, error) {
	switch {
	case errors.Is(err, idempotency.ErrNotFound):
		return seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FOUND, nil
	case errors.Is(err, idempotency.ErrNotFinal):
		return seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FINAL, nil
	case err != nil:
		return 0, err
	case answer.Outcome == idempotency.OK, answer.Outcome == idempotency.AlreadyCompleted,
		answer.Outcome == idempotency.ResultExpired:
		return seqledgerv1.RecordOutcome(answer.Outcome), nil
	}
	return 0, fmt.Errorf("the store answered with %v", answer.Outcome)
}

func (s *storeRecords) PurgeRecord(
	ctx context.Context, request *seqledgerv1.PurgeRecordRequest,
) (*seqledgerv1.PurgeRecordResponse, error) {
	outcome, err := storeOutcome(s.store.Purge(ctx, storeKey(request.GetRecord())))
	return &seqledgerv1.PurgeRecordResponse{Outcome: outcome}, err
}

func (s *storeRecords) ResolveRecord(
	ctx context.Context, request *seqledgerv1.ResolveRecordRequest,
) (*seqledgerv1.ResolveRecordResponse, error) {
	state := idempotency.Committed
	if request.GetState() == seqledgerv1.RecordState_RECORD_STATE_REJECTED {
		state = idempotency.Rejected
	}
	outcome, err := storeOutcome(s.store.Resolve(ctx, storeKey(request.GetRecord()), state, idempotency.Result{
		Response: request.GetResponse(), TTL: request.GetTtl().AsDuration(),
	}))
	return &seqledgerv1.ResolveRecordResponse{Outcome: outcome}, err
}
