package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/ledger/machine"
)

// keysOracle checks what keys promise, from the outcomes alone and without the model: tokens grow, one owner holds a
// lease, what is completed stays, and no principal sees the key of another.
type keysOracle struct {
	w      *world
	keys   map[machine.KeyedID]*keyHistory
	tokens map[uint64]machine.KeyedID // whose each token is
	said   map[uint64]*machine.Outcome
}

// keyHistory is what the outcomes have said of a key.
type keyHistory struct {
	highest  uint64 // token
	owner    *ownership
	result   *keyResult
	released uint64 // the token that was given back last
	expired  bool   // a result before was over
}

// ownership is the last one of a key, until the key is free again.
type ownership struct {
	attempt  keyed.AttemptID
	token    uint64
	policy   keyed.Policy
	leaseEnd int64  // as it was told
	term     uint64 // of its Reserve
	forget   int64  // after the result
}

// keyResult is what a key stands for, until it expires or is purged.
type keyResult struct {
	state    keyed.State
	token    uint64
	response []byte
	hash     machine.RequestHash // of a keyed write
	expires  int64
	forget   int64  // until when the key is not free, if that is later
	at       uint64 // the ledger index that gave it
	told     bool   // to a client
}

func newKeysOracle(w *world) *keysOracle {
	return &keysOracle{
		w: w, keys: map[machine.KeyedID]*keyHistory{}, tokens: map[uint64]machine.KeyedID{},
		said: map[uint64]*machine.Outcome{},
	}
}

func (o *keysOracle) fail(id *machine.KeyedID, format string, args ...any) {
	panic(violation{what: "keys: " + fmt.Sprintf(format, args...), key: id})
}

// of returns the history of a key at a ledger time.
func (o *keysOracle) of(id machine.KeyedID, now int64) *keyHistory {
	k := o.keys[id]
	if k == nil {
		k = &keyHistory{}
		o.keys[id] = k
	}
	if k.result != nil && now >= max(k.result.expires, k.result.forget) {
		*k = keyHistory{highest: k.highest, expired: true}
	}
	return k
}

// decided is called for every command on a key, and every keyed write, that the log has decided, in its order.
func (o *keysOracle) decided(c *command, out *machine.Outcome, now int64, term uint64) {
	o.said[out.Index] = out
	if c.job != nil {
		o.wrote(c.job, out, now)
		return
	}
	id := &c.keyed.ID
	k := o.of(*id, now)
	if r := recordOf(out); r != nil && !o.isOf(id, r, out) {
		o.fail(id, "it shows what belongs to another key: %+v", r)
	}
	switch c.keyed.Kind {
	case keyed.Reserve:
		o.reserved(k, c.keyed, out, now, term)
	case keyed.Complete, keyed.Reject:
		o.finished(k, c.keyed, out, term)
	case keyed.Resolve:
		if out.Code == machine.Keyed(keyed.OK) && k.result == nil {
			o.w.counted["keys: unknown outcome resolved"]++
			k.result = k.resultOf(c.keyed, out)
		}
	case keyed.Purge:
		if out.Code == machine.Keyed(keyed.OK) {
			// What remains of the record answers a Release of its last owner as a repeated one, and changes nothing.
			*k = keyHistory{highest: k.highest, released: k.highest}
		}
	default:
		o.kept(k, c.keyed, out)
	}
}

func recordOf(out *machine.Outcome) *machine.KeyedRecord {
	if out.Keyed == nil {
		return nil
	}
	return out.Keyed.Record
}

// isOf reports whether a record is of a key: its token was given to this key, and so was what it holds.
func (o *keysOracle) isOf(id *machine.KeyedID, r *machine.KeyedRecord, out *machine.Outcome) bool {
	mark := fmt.Appendf(nil, " of %s/%x ", id.Principal, id.Key[:1])
	ours := func(content []byte) bool { return len(content) == 0 || bytes.Contains(content, mark) }
	return (r.Token == out.Index || o.tokens[r.Token] == *id) && ours(r.Response) && ours(r.Checkpoint)
}

func (k *keyHistory) resultOf(c *machine.KeyedCommand, out *machine.Outcome) *keyResult {
	r := out.Keyed.Record
	return &keyResult{
		state: r.State, token: r.Token, response: c.Response, expires: r.Expires, forget: r.Completed + k.owner.forget,
		at: out.Index,
	}
}

// same checks a record that shows the result of a key.
func (o *keysOracle) same(id *machine.KeyedID, k *keyHistory, r *machine.KeyedRecord) {
	want := &keyResult{}
	if k.result != nil {
		want = k.result
	}
	if r.State != want.state || r.Token != want.token || r.Expires != want.expires ||
		r.ResponseSize != uint64(len(want.response)) || len(r.Response) > 0 && !bytes.Equal(r.Response, want.response) {
		o.fail(id, "the result is %+v, and was %+v", r, want)
	}
}

