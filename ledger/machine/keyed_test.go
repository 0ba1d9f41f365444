package machine

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// reserveKey returns a Reserve of an attempt.
func reserveKey(id KeyedID, attempt byte, now int64) *KeyedCommand {
	return &KeyedCommand{ID: id, Actor: "client:test", MaxKeys: 100, Command: keyed.Command{
		Kind: keyed.Reserve, AttemptID: keyed.AttemptID{attempt}, ValidUntil: now + 100*second, Lease: 60 * second,
		TTL:         1_000 * second,
		Fingerprint: keyed.Fingerprint{Algorithm: 1, Digest: [32]byte{7}},
	}}
}

// ownKey returns a command of the attempt that has reserved a key.
func ownKey(kind keyed.Kind, reserved *KeyedCommand, token uint64, content []byte) *KeyedCommand {
	return &KeyedCommand{ID: reserved.ID, Actor: reserved.Actor, Command: keyed.Command{
		Kind: kind, AttemptID: reserved.AttemptID, Token: token, Lease: 60 * second, Response: content, Data: content,
	}}
}

func testKeyedID(key byte) KeyedID {
	return KeyedID{Scope: testScope, Namespace: "jobs", Principal: "user:1", Key: [32]byte{key}}
}

// keyed applies a command on a key, which must have the code. If the state answers
// it without the log, it must say the same.
func (f *fixture) keyed(c *KeyedCommand, want Code) Outcome {
	f.Helper()
	must.Do(f, c.Validate())
	f.tick()
	answer, answered, err := f.view().AnswerKeyed(c, f.now)
	if err != nil {
		f.Fatal(err)
	}
	out := f.entry(AppendKeyed(nil, c))[0]
	if out.Code != want {
		f.Errorf("command %d of key %x gave %v, want %v", c.Kind, c.ID.Key[:1], out.Code, want)
	}
	if answered && (answer.Code != out.Code || fmt.Sprint(answer.Keyed.Record) != fmt.Sprint(out.Keyed.Record)) {
		f.Errorf("the state answers %v, the log %v, or with another record", answer.Code, out.Code)
	}
	return out
}

// tick brings ledger time to the fixture's clock.
func (f *fixture) tick() {
	f.Helper()
	if f.now != f.m.head.time {
		f.one(AppendTick(nil))
	}
}

// elapse lets time pass, in a way that leaves no lease more than it had: an outage
// gives it some seconds.
func (f *fixture) elapse(nanos int64) {
	f.Helper()
	end := f.now + nanos
	f.now = max(f.now, end-int64(keyed.OutageGrace))
	f.tick()
	for f.now < end {
		f.now = min(end, f.now+int64(keyed.OutagePause))
		f.tick()
	}
}

func (f *fixture) record(id KeyedID) *KeyedRecord {
	f.Helper()
	k, err := f.view().Keyed(&id, f.now)
	if err != nil && !errors.Is(err, ErrNotFound) {
		f.Fatal(err)
	}
	if k != nil {
		if whole, err := f.view().ReadAttachments(k); err != nil || !whole {
			f.Errorf("attachments: %t, %v", whole, err)
		}
	}
	return k
}

// checkKeyed audits the state, and says how many records and attachments there are.
func (f *fixture) checkKeyed(records, attachments int) {
	f.Helper()
	f.reopen()
	check.Equal(f, len(auditAll(f, f.m, f.mem)), 0)
	check.Equal(f, len(f.mem.tables[TableKeyed].keys), records, "%d keyed records")
	check.Equal(f, len(f.mem.tables[TableAttachments].keys), attachments, "%d attachments")
}

func auditAll(t testing.TB, m *Machine, r Reader) (problems []Problem) {
	t.Helper()
	must.Get(m.Audit(r, func(p Problem) { problems = append(problems, p) }, nil))(t)
	return problems
}

