package main

import (
	"context"
	"encoding/hex"
	"iter"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type keyCommand struct {
	List    keyListCommand    `cmd:"" help:"List the records of a scope."`
	Get     keyGetCommand     `cmd:"" help:"Show the record of a key."`
	Purge   keyPurgeCommand   `cmd:"" help:"Delete a finished record: its key is free then."`
	Resolve keyResolveCommand `cmd:"" help:"Settle an unknown outcome once you know it."`
}

// recordFlags identify one record.
type recordFlags struct {
	scopeFlags `embed:""`
	Namespace  string `help:"Namespace of the key: a route, an intake, a task type." env:"-" placeholder:"TEXT"`
	Principal  string `help:"Principal of the request. Default: the caller; others need the role admin." env:"-" placeholder:"TEXT"`
	Key        string `arg:"" help:"The key, as its client chose it."`
}

func (f *recordFlags) record() (*seqledgerv1.RecordKey, error) {
	scope, err := f.scope()
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.RecordKey{Scope: scope, Namespace: f.Namespace, Principal: f.Principal, Key: f.Key}, nil
}

// recordState returns a state in the form that people write.
func recordState(s seqledgerv1.RecordState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "RECORD_STATE_"))
}

type keyListCommand struct {
	scopeFlags `embed:""`
	keyFlags   `embed:""`
	Namespace  string `help:"Only those of this namespace." env:"-" placeholder:"TEXT"`
	Principal  string `help:"Principal of the request. Default: the caller; others need the role admin." env:"-" placeholder:"TEXT" xor:"principal"`
	All        bool   `help:"The records of all principals; needs the role admin." env:"-" xor:"principal"`
	State      string `help:"Only those in this state: pending, committed, rejected, indeterminate, expired (not forgotten) or written (keyed writes)." env:"-" default:"any" enum:"any,pending,committed,rejected,indeterminate,expired,written" placeholder:"STATE"`
}

func (*keyListCommand) Help() string {
	return `Only the hash of a key is stored; get takes the key itself.

    seqledger key list --scope acme/main --namespace charge
    seqledger key list --scope acme/main --all --state indeterminate
    seqledger key list --scope acme/main --all --store postgres://app@db.example.com/shop`
}

func (c *keyListCommand) Run(e *environment) error {
	scope, err := c.scope()
	if err != nil {
		return err
	}
	request := &seqledgerv1.ListRecordsRequest{
		Scope: scope, Principal: c.Principal, EveryPrincipal: c.All, Namespace: c.Namespace, PageSize: listPage,
		State: seqledgerv1.RecordState(seqledgerv1.RecordState_value["RECORD_STATE_"+strings.ToUpper(c.State)]),
	}
	in := columns[*seqledgerv1.IdempotencyRecord]{
		[]string{"STATE", "NAMESPACE", "PRINCIPAL", "KEY SHA-256", "TOKEN", "CREATED", "EXPIRES"},
		func(r *seqledgerv1.IdempotencyRecord) []string {
			return []string{
				recordState(r.GetState()), quoted(r.GetNamespace()), quoted(r.GetPrincipal()),
				hex.EncodeToString(r.GetKeyHash()), number(r.GetToken()), timestamp(r.GetCreatedAt()),
				timestamp(r.GetExpiresAt()),
			}
		},
	}
	if c.foreign() {
		return c.store(e, func(_ context.Context, s idempotency.Store) error {
			lister, ok := s.(idempotency.Lister)
			if !ok {
				return fail(exitRefused, "seqledger key get shows the record of a key",
					"--store: this store has no list of its records")
			}
			of := func(ctx context.Context) iter.Seq2[*seqledgerv1.IdempotencyRecord, error] {
				return listStore(ctx, lister, request)
			}
			return printList(e, &c.clientFlags, of, in)
		})
	}
	items := func(ctx context.Context, conn *client.Client) iter.Seq2[*seqledgerv1.IdempotencyRecord, error] {
		return conn.ListRecords(ctx, request)
	}
	return list(e, &c.clientFlags, items, in)
}

type keyGetCommand struct {
	recordFlags `embed:""`
	keyFlags    `embed:""`
}

func (*keyGetCommand) Help() string {
	return examples("seqledger key get --scope acme/main --namespace charge order-4711")
}

