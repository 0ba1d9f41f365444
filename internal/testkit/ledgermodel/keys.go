package ledgermodel

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	day = 24 * 3_600 * second

	outage       = 10 * second // a pause of ledger time that is longer may have kept owners from renewing
	outageGrace  = 30 * second // the minimum of every lease after an outage
	unknownTTL   = 30 * day    // of an unknown outcome
	unclaimed    = 30 * day    // from the end of a lease on, a key waits for its taker
	tombstoneTTL = 600 * second
	mostAttempts = 32 // ended, of one key, whose copies may still come
)

// Key is what the ledger has of an idempotency key.
type Key struct {
	// Record is what an outcome shows. The model uses no method of it, and keeps nothing in Past.
	Record keyed.Record
	// Ended are the owners that are over, and until when a copy of their Reserve is valid.
	Ended   map[keyed.AttemptID]int64
	indexed int64 // the time under which the expiry index has it
}

// encodedKey is what the order of a pass goes by.
func encodedKey(id *machine.KeyedID) string {
	b := []byte(Name{id.Scope, ""}.encoded())
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(id.Principal))), id.Principal...)
	b = append(append(b, byte(len(id.Namespace))), id.Namespace...)
	return string(append(b, id.Key[:]...))
}

// Speaks reports whether the key has a live record. Otherwise it is free, even if a record exists: for the attempts
// that have ended, or because no pass has removed it yet.
func (m *Model) Speaks(k *Key) bool {
	if k == nil || k.Record.State == keyed.Released {
		return false
	}
	return k.Record.State == keyed.Pending || m.Time < forgotten(&k.Record)
}

// forgotten is when the key of a record becomes free.
func forgotten(r *keyed.Record) int64 {
	from := r.Completed
	if r.Completed == 0 {
		from = r.Expires - unknownTTL
	}
	if r.ForgetAfter == int64(keyed.Never) {
		return r.ForgetAfter
	}
	return max(r.Expires, from+r.ForgetAfter)
}

// Key returns what a reader sees of a key at ledger time; nil for a free one.
func (m *Model) Key(id machine.KeyedID) *keyed.Record {
	k := m.Keys[id]
	if k == nil {
		return nil
	}
	seen := Model{Time: m.Time, leaseFloor: m.leaseFloor, floorSet: m.floorSet, Fired: map[string]int{}}
	now := &Key{Record: k.Record, Ended: k.Ended}
	seen.overtake(now)
	if !seen.Speaks(now) {
		return nil
	}
	return &now.Record
}

// Ask returns the outcome of a command on a key, or of a keyed write with a live record, at a ledger time. It changes
// nothing. The Code is 0 for any other write.
func (m *Model) Ask(command any, now int64) (out machine.Outcome) {
	asked := *m
	asked.Keys, asked.Fired = maps.Clone(m.Keys), map[string]int{}
	asked.advance(now)
	asked.Index++
	own := func(id machine.KeyedID) *Key {
		if m.Keys[id] == nil {
			return nil
		}
		k := *m.Keys[id]
		asked.Keys[id] = &k
		return &k
	}
	switch c := command.(type) {
	case *machine.KeyedCommand:
		own(c.ID)
		out = asked.keyed(c)
	case *machine.KeyedWrite:
		if asked.Speaks(own(c.ID)) {
			out = asked.keyedWrite(c)
		}
	}
	return out
}

// LeaseEnd is when the owner may be robbed.
func (m *Model) LeaseEnd(k *Key) int64 {
	end := k.Record.LeaseEnd
	if k.Record.LeaseSet > m.Time { // the clock has been set back since
		end = m.Time
	}
	if k.Record.LeaseSet < m.floorSet { // the ledger was out of reach since
		end = max(end, m.leaseFloor)
	}
	return end
}

// unclaimedEnd is until when a key whose lease is over waits for its taker.
func (m *Model) unclaimedEnd(k *Key) int64 { return max(m.LeaseEnd(k), k.Record.LeaseEnd+unclaimed) }

// due is when a pass has to look at the record.
func (m *Model) due(k *Key) int64 {
	r := &k.Record
	switch {
	case r.State == keyed.Pending && r.Policy == keyed.TakeOver:
		return m.unclaimedEnd(k)
	case r.State == keyed.Pending:
		return m.LeaseEnd(k)
	}
	last := r.ValidUntil
	for _, until := range k.Ended {
		last = max(last, until)
	}
	if r.State == keyed.Expired {
		return max(forgotten(r), last+1)
	}
	return max(r.Expires, last+1) // at the last moment itself a copy is still valid
}

