package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// player runs commands on one key of a store and describes each result in words. Tokens and times differ from store to
// store, so a token is named by the acquisition that returned it.
type player struct {
	store  idempotency.Store
	key    idempotency.RecordKey
	owners map[int]idempotency.Ownership // by attempt
	tokens map[uint64]string
}

func newPlayer(store idempotency.Store, key string) *player {
	return &player{
		store: store, owners: map[int]idempotency.Ownership{}, tokens: map[uint64]string{0: "none"},
		key: idempotency.RecordKey{
			Scope: idempotency.Scope{Organization: "alike"}, Namespace: "alike", Key: key,
		},
	}
}

// command is one step of a sequence.
type command struct {
	kind     string
	attempt  int
	request  byte // which of two requests a Reserve is for
	takeOver bool
	text     string
}

func (c command) String() string {
	return fmt.Sprintf("%s by attempt %d, request %d, take over %v, %q",
		c.kind, c.attempt, c.request, c.takeOver, c.text)
}

func randomCommand(random *rand.Rand) command {
	c := command{attempt: random.IntN(4), takeOver: random.IntN(3) == 0, text: fmt.Sprint("text ", random.IntN(2))}
	if random.IntN(8) == 0 {
		c.request = 1
	}
	if random.IntN(6) == 0 {
		c.text = string(bytes.Repeat([]byte(c.text), 100)) // more than a ledger keeps in the record itself
	}
	kinds := []string{"reserve", "reserve", "reserve", "complete", "reject", "release", "heartbeat", "end lease",
		"checkpoint", "get"}
	c.kind = kinds[random.IntN(len(kinds))]
	return c
}

func (p *player) token(token uint64) string {
	if _, known := p.tokens[token]; !known {
		p.tokens[token] = fmt.Sprint("token ", len(p.tokens))
	}
	return p.tokens[token]
}

func (p *player) record(r *idempotency.Record) string {
	if r == nil {
		return "no record"
	}
	return fmt.Sprintf("%v of request %d, %s, %d attempts, take over %v, leased %v, completed %v, expires %v, "+
		"response %.40q, checkpoint %.40q", r.State, r.Fingerprint.Digest[0], p.token(r.Token), r.Attempts,
		r.OnLeaseExpired == idempotency.TakeOver, r.LeaseExpires.After(time.Now()), !r.Completed.IsZero(),
		!r.Expires.IsZero(), r.Response, r.Checkpoint)
}

// owner returns the attempt's last ownership, or one that never existed.
func (p *player) owner(attempt int) *idempotency.Ownership {
	o, ok := p.owners[attempt]
	if !ok {
		o = idempotency.Ownership{Key: p.key, Token: 1 << 60, AttemptID: idempotency.AttemptID{1, byte(attempt)}}
	}
	return &o
}

func (p *player) play(ctx context.Context, c command) (string, error) {
	result := idempotency.Result{Response: []byte(c.text)}
	var answer *idempotency.Answer
	var err error
	switch c.kind {
	case "reserve":
		return p.reserve(ctx, c)
	case "get":
		r, err := p.store.Get(ctx, &p.key)
		if errors.Is(err, idempotency.ErrNotFound) {
			return "not found", nil
		}
		return p.record(r), err
	case "complete":
		answer, err = p.store.Complete(ctx, p.owner(c.attempt), result)
	case "reject":
		result.TTL = time.Hour
		answer, err = p.store.Reject(ctx, p.owner(c.attempt), result)
	case "release":
		answer, err = p.store.Release(ctx, p.owner(c.attempt))
	case "heartbeat":
		answer, err = p.store.Heartbeat(ctx, p.owner(c.attempt), time.Hour)
	case "end lease":
		answer, err = p.store.Heartbeat(ctx, p.owner(c.attempt), idempotency.EndLease)
	case "checkpoint":
		answer, err = p.store.Checkpoint(ctx, p.owner(c.attempt), []byte(c.text))
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%v, %s, expires %v", answer.Outcome, p.record(answer.Record), !answer.Expires.IsZero()), nil
}

func (p *player) reserve(ctx context.Context, c command) (string, error) {
	request := &idempotency.ReserveRequest{
		Key: p.key, AttemptID: idempotency.AttemptID{1, byte(c.attempt)}, Lease: time.Hour, TTL: time.Hour,
		Fingerprint: idempotency.Fingerprint{Algorithm: 1, Digest: [32]byte{c.request}},
	}
	if c.takeOver {
		request.OnLeaseExpired = idempotency.TakeOver
	}
	r, err := p.store.Reserve(ctx, request)
	if err != nil {
		return "", err
	}
	if r.Outcome == idempotency.Acquired {
		p.owners[c.attempt] = idempotency.Ownership{Key: p.key, Token: r.Token, AttemptID: request.AttemptID}
	}
	return fmt.Sprintf("%v, %s, attempt %d, leased %v, checkpoint %q, retry %v, %s", r.Outcome, p.token(r.Token),
		r.Attempt, !r.LeaseExpires.IsZero(), r.Checkpoint, r.RetryAfter > 0, p.record(r.Record)), nil
}

// TestStoresDecideAlike checks that a store in memory, a store over a database with a compare-and-swap, and a ledger
// give the same answers to any sequence of commands on a key.
func TestStoresDecideAlike(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	keys, commands := 200, 60
	if testing.Short() {
		keys = 24
	}
	c := startServer(t)
	memory, swaps := idempotency.Memory(), idempotency.NewStore(newMapBackend())
	for i := range keys {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			key := fmt.Sprint("key-", i)
			want := newPlayer(memory, key)
			others := map[string]*player{
				"swaps": newPlayer(swaps, key), "ledger": newPlayer(idempotency.Ledger(c), key),
			}
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for step := range commands {
				next := randomCommand(random)
				expected := must.Get(want.play(t.Context(), next))(t)
				for name, other := range others {
					if got, err := other.play(t.Context(), next); err != nil || got != expected {
						t.Fatalf("step %d, %s, %s:\ngot  %s, %v\nwant %s", step, next, name, got, err, expected)
					}
				}
			}
		})
	}
}
