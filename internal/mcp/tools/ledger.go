package tools

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/client/op"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// addLedger adds the tools for the ledger itself.
func (t *tools) addLedger(s *mcp.Server) {
	add(s, "write_once", "Commit a write to the ledger once for its key: all operations or none. A repeat with "+
		"the same "+
		"key gets the same receipt.", hints("Write once", false, true, true), t.writeOnce)
	add(s, "client_state", "Read where a numbered stream of writes stands: the last committed sequence, the "+
		"session and, "+
		"if asked, the last receipts.", hints("Read a stream's state", true, true, false), t.clientState)
}

// entity is an entity that an operation sets or deletes.
type entity struct {
	Key       string  `json:"key" jsonschema:"1 to 1024 bytes"`
	Value     string  `json:"value,omitempty" jsonschema:"text of at most 1 MiB; only with set"`
	IfAbsent  bool    `json:"if_absent,omitempty" jsonschema:"only if there is no such entity"`
	IfPresent bool    `json:"if_present,omitempty" jsonschema:"only if there is such an entity"`
	IfValue   *string `json:"if_value,omitempty" jsonschema:"only if the entity has this value"`
	IfVersion *uint64 `json:"if_version,omitempty" jsonschema:"only if the entity has this version"`
}

// relationship is a relationship that an operation creates or deletes.
type relationship struct {
	Resource string `json:"resource"`
	Relation string `json:"relation"`
	Subject  string `json:"subject"`
}

// operation is one operation of a write.
type operation struct {
	Append   *string       `json:"append,omitempty" jsonschema:"append this text to the ledger"`
	Set      *entity       `json:"set,omitempty" jsonschema:"create or replace an entity"`
	Delete   *entity       `json:"delete,omitempty" jsonschema:"delete an entity"`
	Relate   *relationship `json:"relate,omitempty" jsonschema:"create a relationship"`
	Unrelate *relationship `json:"unrelate,omitempty" jsonschema:"delete a relationship"`
}

// conditions returns the condition of an entity's operation, if there is one.
func (e *entity) conditions() (all []op.Condition, err error) {
	if e.IfAbsent {
		all = append(all, op.IfAbsent())
	}
	if e.IfPresent {
		all = append(all, op.IfPresent())
	}
	if e.IfValue != nil {
		all = append(all, op.IfValue([]byte(*e.IfValue)))
	}
	if e.IfVersion != nil {
		all = append(all, op.IfVersion(*e.IfVersion))
	}
	if len(all) > 1 {
		err = errors.New("has more than one condition")
	}
	return all, err
}

// message returns an operation in the API's form.
func (o *operation) message() (m *seqledgerv1.Operation, err error) {
	kinds := 0
	if o.Append != nil {
		kinds, m = kinds+1, op.Append([]byte(*o.Append))
	}
	if o.Set != nil {
		conditions, bad := o.Set.conditions()
		if kinds++; bad != nil {
			return nil, bad
		}
		var options []op.SetOption
		for _, c := range conditions {
			options = append(options, c)
		}
		m = op.Set(o.Set.Key, []byte(o.Set.Value), options...)
	}
	if o.Delete != nil {
		conditions, bad := o.Delete.conditions()
		if kinds++; bad != nil {
			return nil, bad
		}
		if o.Delete.Value != "" {
			return nil, errors.New("deletes, and must not have a value")
		}
		m = op.Delete(o.Delete.Key, conditions...)
	}
	if r := o.Relate; r != nil {
		kinds, m = kinds+1, op.Relate(r.Resource, r.Relation, r.Subject)
	}
	if r := o.Unrelate; r != nil {
		kinds, m = kinds+1, op.Unrelate(r.Resource, r.Relation, r.Subject)
	}
	if kinds != 1 {
		return nil, fmt.Errorf("must have one of append, set, delete, relate and unrelate, has %d", kinds)
	}
	return m, nil
}

type writeInput struct {
	record

	Operations []operation `json:"operations" jsonschema:"what to write, all or nothing: 1 to 1000 operations"`
	TTLSeconds int64       `json:"ttl_seconds,omitempty" jsonschema:"how long the key is known, default 86400"`
}