// A reservation from its beginning to its end, with answers that are short and
// long: the token is the ledger index, and nothing is left behind.
func TestReservation(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"short", strings.Repeat("long", maxInlineAttachment)} {
		f := newFixture(t, testConfig())
		id, attachments := testKeyedID(1), 0
		if len(content) > maxInlineAttachment {
			attachments = 1
		}
		owner := reserveKey(id, 1, f.now)
		out := f.keyed(owner, Keyed(keyed.Acquired))
		token := out.Keyed.Record.Token
		if token != out.Index {
			t.Errorf("token %d at ledger index %d", token, out.Index)
		}
		check.Equal(t, f.keyed(owner, Keyed(keyed.Acquired)).Keyed.Record.Token, token, "the repeat has token %d")
		f.keyed(ownKey(keyed.Checkpoint, owner, token, []byte(content)), Keyed(keyed.OK))
		f.checkKeyed(1, attachments)
		f.keyed(ownKey(keyed.Checkpoint, owner, token, []byte(content+"2")), Keyed(keyed.OK))
		f.checkKeyed(1, attachments)
		check.Equal(t, string(f.record(id).Checkpoint), content+"2", "the checkpoint is %q")
		f.keyed(ownKey(keyed.Heartbeat, owner, token, nil), Keyed(keyed.OK))
		if out := f.keyed(reserveKey(id, 2, f.now), Keyed(keyed.InFlight)); out.Keyed.RetryAfter != 60*second {
			t.Errorf("retry after %v", time.Duration(out.Keyed.RetryAfter))
		}
		f.keyed(ownKey(keyed.Complete, owner, token, []byte(content)), Keyed(keyed.OK))
		f.checkKeyed(1, attachments)
		f.keyed(ownKey(keyed.Complete, owner, token, []byte(content)), Keyed(keyed.OK))
		f.keyed(ownKey(keyed.Complete, owner, token, []byte("other")), Keyed(keyed.AlreadyCompleted))
		replay := f.keyed(reserveKey(id, 3, f.now), Keyed(keyed.Replay))
		if whole, err := f.view().ReadAttachments(replay.Keyed.Record); !whole || err != nil ||
			string(replay.Keyed.Record.Response) != content {
			t.Errorf("the replay has %q, %v", replay.Keyed.Record.Response, err)
		}
		f.elapse(1_000 * second)
		if k := f.record(id); k != nil {
			t.Errorf("the record is over and reads as %v", k.State)
		}
		f.keyed(reserveKey(id, 4, f.now), Keyed(keyed.Acquired))
		f.checkKeyed(1, 0)
		if whole, err := f.view().ReadAttachments(replay.Keyed.Record); whole == (attachments == 1) || err != nil {
			t.Errorf("what is gone reads as whole: %t, %v", whole, err)
		}
	}
}

// A pass makes outcomes unknown whose lease is over, and removes what says nothing
// any more, with all that belongs to it.
func TestPassesOverKeyedRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	long := bytes.Repeat([]byte("r"), maxInlineAttachment+1)
	done, pending, taken := reserveKey(testKeyedID(1), 1, f.now), reserveKey(testKeyedID(2), 2, f.now),
		reserveKey(testKeyedID(3), 3, f.now)
	taken.Policy = keyed.TakeOver
	for _, c := range []*KeyedCommand{done, pending, taken} {
		token := f.keyed(c, Keyed(keyed.Acquired)).Index
		if c == done {
			f.keyed(ownKey(keyed.Complete, c, token, long), Keyed(keyed.OK))
		} else {
			f.keyed(ownKey(keyed.Checkpoint, c, token, long), Keyed(keyed.OK))
		}
	}
	f.checkKeyed(3, 3)
	f.elapse(60 * second)
	check.Equal(t, f.record(pending.ID).State, keyed.Indeterminate, "a lease is over, and the record reads as %v")
	digest := f.m.head.digest
	f.round()
	f.checkKeyed(3, 3)
	if e, err := loadKeyed(f.mem, pending.ID.TableKey()); err != nil || e.State != keyed.Indeterminate ||
		digest == f.m.head.digest {
		t.Errorf("after the pass: %+v, %v", e, err)
	}
	check.Equal(t, must.Get(loadKeyed(f.mem, taken.ID.TableKey()))(t).State, keyed.Pending,
		"what may be taken over: %+v")
	f.elapse(1_000 * second)
	f.round()
	f.checkKeyed(2, 2)
	check.Equal(t, f.m.evictions.Keys, 0, "%d removals are counted") // the fixture has reopened the machine since
	f.elapse(2 * int64(keyed.IndeterminateTTL))
	f.round()
	f.round()
	f.checkKeyed(1, 1) // unclaimed for a month: its outcome is unknown from now on
	f.elapse(int64(keyed.IndeterminateTTL))
	f.round()
	f.checkKeyed(0, 0)
	check.Equal(t, len(f.mem.tables[TablePrincipals].keys), 0, "%d principals are counted")
}