// overtake makes the outcome unknown when its time has come, or drops a result that has expired from a key that has
// not, and reports whether it has.
func (m *Model) overtake(k *Key) bool {
	r := &k.Record
	if expired := r.State != keyed.Pending && r.State != keyed.Released && r.State != keyed.Expired &&
		m.Time >= r.Expires; expired && m.Speaks(k) {
		r.State = keyed.Expired
		r.Response, r.ResponseSize, r.ResponseSum = nil, 0, [32]byte{}
		r.Checkpoint, r.CheckpointSize = nil, 0
		m.Fired["expired, not forgotten"]++
		return true
	}
	if r.State != keyed.Pending || m.Time < m.LeaseEnd(k) ||
		r.Policy == keyed.TakeOver && m.Time < m.unclaimedEnd(k) {
		return false
	}
	r.State, r.Expires = keyed.Indeterminate, m.Time+unknownTTL
	m.Fired["lease over, outcome unknown"]++
	return true
}

// stillValid returns the ended attempts of which a copy may come and be valid, those of a record that is followed by
// another ownership included, and when the first of these is over.
func (m *Model) stillValid(k *Key) (ended map[keyed.AttemptID]int64, first int64) {
	ended = map[keyed.AttemptID]int64{}
	if k == nil {
		return ended, 0
	}
	for id, until := range k.Ended {
		if until >= m.Time {
			ended[id] = until
		}
	}
	if k.Record.ValidUntil >= m.Time {
		ended[k.Record.AttemptID] = k.Record.ValidUntil
	}
	for _, until := range ended {
		if first == 0 || until < first {
			first = until
		}
	}
	return ended, first
}

// KeysOf counts the records of a principal, those included that say nothing any more.
func (m *Model) KeysOf(scope machine.Scope, principal string) (n uint64) {
	for id := range m.Keys {
		if id.Scope == scope && id.Principal == principal {
			n++
		}
	}
	return n
}

// keyKinds are the names of commands on keys.
var keyKinds = map[keyed.Kind]string{
	keyed.Reserve: "reserve", keyed.Complete: "complete", keyed.Reject: "reject", keyed.Release: "release",
	keyed.Heartbeat: "heartbeat", keyed.Checkpoint: "checkpoint", keyed.Resolve: "resolve", keyed.Purge: "purge",
}

// keyed decides a command on a key.
func (m *Model) keyed(c *machine.KeyedCommand) machine.Outcome {
	k := m.Keys[c.ID]
	if k == nil && c.Kind == keyed.Reserve && m.KeysOf(c.ID.Scope, c.ID.Principal) >= c.MaxKeys {
		return machine.Outcome{Code: machine.TooManyKeys}
	}
	changed := k != nil && m.overtake(k)
	answer := &machine.KeyedOutcome{}
	var code machine.Code
	switch {
	case c.Kind == keyed.Reserve:
		var acquired bool
		code, acquired = m.reserve(c, answer)
		changed = changed || acquired
		k = m.Keys[c.ID]
	case !m.Speaks(k):
		code = absent(k, c)
	default:
		var done bool
		code, done = m.command(k, c)
		changed = changed || done
	}
	m.indexKey(k, changed)
	if m.Speaks(k) {
		answer.Record = &machine.KeyedRecord{Record: k.Record}
	}
	m.Fired[keyKinds[c.Kind]+": "+code.String()]++
	return machine.Outcome{Code: code, Keyed: answer}
}

// indexKey moves the entry of the expiry index if it is too late.
func (m *Model) indexKey(k *Key, changed bool) {
	if due := int64(0); changed {
		if due = m.due(k); due < k.indexed {
			k.indexed = due
		}
	}
}

// addKey makes a record.
func (m *Model) addKey(id machine.KeyedID, r keyed.Record) *Key {
	k := &Key{Record: r, Ended: map[keyed.AttemptID]int64{}}
	m.Keys[id] = k
	k.indexed = m.due(k)
	m.grow(3)
	return k
}

