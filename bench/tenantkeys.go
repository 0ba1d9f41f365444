package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// Attacks with sessions, keys, and what expires.

const reserveProcedure = seqledgerv1connect.IdempotencyServiceReserveProcedure

// longName is a client id of the largest size for a number, because a stream costs by its name.
func longName(worker, n int) string {
	return fmt.Sprintf("%s-%06d-%010d", strings.Repeat("x", 230), worker, n)
}

// attemptOfCall is a different attempt id for each call.
func attemptOfCall(worker, n int) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(worker)+1), uint64(n)+1)
}

// openSession opens a session of a new stream.
func openSession(ctx context.Context, api service, worker, n int) error {
	_, err := api.OpenSession(ctx, connect.NewRequest(&seqledgerv1.OpenSessionRequest{
		Scope: badScope, ClientId: longName(worker, n), AttemptId: attemptOfCall(worker, n),
	}))
	return err
}

// reservation is a Reserve of a key.
func reservation(scope *seqledgerv1.Scope, key string, attempt []byte) *seqledgerv1.ReserveRequest {
	return &seqledgerv1.ReserveRequest{
		Record: &seqledgerv1.RecordKey{Scope: scope, Key: key}, AttemptId: attempt,
		Fingerprint: &seqledgerv1.Fingerprint{Algorithm: 1, Digest: make([]byte, 32)},
	}
}

// reserveKey reserves a new key in the longest namespace.
func reserveKey(ctx context.Context, api service, worker, n int) error {
	r := reservation(badScope, fmt.Sprintf("%d-%d", worker, n), attemptOfCall(worker, n))
	r.Record.Namespace = strings.Repeat("n", machine.MaxNamespace)
	_, err := api.Reserve(ctx, connect.NewRequest(r))
	return err
}

// reserveText is the JSON of a Reserve of the bad tenant, which is not the attempt that has made the record.
func reserveText(key string) string {
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`{"record":{%s,"key":%q},"attemptId":%q,"fingerprint":{"algorithm":1,"digest":%q}}`,
		badJSON, key, text(attemptOfCall(9, 9)), text(make([]byte, 32)))
}

// complete reserves a key and stores its response, to be known for a time.
func complete(
	ctx context.Context, api service, scope *seqledgerv1.Scope, key string, attempt, response []byte, ttl time.Duration,
) error {
	r := reservation(scope, key, attempt)
	owned, err := api.Reserve(ctx, connect.NewRequest(r))
	if err != nil {
		return err
	}
	_, err = api.Complete(ctx, connect.NewRequest(&seqledgerv1.CompleteRequest{
		Owner:    &seqledgerv1.Ownership{Record: r.Record, AttemptId: attempt, Token: owned.Msg.Token},
		Response: response, Ttl: durationpb.New(ttl),
	}))
	return err
}

// largeResponse makes a record with the largest response.
func largeResponse(ctx context.Context, _ *options, t *target) error {
	api, disconnect := t.api("bad")
	defer disconnect()
	return complete(ctx, api, badScope, "large", attemptOfCall(0, 0), noise, time.Hour)
}

// ownedKeyCount is how many keys have an owner that does not finish.
const ownedKeyCount = 16

// ownedKeys makes them.
func ownedKeys(ctx context.Context, _ *options, t *target) error {
	api, disconnect := t.api("bad")
	defer disconnect()
	for i := range ownedKeyCount {
		r := reservation(badScope, fmt.Sprint("owned-", i), attemptOfCall(0, i))
		r.Lease = durationpb.New(time.Hour)
		if _, err := api.Reserve(ctx, connect.NewRequest(r)); err != nil {
			return err
		}
	}
	return nil
}