// A keyed record counts for several units of a pass.
func TestKeyedPassWork(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.EvictionLimit = maxEvictLimit
	f := newFixture(t, config)
	const records = 2_000
	for i := range records {
		id := testKeyedID(0)
		id.Key = [32]byte{byte(i), byte(i >> 8)}
		w := &KeyedWrite{ID: id, Actor: "a", TTL: second, MaxKeys: records, Operations: []Operation{{Kind: OpAppend}}}
		must.Equal(t, f.entry(AppendKeyedWrite(nil, w))[0].Code, Committed)
	}
	f.elapse(2 * second)
	f.round()
	check.Equal(t, len(f.mem.tables[TableKeyed].keys), records-MaxPassWork/keyedWork, "%d records are left")
	f.round()
	f.checkKeyed(0, 0)
}

// An outage of the ledger gives every running lease some time more; a restart in
// between changes nothing.
func TestOutageKeepsLeases(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	owner := reserveKey(testKeyedID(1), 1, f.now)
	token := f.keyed(owner, Keyed(keyed.Acquired)).Index
	f.now += 3_600 * second
	f.one(AppendTick(nil))
	f.reopen()
	f.round()
	if k := f.record(owner.ID); k == nil || k.State != keyed.Pending {
		t.Fatalf("the lease did not outlive the outage: %+v", k)
	}
	for range 3 { // no more outages: time goes on in small steps
		f.now += 9 * second
		f.one(AppendTick(nil))
	}
	f.keyed(ownKey(keyed.Heartbeat, owner, token, nil), Keyed(keyed.OK))
	f.now += 9 * second
	f.keyed(ownKey(keyed.Complete, owner, token, nil), Keyed(keyed.OK))
	f.checkKeyed(1, 0)
}

// A principal has a bounded number of records, and the number goes down with them.
func TestKeysOfAPrincipalAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	reserve := func(principal string, key byte, want Code) *KeyedCommand {
		t.Helper()
		id := testKeyedID(key)
		id.Principal = principal
		c := reserveKey(id, key, f.now)
		c.MaxKeys = 2
		f.keyed(c, want)
		return c
	}
	first := reserve("user:1", 1, Keyed(keyed.Acquired))
	token := f.m.head.index
	reserve("user:1", 2, Keyed(keyed.Acquired))
	reserve("user:1", 3, TooManyKeys)
	reserve("user:1", 2, Keyed(keyed.Acquired))
	reserve("user:10", 3, Keyed(keyed.Acquired))
	check.Equal(t, f.one(AppendKeyedWrite(nil, &KeyedWrite{
		ID: testKeyedID(9), Actor: "a", TTL: second, MaxKeys: 2, Operations: []Operation{{Kind: OpAppend}},
	})).Code, TooManyKeys, "a keyed write beyond the bound: %v")
	f.keyed(ownKey(keyed.Release, first, token, nil), Keyed(keyed.OK))
	reserve("user:1", 3, TooManyKeys) // its attempt is remembered
	f.elapse(int64(keyed.TombstoneTTL))
	f.round()
	reserve("user:1", 3, Keyed(keyed.Acquired))
	check.Equal(t, must.Get(f.view().Keys(testScope, "user:1"))(t), 2, "%d keys")
	f.checkKeyed(3, 0)
}

// A keyed write commits once for its key, and is answered with its receipt from
// then on: by the log, and by the state.
func TestKeyedWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	write := func(key byte, ops ...Operation) *KeyedWrite {
		return &KeyedWrite{ID: testKeyedID(key), ClientID: "web", Actor: "client:test", TTL: 100 * second, MaxKeys: 100,
			Operations: ops}
	}
	apply := func(w *KeyedWrite, want Code) Outcome {
		t.Helper()
		must.Do(t, w.Validate())
		hash, _ := HashOperations(nil, w.Operations)
		f.tick()
		receipt, answered, err := f.view().AnswerKeyedWrite(w, hash, f.now)
		if err != nil {
			t.Fatal(err)
		}
		out := f.one(AppendKeyedWrite(nil, w))
		if out.Code != want {
			t.Errorf("key %d: %v, want %v", w.ID.Key[0], out.Code, want)
		}
		if answered != (out.Code == Replayed) {
			t.Errorf("the state answers: %t, the log says %v", answered, out.Code)
		} else if answered {
			sameReceipt(t, "the answer from the state", receipt, out.Receipt)
		}
		return out
	}
	job := write(1, set("job", longValue))
	first := apply(job, Committed)
	second1 := apply(job, Replayed)
	sameReceipt(t, "the replay", second1.Receipt, first.Receipt)
	apply(write(1, set("job", "another")), IdempotencyKeyReused)
	x, err := f.view().Transaction(f.view().TxIDAt(first.Index))
	if err != nil || x.Keyed == nil || *x.Keyed != job.ID || x.ClientID != "web" || x.Sequence != 0 ||
		LeafHash(x.Leaf()) == (Hash{}) {
		t.Errorf("the transaction is %+v, %v", x, err)
	}
	apply(write(2, provided(set("job", "x"), Condition{Kind: ConditionNotExists})), KeyExists)
	apply(write(2, provided(set("job", "x"), Condition{Kind: ConditionMustExist})), Committed) // the key was still free
	// One key is either a write's or a reservation's.
	f.keyed(reserveKey(testKeyedID(1), 1, f.now), Keyed(keyed.Mismatch))
	f.keyed(reserveKey(testKeyedID(3), 1, f.now), Keyed(keyed.Acquired))
	apply(write(3, set("k", "v")), IdempotencyKeyReused)
	// In one entry, the second finds the first.
	both := f.entry(AppendKeyedWrite(nil, write(4, set("a", "1"))), AppendKeyedWrite(nil, write(4, set("a", "1"))))
	if both[0].Code != Committed || both[1].Code != Replayed {
		t.Errorf("twice in one entry: %v and %v", both[0].Code, both[1].Code)
	}
	f.keyed(&KeyedCommand{ID: testKeyedID(4), Actor: "a", Command: keyed.Command{Kind: keyed.Purge}}, Keyed(keyed.OK))
	f.checkKeyed(4, 0)
	f.elapse(100 * second)
	if out := apply(job, Committed); out.Index == first.Index {
		t.Error("after its time the write was not made again")
	}
	f.round()
	must.Do(t, readBack(f.mem, nil))
	f.checkKeyed(3, 0) // the second has gone, the reservation has an unknown outcome, and the tombstone is young
}