// reserve decides a Reserve: validity, then another request, then the state.
func (m *Model) reserve(c *machine.KeyedCommand, answer *machine.KeyedOutcome) (code machine.Code, changed bool) {
	k := m.Keys[c.ID]
	if m.Time > c.ValidUntil {
		return machine.Keyed(keyed.Stale), false
	}
	taken := m.Speaks(k)
	if taken {
		switch r := &k.Record; {
		case r.State == keyed.Written || r.Fingerprint != c.Fingerprint:
			return machine.Keyed(keyed.Mismatch), false
		case r.State == keyed.Indeterminate:
			return machine.Keyed(keyed.Unknown), false
		case r.State == keyed.Expired:
			return machine.Keyed(keyed.ResultExpired), false
		case r.State != keyed.Pending:
			return machine.Keyed(keyed.Replay), false
		case r.AttemptID == c.AttemptID: // its answer was lost
			r.LeaseEnd, r.LeaseSet = max(m.LeaseEnd(k), m.Time+c.Lease), m.Time
			m.Fired["own token again"]++
			return machine.Keyed(keyed.Acquired), true
		case m.Time < m.LeaseEnd(k):
			answer.RetryAfter = m.LeaseEnd(k) - m.Time
			return machine.Keyed(keyed.InFlight), false
		}
	}
	ended, first := m.stillValid(k)
	_, over := ended[c.AttemptID]
	if k != nil && k.Record.State == keyed.Released && k.Record.AttemptID == c.AttemptID &&
		m.Time < k.Record.Expires {
		over = true // its tombstone
	}
	if over {
		return machine.Keyed(keyed.LeaseLost), false
	}
	if len(ended) >= mostAttempts {
		answer.RetryAfter = first - m.Time
		m.Fired["too many attempts"]++
		return machine.Keyed(keyed.InFlight), false
	}
	r := keyed.Record{Fingerprint: c.Fingerprint, Created: m.Time}
	if taken {
		r = k.Record // with its checkpoint, for the next owner
		m.Fired["taken over"]++
	}
	r.State, r.Token, r.AttemptID, r.Policy, r.TTL = keyed.Pending, m.Index, c.AttemptID, c.Policy, c.TTL
	r.LeaseEnd, r.LeaseSet, r.ValidUntil, r.ForgetAfter = m.Time+c.Lease, m.Time, c.ValidUntil, c.ForgetAfter
	r.Attempts++
	if k == nil {
		m.addKey(c.ID, r)
	} else {
		k.Record, k.Ended = r, ended
	}
	return machine.Keyed(keyed.Acquired), true
}

// absent answers a command on a free key.
func absent(k *Key, c *machine.KeyedCommand) machine.Code {
	switch {
	case c.Kind == keyed.Purge || c.Kind == keyed.Resolve:
		return machine.Keyed(keyed.NotFound)
	case c.Kind == keyed.Release && k != nil && k.Record.State == keyed.Released &&
		k.Record.AttemptID == c.AttemptID && k.Record.Token == c.Token:
		return machine.Keyed(keyed.OK) // released before
	}
	return machine.Keyed(keyed.LeaseLost)
}

// command decides any command except Reserve on a key with a live record.
func (m *Model) command(k *Key, c *machine.KeyedCommand) (code machine.Code, changed bool) {
	r := &k.Record
	final := r.State != keyed.Pending && r.State != keyed.Indeterminate
	switch {
	case c.Kind == keyed.Resolve && r.State == keyed.Expired:
		return machine.Keyed(keyed.ResultExpired), false
	case c.Kind == keyed.Resolve && r.State == keyed.Pending, c.Kind == keyed.Purge && !final:
		return machine.Keyed(keyed.NotFinal), false
	case c.Kind == keyed.Resolve:
		return m.finish(k, c, c.State)
	case c.Kind == keyed.Purge:
		m.release(k)
		return machine.Keyed(keyed.OK), true
	case c.Token != r.Token || c.AttemptID != r.AttemptID:
		if c.Kind == keyed.Complete && c.Token < r.Token {
			m.Fired["completion after a takeover"]++
		}
		return machine.Keyed(keyed.LeaseLost), false
	case r.State == keyed.Expired:
		return machine.Keyed(keyed.LeaseLost), false
	case c.Kind == keyed.Complete:
		return m.finish(k, c, keyed.Committed)
	case c.Kind == keyed.Reject:
		return m.finish(k, c, keyed.Rejected)
	case r.State != keyed.Pending:
		return machine.Keyed(keyed.LeaseLost), false
	}
	switch c.Kind {
	case keyed.Release:
		m.release(k)
	case keyed.Heartbeat:
		end := max(m.LeaseEnd(k), m.Time+c.Lease)
		if c.Lease == 0 { // the owner gives up
			end = min(m.LeaseEnd(k), m.Time)
		}
		r.LeaseEnd, r.LeaseSet = end, m.Time
		if c.Lease == 0 {
			m.overtake(k)
		}
	case keyed.Checkpoint:
		r.Checkpoint, r.CheckpointSize = c.Data, uint64(len(c.Data))
	}
	return machine.Keyed(keyed.OK), true
}

// finish settles a key. Only the same answer may come again.
func (m *Model) finish(k *Key, c *machine.KeyedCommand, as keyed.State) (code machine.Code, changed bool) {
	r := &k.Record
	sum := sha256.Sum256(c.Response)
	switch r.State {
	case keyed.Committed, keyed.Rejected, keyed.Written:
		if r.State == as && r.ResponseSum == sum {
			return machine.Keyed(keyed.OK), false
		}
		return machine.Keyed(keyed.AlreadyCompleted), false
	case keyed.Indeterminate:
		m.Fired["unknown outcome settled"]++
	default:
		if m.Time >= m.LeaseEnd(k) {
			m.Fired["settled behind its lease"]++
		}
	}
	if c.TTL != 0 {
		r.TTL = c.TTL
	}
	r.State, r.Completed, r.Expires = as, m.Time, m.Time+r.TTL
	r.Response, r.ResponseSize, r.ResponseSum = c.Response, uint64(len(c.Response)), sum
	r.Checkpoint, r.CheckpointSize = nil, 0
	return machine.Keyed(keyed.OK), true
}