func (o *keysOracle) reserved(k *keyHistory, c *machine.KeyedCommand, out *machine.Outcome, now int64, term uint64) {
	r := recordOf(out)
	finished := machine.Keyed(keyed.Replay)
	if k.result != nil && now >= k.result.expires {
		finished = machine.Keyed(keyed.ResultExpired)
	}
	if k.result != nil && out.Code != finished && out.Code != machine.Keyed(keyed.Mismatch) &&
		out.Code != machine.Keyed(keyed.Stale) {
		o.fail(&c.ID, "there is a result, and a Reserve gives %s", out.Code)
	}
	switch {
	case out.Code == machine.Keyed(keyed.ResultExpired):
		o.w.counted["keys: expired, not forgotten"]++
		if k.result == nil || r.State != keyed.Expired || r.Token != k.result.token || r.ResponseSize != 0 {
			o.fail(&c.ID, "what has expired is %+v, and was %+v", r, k.result)
		}
	case out.Code == machine.Keyed(keyed.Replay):
		o.same(&c.ID, k, r)
	case out.Code != machine.Keyed(keyed.Acquired):
	case k.owner != nil && k.owner.attempt == c.AttemptID && k.owner.token == r.Token:
		k.owner.leaseEnd = r.LeaseEnd
	case r.Token != out.Index || r.Token <= k.highest:
		o.fail(&c.ID, "a fencing token %d at ledger index %d, behind %d", r.Token, out.Index, k.highest)
	default:
		if old := k.owner; old != nil {
			if now < old.leaseEnd {
				o.fail(&c.ID, "a second owner at %d, and the lease of the first one ends at %d", now, old.leaseEnd)
			}
			if old.policy == keyed.BecomeIndeterminate {
				o.fail(&c.ID, "a second owner where the first one has left an unknown outcome")
			}
			o.w.counted["keys: taken over"]++
		} else if k.expired {
			o.w.counted["keys: reserved behind an expiry"]++
		}
		k.owner = &ownership{c.AttemptID, r.Token, c.Policy, r.LeaseEnd, term, c.ForgetAfter}
		k.highest, k.released, k.expired, o.tokens[r.Token] = r.Token, 0, false, c.ID
	}
}

// owned reports whether a command is of the owner.
func (k *keyHistory) owned(c *machine.KeyedCommand) bool {
	return k.owner != nil && k.owner.attempt == c.AttemptID && k.owner.token == c.Token
}

func (o *keysOracle) finished(k *keyHistory, c *machine.KeyedCommand, out *machine.Outcome, term uint64) {
	switch {
	case out.Code == machine.Keyed(keyed.LeaseLost) && k.owner != nil && c.Token < k.owner.token:
		o.w.counted["keys: completion behind a takeover"]++
	case out.Code != machine.Keyed(keyed.OK):
	case !k.owned(c):
		o.fail(&c.ID, "a completion under an old token, %d, takes effect: the last one is %d", c.Token, k.highest)
	case k.result != nil:
		if !bytes.Equal(c.Response, k.result.response) {
			o.fail(&c.ID, "another result is taken than %+v", k.result)
		}
		o.same(&c.ID, k, out.Keyed.Record)
	default:
		if term != k.owner.term {
			o.w.counted["keys: leader changed between Reserve and Complete"]++
		}
		if o.w.oracle.model.Time > k.owner.leaseEnd {
			o.w.counted["keys: completed behind the lease"]++
		}
		k.result = k.resultOf(c, out)
	}
}

// kept checks what an owner does before the end.
func (o *keysOracle) kept(k *keyHistory, c *machine.KeyedCommand, out *machine.Outcome) {
	switch {
	case out.Code != machine.Keyed(keyed.OK):
	case c.Kind == keyed.Release && k.released == c.Token: // repeated
	case !k.owned(c) || k.result != nil:
		o.fail(&c.ID, "a command of a caller that does not own it, under token %d, takes effect: the last one is %d",
			c.Token, k.highest)
	case c.Kind == keyed.Release:
		k.owner, k.released = nil, c.Token
	case c.Kind == keyed.Heartbeat:
		k.owner.leaseEnd = out.Keyed.Record.LeaseEnd
	}
}

// wrote checks a keyed write: it commits once for as long as its key is known.
func (o *keysOracle) wrote(w *machine.KeyedWrite, out *machine.Outcome, now int64) {
	k := o.of(w.ID, now)
	hash, _ := machine.HashOperations(nil, w.Operations)
	switch {
	case out.Code == machine.Committed && (k.result != nil || k.owner != nil):
		o.fail(&w.ID, "a keyed write commits at ledger index %d, and the key stands for %+v", out.Index, k.result)
	case out.Code == machine.Committed:
		if k.expired {
			o.w.counted["keys: written behind an expiry"]++
		}
		*k = keyHistory{highest: out.Index, result: &keyResult{
			state: keyed.Written, token: out.Index, hash: hash, expires: now + w.TTL, at: out.Index,
		}}
		o.tokens[out.Index] = w.ID
	case out.Code == machine.Replayed:
		o.w.counted["keys: keyed writes repeated"]++
		if k.result == nil || k.result.hash != hash || k.result.token != out.Receipt.Index {
			o.fail(&w.ID, "a keyed write is answered with ledger index %d, and the key stands for %+v",
				out.Receipt.Index, k.result)
		}
	}
}