// waitingReserves has more callers wait for these owners than may.
func waitingReserves(ctx context.Context, o *options, t *target) (string, error) {
	const onOneConnection = 100
	workers := scaled(o, 3_000)
	apis, counts := make([]service, (workers+onOneConnection-1)/onOneConnection), make([]int, workers)
	for i := range apis {
		var disconnect func()
		apis[i], disconnect = t.api("bad")
		defer disconnect()
	}
	return repeat(ctx, workers, func(ctx context.Context, worker int) (refused bool, err error) {
		r := reservation(badScope, fmt.Sprint("owned-", worker%ownedKeyCount), attemptOfCall(1+worker, counts[worker]))
		r.Wait = durationpb.New(time.Minute)
		counts[worker]++
		if _, err = apis[worker/onOneConnection].Reserve(ctx, connect.NewRequest(r)); err != nil {
			load.Pause(ctx, 50*time.Millisecond) // as a client does that is told when to come again
		}
		return err != nil, nil
	})
}

// writeBatch sends 250 small writes of a new client in one call.
func writeBatch(ctx context.Context, api service, worker, n int) error {
	request := new(seqledgerv1.WriteBatchRequest)
	for i := range 250 {
		request.Writes = append(request.Writes,
			badWrite(fmt.Sprintf("batch-%d-%d", worker, n), uint64(i)+1, payloadBytes))
	}
	_, err := api.WriteBatch(ctx, connect.NewRequest(request))
	return err
}

// madeKeys is how many entities are made and then deleted.
const madeKeys = 300_000

// deletedKeys makes them and deletes them, so that a list walks over what is left of them.
func deletedKeys(ctx context.Context, o *options, t *target) error {
	n := max(1, scaled(o, madeKeys)/1_000)
	return fillBad(ctx, t, 2*n, func(sequence uint64) *seqledgerv1.WriteRequest {
		w := &seqledgerv1.WriteRequest{Scope: badScope, ClientId: "filler", Sequence: sequence}
		for i := range 1_000 {
			op := setValue(fmt.Sprintf("deleted/%06d/%03d", (sequence-1)%uint64(n), i), nil)
			if sequence > uint64(n) {
				op = &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
					DeleteEntity: &seqledgerv1.DeleteEntity{Key: op.GetSetEntity().Key},
				}}
			}
			w.Operations = append(w.Operations, op)
		}
		return w
	})
}

// expiring makes the entity of a set operation expire.
func expiring(op *seqledgerv1.Operation, after time.Duration) *seqledgerv1.Operation {
	op.GetSetEntity().ExpiresAt = timestamppb.New(time.Now().Add(after))
	return op
}

// expiringEntities sets as many entities as it may that live for two seconds. Another tenant, because one has its share
// of the engine to divide, completes keys that are known for a second.
func expiringEntities(ctx context.Context, o *options, t *target) (string, error) {
	keys := make(chan string, 1)
	// Ends with ctx; received below.
	go func() {
		text, err := calls("bulk", 16, func(ctx context.Context, api service, worker, n int) error {
			key := fmt.Sprintf("short-%d-%d", worker, n)
			return complete(ctx, api, badScope, key, attemptOfCall(worker, n), nil, time.Second)
		})(ctx, o, t)
		keys <- errors.Join(errors.New(text), err).Error()
	}()
	text, err := streamed(16, 10, "of 100 entities", func(client string, sequence uint64) *seqledgerv1.WriteRequest {
		w := &seqledgerv1.WriteRequest{Scope: badScope, ClientId: client, Sequence: sequence}
		for i := range 100 {
			name := fmt.Sprintf("%s/%d/%d", client, sequence, i)
			w.Operations = append(w.Operations, expiring(setValue(name, nil), 2*time.Second))
		}
		return w
	})(ctx, o, t)
	return text + "; keys: " + <-keys, err
}

const (
	// goodKeys is how many records the good tenant may have. It makes some 60 a second, so that those that are over
	// must be removed within about ten seconds.
	goodKeys = 800
	// removedWithin is how long an expired entity may be there.
	removedWithin = 5 * time.Second
)

// expiringScope has the good tenant's expiring entities.
var expiringScope = &seqledgerv1.Scope{Organization: "good", Vault: "expiring"}