type receiptOutput struct {
	TxID        string   `json:"tx_id" jsonschema:"id of the transaction"`
	Replayed    bool     `json:"replayed" jsonschema:"true if an earlier call has written it"`
	Sequence    string   `json:"sequence,omitempty" jsonschema:"number in its stream; absent for a keyed write"`
	Index       string   `json:"index" jsonschema:"ledger index"`
	BlockHeight string   `json:"block_height"`
	CommittedAt string   `json:"committed_at"`
	Actor       string   `json:"actor" jsonschema:"who wrote, as the server knows it"`
	Versions    []string `json:"versions,omitempty" jsonschema:"the version of each operation's entity; 0 where nothing changed"`
}

func showReceipt(r *seqledgerv1.Receipt) *receiptOutput {
	out := &receiptOutput{
		TxID: r.GetTxId(), Replayed: r.GetReplayed(), Index: number(r.GetIndex()),
		BlockHeight: number(r.GetBlockHeight()),
		CommittedAt: moment(r.GetCommittedAt()), Actor: r.GetActor(),
	}
	if r.GetSequence() != 0 {
		out.Sequence = number(r.GetSequence())
	}
	for _, result := range r.GetResults() {
		out.Versions = append(out.Versions, number(result.GetVersion()))
	}
	return out
}

func (t *tools) writeOnce(ctx context.Context, in *writeInput) (*receiptOutput, error) {
	key, err := t.key(&in.record)
	if err != nil {
		return nil, err
	}
	request := &seqledgerv1.WriteRequest{
		Scope: key.GetScope(), Namespace: key.GetNamespace(), Principal: key.GetPrincipal(),
		IdempotencyKey: key.GetKey(),
		Ttl:            seconds(in.TTLSeconds),
	}
	for i := range in.Operations {
		m, err := in.Operations[i].message()
		if err != nil {
			return nil, fmt.Errorf("operations[%d] %w; nothing was written", i, err)
		}
		request.Operations = append(request.Operations, m)
	}
	ctx, cancel := t.within(ctx, 0)
	defer cancel()
	receipt, err := t.Client.Write(ctx, request)
	if err != nil {
		return nil, advise(err)
	}
	return showReceipt(receipt), nil
}

type clientStateInput struct {
	Scope           string `json:"scope,omitempty" jsonschema:"organization or organization/vault; leave it out for the server's own"`
	ClientID        string `json:"client_id" jsonschema:"who numbers the writes"`
	IncludeReceipts bool   `json:"include_receipts,omitempty" jsonschema:"add the last receipts, newest first, at most 20"`
}

type clientStateOutput struct {
	Status                string           `json:"status" jsonschema:"whether the stream stands"`
	LastCommittedSequence string           `json:"last_committed_sequence" jsonschema:"the next write has one more"`
	Session               string           `json:"session" jsonschema:"0 for none"`
	LastIdempotencyKey    string           `json:"last_idempotency_key,omitempty"`
	LastSeen              string           `json:"last_seen,omitempty"`
	ExpiresAt             string           `json:"expires_at,omitempty"`
	Receipts              []*receiptOutput `json:"receipts,omitempty"`
}

// maxReceipts bounds the receipts in an answer, which must fit into an agent's context.
const maxReceipts = 20

func (t *tools) clientState(ctx context.Context, in *clientStateInput) (*clientStateOutput, error) {
	scope, err := t.scope(in.Scope)
	if err != nil {
		return nil, err
	}
	ctx, cancel := t.within(ctx, 0)
	defer cancel()
	state, err := t.Client.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{
		Scope: scope, ClientId: in.ClientID, IncludeReceipts: in.IncludeReceipts,
	})
	if err != nil {
		return nil, advise(err)
	}
	out := &clientStateOutput{
		Status:                strings.TrimPrefix(state.GetStatus().String(), "CLIENT_STATUS_"),
		LastCommittedSequence: number(state.GetLastCommittedSequence()), Session: number(state.GetSession()),
		LastIdempotencyKey: state.GetLastIdempotencyKey(), LastSeen: moment(state.GetLastSeen()),
		ExpiresAt: moment(state.GetExpiresAt()),
	}
	for _, r := range state.GetReceipts()[:min(maxReceipts, len(state.GetReceipts()))] {
		out.Receipts = append(out.Receipts, showReceipt(r))
	}
	return out, nil
}