// told checks an answer that reaches a client: it is what was decided (invariant 2). One from the state has no index,
// and has been checked.
func (o *keysOracle) told(c *command, out *machine.Outcome) {
	if out.Index == 0 {
		return
	}
	was := o.said[out.Index]
	if was == nil {
		o.fail(c.keyID(), "an answer of ledger index %d, where no command on a key was decided", out.Index)
	}
	if difference := ledgermodel.Differ(out, was); difference != "" {
		o.fail(c.keyID(), "the answer of ledger index %d %s", out.Index, difference)
	}
	o.w.counted["answers about keys"]++
	done := []machine.Code{machine.Keyed(keyed.OK), machine.Keyed(keyed.Replay), machine.Committed, machine.Replayed}
	if id := c.keyID(); o.keys[*id].result != nil && slices.Contains(done, out.Code) {
		if r := o.keys[*id].result; out.Index >= r.at {
			r.told = true
		}
	}
}

// keyRead is a read of a key, with the result that a client has been told before, if any.
type keyRead struct {
	id   machine.KeyedID
	want *keyResult
}

// readKey reads a key, as the leader does: from a state that includes every command acknowledged before, at the ledger
// time that the leader would stamp.
func (c *cluster) readKey() {
	n := c.leader()
	if n == nil || !n.serving || len(c.w.oracle.keys.keys) == 0 {
		return
	}
	r := &keyRead{id: c.w.key(pick(c.w, principals...), pick(c.w, namespaceOfWork, namespaceOfJobs))}
	if k := c.w.oracle.keys.keys[r.id]; k != nil && k.result != nil && k.result.told {
		r.want = k.result
	}
	number := c.number()
	n.reads[number] = clusterRead{asked: c.acked, key: r}
	n.must(n.core.Read(number), "reading")
	n.effects()
}

// answerKey checks a read: it shows what a client was told before it was asked, unless that is over.
func (n *member) answerKey(r *keyRead) {
	if !n.serving {
		return
	}
	now, o := n.stamp(), n.w.oracle.keys
	got, err := n.m.View(n.state).Keyed(&r.id, now)
	if err != nil && !errors.Is(err, machine.ErrNotFound) {
		if n.must(err, "reading a key"); !n.up {
			return
		}
	}
	n.c.met("keys read")
	if r.want == nil || o.keys[r.id].result != r.want || now >= r.want.expires {
		return
	}
	n.c.met("results read")
	if got == nil || got.State != r.want.state || got.Token != r.want.token {
		o.fail(&r.id, "node %d reads %+v, and a client was told %+v", n.id, got, r.want)
	}
}

// keyID returns the key that a command is about, or nil.
func (c *command) keyID() *machine.KeyedID {
	switch {
	case c.keyed != nil:
		return &c.keyed.ID
	case c.job != nil:
		return &c.job.ID
	}
	return nil
}

// auditKeys compares the keyed records of a state with the model's.
func (w *world) auditKeys(v machine.View) {
	m := w.oracle.model
	seen := 0
	for after, more := []byte(nil), true; more; more = after != nil {
		var err error
		after, err = v.VisitKeyedStates(after, 100, func([]byte, keyed.State) { seen++ })
		w.must(err, "reading the keys")
	}
	if seen != len(m.Keys) {
		w.fail(nil, "%d keyed records, the model has %d", seen, len(m.Keys))
	}
	inOrder := slices.SortedFunc(maps.Keys(m.Keys), func(a, b machine.KeyedID) int {
		return bytes.Compare(a.TableKey(), b.TableKey())
	})
	for _, id := range inOrder {
		want := m.Key(id)
		got, err := v.Keyed(&id, m.Time)
		if want == nil {
			if err == nil {
				w.oracle.keys.fail(&id, "the record is %+v, the model's says nothing", got)
			}
			continue
		}
		w.must(err, "reading a key")
		whole, err := v.ReadAttachments(got)
		w.must(err, "reading what a key has stored")
		if !whole || ledgermodel.DifferRecord(&got.Record, want) || !bytes.Equal(got.Response, want.Response) ||
			!bytes.Equal(got.Checkpoint, want.Checkpoint) {
			w.oracle.keys.fail(&id, "the record is %+v, the model's %+v", got.Record, *want)
		}
	}
}