// expiringCalls make entities and keyed records of the good tenant that live for a second.
func expiringCalls(b *bed, t *target) []call {
	const pause = 10 * time.Millisecond
	api, disconnect := t.api("good")
	b.later(func() error {
		disconnect()
		return nil
	})
	sets, keys := uint64(0), 0
	return []call{
		{"entities that expire", pause, func(ctx context.Context) error {
			sets++
			_, err := api.Write(ctx, connect.NewRequest(&seqledgerv1.WriteRequest{
				Scope: expiringScope, ClientId: "expiring", Sequence: sets,
				Operations: []*seqledgerv1.Operation{expiring(setValue(fmt.Sprint("e", sets), nil), time.Second)},
			}))
			return err
		}},
		{"keys that expire", pause, func(ctx context.Context) error {
			keys++
			return complete(ctx, api, goodScope, fmt.Sprint("k", keys), attemptOfCall(0, keys), nil, time.Second)
		}},
	}
}

// expiredInTime finds out how long the good tenant's entities were there after they had expired, from the
// transactions that set and removed them.
func expiredInTime(ctx context.Context, _ *bed, t *target) ([]harness.Line, error) {
	api, disconnect := t.api("good")
	defer disconnect()
	expires := map[string]time.Time{}
	latest := time.Duration(0)
	removed := 0
	load.Pause(ctx, removedWithin+time.Second) // the last ones expire
	for height := uint64(1); ; height++ {
		block, err := api.GetBlock(ctx, connect.NewRequest(&seqledgerv1.GetBlockRequest{
			Scope: expiringScope, Height: height,
		}))
		if connect.CodeOf(err) == connect.CodeNotFound {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, tx := range block.Msg.Block.Transactions {
			for _, op := range tx.Operations {
				if set := op.GetSetEntity(); set != nil {
					expires[set.Key] = set.ExpiresAt.AsTime()
				} else if gone := op.GetExpireEntity(); gone != nil {
					removed++
					latest = max(latest, tx.CommittedAt.AsTime().Sub(expires[gone.Key]))
				}
			}
		}
	}
	left := len(expires) - removed
	return []harness.Line{
		told("expired entities of the good one", harness.Count(float64(removed))),
		held("not removed", fmt.Sprint(left), "0", left == 0),
		held("latest removal after the end", inMilliseconds(latest), "<= 5 s", latest <= removedWithin && removed > 0),
	}, nil
}

// storedAtMost finds out what a tenant has stored that is bounded by its part of a tight disk.
func storedAtMost(ctx context.Context, _ *bed, t *target) ([]harness.Line, error) {
	stored, all := map[string]uint64{}, uint64(0)
	for id := range tenantRights {
		api, disconnect := t.api(id)
		status, err := api.admin.GetStatus(ctx, connect.NewRequest(&seqledgerv1.GetStatusRequest{}))
		disconnect()
		if err != nil {
			return nil, err
		}
		stored[id] = status.Msg.Status.Caller.StoredBytes
		all += stored[id]
	}
	// What is in the engine when the bound is reached is stored, too.
	const underWay = 8 << 20
	bad := stored["bad"]
	return []harness.Line{
		told("stored by all", mebibytes(int64(all))),
		held("stored by the bad one", mebibytes(int64(bad)), "1/4 and 8 MiB", bad <= all/4+underWay),
	}, nil
}

// foreignSizes are the sizes of transactions that another tenant asks for, in bytes.
var foreignSizes = []int{10, 100 << 10, 1 << 20}

// someTransactions makes transactions of several sizes, with others between them.
func someTransactions(ctx context.Context, _ *options, t *target) error {
	for i, size := range foreignSizes {
		for n, size := range []int{size, 1 << 20} {
			if err := fillBad(ctx, t, 1, func(uint64) *seqledgerv1.WriteRequest {
				return badWrite(fmt.Sprintf("size-%d-%d", i, n), 1, size)
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// foreignIDs returns the ids of these transactions, and before them one that does not exist.
func foreignIDs(ctx context.Context, t *target) ([]string, error) {
	bad, disconnect := t.api("bad")
	defer disconnect()
	ids := []string{""}
	for i := range foreignSizes {
		block, err := bad.GetBlock(ctx, connect.NewRequest(&seqledgerv1.GetBlockRequest{
			Scope: badScope, Height: uint64(2*i) + 1, Content: seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS,
		}))
		if err != nil {
			return nil, err
		}
		ids = append(ids, block.Msg.Block.Transactions[0].TxId)
	}
	ids[0] = ids[1][:len(ids[1])-9] + "0ffffffff"
	return ids, nil
}

// getForeign asks for a transaction that is not there.
func getForeign(ctx context.Context, api service, worker, n int) error {
	_, err := api.GetTransaction(ctx, connect.NewRequest(&seqledgerv1.GetTransactionRequest{
		TxId: fmt.Sprintf("00000000-0000-8000-8000-%012x", worker<<32+n),
	}))
	return err
}

// mostTold is how much longer not_found may take for a transaction of another tenant than for none, or shorter.
const mostTold = 1 // millisecond

// foreignTransactions has the good tenant ask for transactions of the bad one, and for one that does not exist. How
// long not_found takes must not tell them apart, whether or not they are in memory.
func foreignTransactions(ctx context.Context, b *bed, t *target) ([]harness.Line, error) {
	ids, err := foreignIDs(ctx, t)
	if err != nil {
		return nil, err
	}
	cold, warm := make([][]float64, len(ids)), make([][]float64, len(ids))
	for range 5 {
		if err := b.restartCold(ctx, t); err != nil {
			return nil, err
		}
		for try := range 1 + scaled(b.o, 10) {
			took := warm
			if try == 0 {
				took = cold
			}
			for i, id := range ids { // in turns, so that what else happens falls on all
				ms, err := t.timeForeign(ctx, id)
				if err != nil {
					return nil, err
				}
				took[i] = append(took[i], ms)
			}
		}
	}
	var lines []harness.Line
	for _, kind := range []struct {
		name string
		took [][]float64
	}{{"from the disk", cold}, {"in memory", warm}} {
		absent, worst := harness.Median(kind.took[0]), 0.0
		lines = append(lines, told("not_found of none, "+kind.name, milliseconds(absent)))
		for i, size := range foreignSizes {
			ms := harness.Median(kind.took[i+1])
			worst = max(worst, math.Abs(ms-absent))
			lines = append(lines, told(fmt.Sprintf("not_found of %d bytes, %s", size, kind.name), milliseconds(ms)))
		}
		lines = append(lines, held("largest difference, "+kind.name, milliseconds(worst), "<= 1 ms", worst <= mostTold))
	}
	return lines, nil
}

// timeForeign returns how many milliseconds not_found takes.
func (t *target) timeForeign(ctx context.Context, id string) (float64, error) {
	good, disconnect := t.api("good")
	defer disconnect()
	// The connection is opened first.
	if _, err := good.admin.GetStatus(ctx, connect.NewRequest(&seqledgerv1.GetStatusRequest{})); err != nil {
		return 0, err
	}
	began := time.Now()
	_, err := good.GetTransaction(ctx, connect.NewRequest(&seqledgerv1.GetTransactionRequest{TxId: id}))
	took := time.Since(began).Seconds() * 1e3
	if connect.CodeOf(err) != connect.CodeNotFound {
		return 0, errors.Join(errors.New("a foreign transaction was answered"), err)
	}
	return took, nil
}

// restartCold starts the server anew, with nothing of its blocks in memory.
func (b *bed) restartCold(ctx context.Context, t *target) error {
	if err := b.server.Stop(); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(b.data(), "blocks", "*"))
	for _, name := range names {
		f, failed := os.Open(name)
		if failed == nil {
			failed = errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return err
	}
	return b.serveTenants(ctx, t, func(int64) int64 { return -1 })
}