func (c *keyGetCommand) Run(e *environment) error {
	record, err := c.record()
	if err != nil {
		return err
	}
	return c.records(e, func(ctx context.Context, conn recordCalls) error {
		r, err := conn.GetRecord(ctx, &seqledgerv1.GetRecordRequest{Record: record})
		if err != nil {
			return absent(err, "seqledger key list shows the records that there are; a namespace or principal may lack",
				"there is no record of this key in %s", scopeName(record.GetScope()))
		}
		return e.show(r, func(t *table) {
			t.field("state", recordState(r.GetState()))
			t.field("principal", quoted(r.GetPrincipal()))
			t.field("made of", strings.Join(idempotency.IdentityOf(r.GetPrincipal()), ", "))
			t.field("key sha-256", hex.EncodeToString(r.GetKeyHash()))
			t.field("token", number(r.GetToken()))
			t.field("attempts", number(r.GetAttempts()))
			t.field("created", timestamp(r.GetCreatedAt()))
			t.field("lease expires", timestamp(r.GetLeaseExpiresAt()))
			t.field("completed", timestamp(r.GetCompletedAt()))
			t.field("expires", timestamp(r.GetExpiresAt()))
			t.field("forgotten", timestamp(r.GetForgottenAt()))
			t.field("checkpoint", operation.Display(r.GetCheckpoint()))
			t.field("response", operation.Display(r.GetResponse()))
		})
	})
}

type keyPurgeCommand struct {
	recordFlags `embed:""`
	keyFlags    `embed:""`
}

func (*keyPurgeCommand) Help() string {
	return `The work runs again when its client repeats the request. A record that is pending or whose outcome is
unknown is refused; see resolve.

    seqledger key purge --scope acme/main --namespace charge order-4711`
}

func (c *keyPurgeCommand) Run(e *environment) error {
	record, err := c.record()
	if err != nil {
		return err
	}
	return c.records(e, func(ctx context.Context, conn recordCalls) error {
		answer, err := conn.PurgeRecord(ctx, &seqledgerv1.PurgeRecordRequest{Record: record})
		if err != nil {
			return err
		}
		return settled(e, answer.GetOutcome(), "purged")
	})
}

type keyResolveCommand struct {
	recordFlags  `embed:""`
	keyFlags     `embed:""`
	As           string `help:"Outcome of the work: committed or rejected." required:"" enum:"committed,rejected" env:"-" placeholder:"STATE"`
	Response     string `help:"Response for repeats of the request." env:"-" placeholder:"TEXT" xor:"response"`
	ResponseFile string `help:"The same, from a file." env:"-" type:"existingfile" xor:"response" placeholder:"FILE"`

	TTL time.Duration `help:"How long to keep the record. Default: the time requested when the key was reserved." name:"ttl" env:"-" placeholder:"DURATION"`
}

func (*keyResolveCommand) Help() string {
	return `Find out first, from the system that does the work, whether it was done: repeats are answered with this from
then on.

    seqledger key list --scope acme/main --all --state indeterminate
    seqledger key resolve --scope acme/main --namespace charge order-4711 --as committed --response '{"charge":"ch_1"}'`
}

func (c *keyResolveCommand) Run(e *environment) error {
	record, err := c.record()
	if err != nil {
		return err
	}
	request := &seqledgerv1.ResolveRecordRequest{
		Record: record, Response: []byte(c.Response), State: seqledgerv1.RecordState_RECORD_STATE_COMMITTED,
	}
	if c.As == "rejected" {
		request.State = seqledgerv1.RecordState_RECORD_STATE_REJECTED
	}
	if c.ResponseFile != "" {
		if request.Response, err = os.ReadFile(c.ResponseFile); err != nil {
			return err
		}
	}
	if c.TTL != 0 {
		request.Ttl = durationpb.New(c.TTL)
	}
	return c.records(e, func(ctx context.Context, conn recordCalls) error {
		answer, err := conn.ResolveRecord(ctx, request)
		if err != nil {
			return err
		}
		return settled(e, answer.GetOutcome(), c.As)
	})
}

// settled prints what was done, or returns why nothing was.
func settled(e *environment, outcome seqledgerv1.RecordOutcome, done string) error {
	switch outcome {
	case seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK:
		return e.show(map[string]string{"outcome": done}, func(t *table) { t.field("outcome", done) })
	case seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FOUND:
		return fail(exitRefused, "seqledger key list shows the records that there are",
			"there is no record of this key")
	case seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FINAL:
		return fail(exitRefused, "wait for its owner or the end of its lease; seqledger key get shows both",
			"the outcome of the work is still open")
	case seqledgerv1.RecordOutcome_RECORD_OUTCOME_EXPIRED:
		return fail(exitRefused, "seqledger key purge frees the key, and its work can run again",
			"the record has expired: only its request is kept")
	case seqledgerv1.RecordOutcome_RECORD_OUTCOME_ALREADY_COMPLETED:
		return fail(exitRefused, "seqledger key get shows it", "the record is finished with another result")
	default:
		return fail(exitFailed, "", "the server answered with outcome %v, which is not known here", outcome)
	}
}