// A listing is in order, of one principal and namespace where it is asked so, and
// goes on where it ended.
func TestVisitKeyed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	for _, principal := range []string{"user:1", "user:10", "user:2"} {
		for _, namespace := range []string{"", "jobs", "jobs2"} {
			for key := range byte(3) {
				c := reserveKey(KeyedID{testScope, namespace, principal, [32]byte{key}}, 1, f.now)
				c.MaxKeys = 1_000
				f.keyed(c, Keyed(keyed.Acquired))
			}
		}
	}
	elsewhere := reserveKey(KeyedID{Scope{"acme", "v"}, "jobs", "user:1", [32]byte{1}}, 1, f.now)
	f.keyed(elsewhere, Keyed(keyed.Acquired))
	jobs := "jobs"
	for _, test := range []struct {
		principal string
		namespace *string
		want      int
	}{{"", nil, 27}, {"user:1", nil, 9}, {"user:1", &jobs, 3}, {"", &jobs, 9}, {"user", nil, 0}} {
		for _, page := range []int{1, 2, 100} {
			var after []byte
			seen := map[KeyedID]bool{}
			for more := true; more; {
				n := 0
				more = false
				must.Get(f.view().VisitKeyed(testScope, test.principal, test.namespace, after, f.now,
					func(key []byte, k *KeyedRecord) bool {
						if bytes.Compare(key, after) <= 0 || seen[k.ID] || test.principal != "" &&
							k.ID.Principal != test.principal {
							t.Errorf("%+v comes again or does not belong", k.ID)
						}
						after, seen[k.ID] = key, true
						n++
						more = n == page
						return !more
					}))(t)
			}
			if len(seen) != test.want {
				t.Errorf("principal %q namespace %v in pages of %d: %d records, want %d", test.principal,
					test.namespace, page, len(seen), test.want)
			}
		}
	}
}

func TestKeyedLimits(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(c *KeyedCommand){
		"scope.organization": func(c *KeyedCommand) { c.ID.Scope.Organization = "" },
		"namespace":          func(c *KeyedCommand) { c.ID.Namespace = "a\x00" },
		"principal":          func(c *KeyedCommand) { c.ID.Principal = "" },
		"actor":              func(c *KeyedCommand) { c.Actor = "" },
		"lease":              func(c *KeyedCommand) { c.Lease = 0 },
		"ttl":                func(c *KeyedCommand) { c.TTL = 0 },
		"valid_until":        func(c *KeyedCommand) { c.ValidUntil = -1 },
		"response": func(c *KeyedCommand) {
			c.Kind, c.Response = keyed.Complete,
				make([]byte, keyed.MaxResponse+1)
		},
		"data": func(c *KeyedCommand) { c.Kind, c.Data = keyed.Checkpoint, make([]byte, keyed.MaxCheckpoint+1) },
	} {
		c := reserveKey(testKeyedID(1), 1, testStart)
		change(c)
		wrong, ok := errors.AsType[*FieldError](c.Validate())
		if !ok || wrong.Field != field {
			t.Errorf("%s: %v", field, c.Validate())
		}
	}
}