// release makes a key free, and remembers its attempt.
func (m *Model) release(k *Key) {
	k.Record = keyed.Record{
		State: keyed.Released, Token: k.Record.Token, AttemptID: k.Record.AttemptID, ValidUntil: k.Record.ValidUntil,
		Created: k.Record.Created, Completed: m.Time, Expires: m.Time + tombstoneTTL,
	}
}

// keyedWrite decides a write that commits once for its key.
func (m *Model) keyedWrite(w *machine.KeyedWrite) (out machine.Outcome) {
	k := m.Keys[w.ID]
	hash, _ := machine.HashOperations(nil, w.Operations)
	request := keyed.Fingerprint{}
	copy(request.Digest[:], hash[:])
	if m.Speaks(k) {
		x := m.Transactions[k.Record.Token]
		switch {
		case k.Record.State != keyed.Written || k.Record.Fingerprint != request:
			out.Code = machine.IdempotencyKeyReused
		case k.Record.Token < m.Horizon:
			out.Code = machine.AlreadyCommitted
			out.Receipt = machine.Receipt{LedgerID: x.Receipt.LedgerID, Index: x.Receipt.Index}
		default:
			out.Code, out.Receipt = machine.Replayed, x.Receipt
			out.Receipt.Replayed = true
		}
		return out
	}
	if k == nil && m.KeysOf(w.ID.Scope, w.ID.Principal) >= w.MaxKeys {
		return machine.Outcome{Code: machine.TooManyKeys}
	}
	c := m.tryOperations(w.ID.Scope, w.Operations, &out)
	if out.Code != 0 {
		return out
	}
	c.keep()
	x := m.transact(w.ID.Scope, machine.Receipt{Actor: w.Actor, RequestHash: hash, Versions: c.versions}, w.Operations)
	x.Stream.ID, x.Keyed = w.ClientID, w
	r := keyed.Record{
		State: keyed.Written, Token: m.Index, Fingerprint: request, TTL: w.TTL,
		Created: m.Time, Completed: m.Time, Expires: m.Time + w.TTL,
	}
	if k == nil {
		m.addKey(w.ID, r)
	} else {
		ended, _ := m.stillValid(k)
		k.Record, k.Ended = r, ended
		m.indexKey(k, true)
	}
	out.Code, out.Receipt = machine.Committed, x.Receipt
	return out
}

// dueKeys returns the keys whose entry in the expiry index is due.
func (m *Model) dueKeys() (due []machine.KeyedID) {
	for id, k := range m.Keys {
		if k.indexed <= m.Time {
			due = append(due, id)
		}
	}
	return due
}

// passKey applies an eviction pass to a key: a record that no command would see any more is removed.
func (m *Model) passKey(id machine.KeyedID) {
	k := m.Keys[id]
	m.overtake(k)
	if m.Speaks(k) || m.due(k) > m.Time {
		k.indexed = m.due(k)
		m.Fired["key put back"]++
		return
	}
	delete(m.Keys, id)
	m.Fired["key removed"]++
}

// differOfKey says how the records of two outcomes differ. Attempts that have ended are in no answer.
func differOfKey(got, want *machine.KeyedOutcome) bool {
	if got == nil || want == nil {
		return got != want
	}
	if got.RetryAfter != want.RetryAfter || (got.Record == nil) != (want.Record == nil) {
		return true
	}
	return got.Record != nil && DifferRecord(&got.Record.Record, &want.Record.Record)
}

// DifferRecord reports whether two records differ in what the model has of them. A long response, or checkpoint, may
// be left out of either.
func DifferRecord(a, b *keyed.Record) bool {
	x, y := *a, *b
	x.Past, x.Response, x.Checkpoint, y.Past, y.Response, y.Checkpoint = nil, nil, nil, nil, nil, nil
	contents := func(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && !bytes.Equal(a, b) }
	return !reflect.DeepEqual(x, y) || contents(a.Response, b.Response) || contents(a.Checkpoint, b.Checkpoint)
}

// describeKey is an outcome's record for people.
func describeKey(out *machine.KeyedOutcome) string {
	switch {
	case out == nil:
		return ""
	case out.Record == nil:
		return fmt.Sprintf("\n  no record, retry after %v", time.Duration(out.RetryAfter))
	}
	return fmt.Sprintf("\n  retry after %v, %+v", time.Duration(out.RetryAfter), out.Record.Record)
}
