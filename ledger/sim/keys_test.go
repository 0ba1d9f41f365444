package sim

import (
	"bytes"
	"fmt"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	namespaceOfWork  = "work"
	namespaceOfJobs  = "jobs"
	mostKeys         = 1_000 // of a principal; the simulated ones stay far below
	keysOfAPrincipal = 3
)

var principals = []string{"user:1", "user:2", "user:21"}

func (w *world) keyedCommand(c *machine.KeyedCommand) *command {
	w.must(c.Validate(), "a mistake that no server would let pass")
	return &command{keyed: c, encoded: machine.AppendKeyed(nil, c)}
}

func (w *world) jobCommand(j *machine.KeyedWrite) *command {
	w.must(j.Validate(), "a mistake that no server would let pass")
	return &command{job: j, encoded: machine.AppendKeyedWrite(nil, j)}
}

// key returns the identity of one of the few keys of a principal.
func (w *world) key(principal, namespace string) machine.KeyedID {
	return machine.KeyedID{
		Scope: pick(w, scopes[:2]...), Namespace: namespace, Principal: principal,
		Key: [32]byte{byte(1 + w.rng.IntN(keysOfAPrincipal))},
	}
}

// caller repeats a request without a session until it is answered.
type caller struct {
	w       *world
	calls   int
	waiting *command // nil: nothing is open
}

func (c *caller) unsettled() string {
	if c.waiting == nil {
		return ""
	}
	return "unanswered: " + describe(c.waiting)
}

// call sends a request until it is answered, and then calls answered, with how often it was sent.
func (c *caller) call(request *command, answered func(out *machine.Outcome, sent int)) {
	c.calls++
	call, sent := c.calls, 0
	c.waiting = request
	var send func()
	send = func() {
		sent++
		c.w.datagrams([]*command{request}, func(_ int, a answer) {
			if a.kind != decided {
				return
			}
			c.w.oracle.keys.told(request, &a.out)
			if c.waiting == nil || c.calls != call {
				return
			}
			c.waiting = nil
			answered(&a.out, sent)
		})
		c.w.after((c.w.plan.latency*3+50*millisecond)<<min(sent-1, 5), func() {
			if c.waiting != nil && c.calls == call {
				send()
			}
		})
	}
	send()
}

// hangUp gives up what was called, as a process that dies does. The requests may still arrive.
func (c *caller) hangUp() { c.calls, c.waiting = c.calls+1, nil }

// owner reserves a key, works, and completes or rejects it: in time or too late, with heartbeats or without, or it dies
// on the way. Several owners have the same principal, and so the same keys.
type owner struct {
	caller

	principal string
	id        machine.KeyedID
	reserved  *machine.KeyedCommand
	token     uint64
}

func (o *owner) start() { o.w.after(o.w.upTo(second), o.act) }

func (o *owner) act() {
	w := o.w
	if w.calm {
		return
	}
	o.id = w.key(o.principal, namespaceOfWork)
	c := &machine.KeyedCommand{ID: o.id, Actor: "client:owner", MaxKeys: mostKeys}
	c.Kind, c.AttemptID = keyed.Reserve, w.uuid()
	c.Fingerprint = keyed.Fingerprint{Algorithm: 1, Digest: [32]byte{o.id.Key[0]}}
	if w.chance(20) {
		c.Fingerprint.Digest[1] = 1 // another request under the same key
	}
	c.ValidUntil = max(w.oracle.model.Time, epochStart) + w.upTo(10*second)
	c.Lease, c.TTL = pick(w, 200*millisecond, 500*millisecond, 2*second), pick(w, second, 5*second, 60*second)
	if w.chance(4) {
		c.ForgetAfter = c.TTL + w.upTo(20*second)
	}
	// Each key has a policy that most of its owners ask for.
	if c.Policy = keyed.BecomeIndeterminate; o.id.Key[0] != 1 != w.chance(10) {
		c.Policy = keyed.TakeOver
	}
	o.reserved = c
	o.reserve()
}

func (o *owner) rest() { o.w.after(o.w.upTo(100*millisecond), o.act) }

func (o *owner) reserve() {
	w := o.w
	o.call(w.keyedCommand(o.reserved), func(out *machine.Outcome, _ int) {
		switch out.Code {
		case machine.Keyed(keyed.Acquired):
			o.token = out.Keyed.Record.Token
			if o.token != out.Index {
				w.counted["keys: own token behind a lost answer"]++
			}
			o.work()
		case machine.Keyed(keyed.InFlight):
			if !w.calm && w.chance(2) {
				w.after(min(out.Keyed.RetryAfter, second), o.reserve)
				return
			}
			o.rest()
		case machine.Keyed(keyed.Unknown):
			if w.chance(3) {
				o.resolve()
				return
			}
			o.rest()
		case machine.Keyed(keyed.Replay):
			if w.chance(10) {
				purge := &machine.KeyedCommand{ID: o.id, Actor: "user:operator"}
				purge.Kind = keyed.Purge
				o.call(w.keyedCommand(purge), o.ended)
				return
			}
			o.rest()
		default:
			o.rest()
		}
	})
}

func (o *owner) ended(*machine.Outcome, int) { o.rest() }

// own returns a command of the owner.
func (o *owner) own(kind keyed.Kind) *machine.KeyedCommand {
	c := &machine.KeyedCommand{ID: o.id, Actor: o.reserved.Actor}
	c.Kind, c.AttemptID, c.Token = kind, o.reserved.AttemptID, o.token
	return c
}

// work is what happens between Reserve and its end.
func (o *owner) work() {
	w := o.w
	lease := o.reserved.Lease
	switch w.rng.IntN(8) {
	case 0, 1:
		w.after(w.upTo(lease/2), func() { o.finish(keyed.Complete) })
	case 2:
		w.after(w.upTo(lease/2), func() { o.finish(keyed.Reject) })
	case 3: // too late, if nothing keeps the lease
		w.after(lease+w.upTo(2*second), func() { o.finish(keyed.Complete) })
	case 4:
		o.renew(1+w.rng.IntN(4), func() { o.finish(keyed.Complete) })
	case 5: // nothing was done
		o.call(w.keyedCommand(o.own(keyed.Release)), o.ended)
	case 6:
		c := o.own(keyed.Checkpoint)
		c.Data = o.content("half of the work", 600)
		o.call(w.keyedCommand(c), func(*machine.Outcome, int) { o.finish(keyed.Complete) })
	default: // it dies, perhaps with a request under way
		if w.chance(2) {
			o.finish(keyed.Complete)
			w.after(w.upTo(w.plan.latency), func() { o.hangUp(); o.rest() })
			return
		}
		o.rest()
	}
}

// renew sends heartbeats, as long as they say that the lease is kept.
func (o *owner) renew(times int, then func()) {
	o.w.after(o.reserved.Lease/3, func() {
		c := o.own(keyed.Heartbeat)
		c.Lease = o.reserved.Lease
		o.call(o.w.keyedCommand(c), func(out *machine.Outcome, _ int) {
			switch {
			case out.Code == machine.Keyed(keyed.OK) && times > 1:
				o.renew(times-1, then)
			case out.Code == machine.Keyed(keyed.OK):
				then()
			default:
				o.w.counted["keys: owner stopped by a heartbeat"]++
				o.rest()
			}
		})
	})
}

// content is what only this owner of this key stores.
func (o *owner) content(what string, size int) []byte {
	b := fmt.Appendf(nil, "%s of %s/%x under %d", what, o.id.Principal, o.id.Key[:1], o.token)
	if o.w.chance(4) {
		b = append(b, bytes.Repeat([]byte("."), size)...)
	}
	return b
}

func (o *owner) finish(as keyed.Kind) {
	c := o.own(as)
	c.Response, c.TTL = o.content("result", 600), pick(o.w, 0, second, 20*second)
	o.call(o.w.keyedCommand(c), o.ended)
}

// resolve settles an unknown outcome, as a person does who has looked.
func (o *owner) resolve() {
	c := &machine.KeyedCommand{ID: o.id, Actor: "user:operator"}
	c.Kind, c.State = keyed.Resolve, pick(o.w, keyed.Committed, keyed.Rejected)
	c.Response, c.TTL = o.content("finding", 600), pick(o.w, second, 20*second)
	o.call(o.w.keyedCommand(c), o.ended)
}

// jobber makes keyed writes: new ones, the last one again, and another one under its key.
type jobber struct {
	caller

	principal string
	number    int
	last      *command
}

func (j *jobber) start() { j.w.after(j.w.upTo(second), j.act) }

func (j *jobber) act() {
	w := j.w
	if w.calm {
		return
	}
	if j.last == nil || w.chance(2) {
		j.last = j.job(w.key(j.principal, pick(w, namespaceOfJobs, namespaceOfJobs, namespaceOfJobs, namespaceOfWork)))
	}
	request := j.last
	if w.chance(8) {
		request = j.job(j.last.job.ID)
	}
	j.call(request, func(*machine.Outcome, int) { w.after(w.upTo(300*millisecond), j.act) })
}

func (j *jobber) job(id machine.KeyedID) *command {
	w := j.w
	j.number++
	payload := fmt.Appendf(nil, "job %d of %s", j.number, id.Principal)
	c := &machine.KeyedWrite{
		ID: id, Actor: "client:jobber", TTL: pick(w, second, 5*second, 60*second), MaxKeys: mostKeys,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: payload}},
	}
	if w.chance(3) {
		c.ClientID = "web"
		op := machine.Operation{Kind: machine.OpSetEntity, Key: []byte(pick(w, sharedKeys...)), Value: payload}
		op.Condition.Kind = pick(w, machine.ConditionNone, machine.ConditionNotExists, machine.ConditionMustExist)
		c.Operations = append(c.Operations, op)
	}
	return w.jobCommand(c)
}

// origin returns what decides whether other commands may overtake this one.
func (c *command) origin() engine.Origin {
	switch {
	case c.write != nil:
		return engine.Origin{Scope: c.write.Scope, Actor: c.write.Actor}
	case c.open != nil:
		return engine.Origin{Scope: c.open.Scope, Actor: c.open.Actor}
	case c.job != nil:
		return engine.Origin{Scope: c.job.ID.Scope, Actor: c.job.Actor}
	case c.keyed != nil:
		return engine.Origin{Scope: c.keyed.ID.Scope, Actor: c.keyed.Actor}
	}
	return engine.Origin{}
}

// work is what an entry counts for a command.
func (c *command) work() int {
	switch {
	case c.write != nil:
		return engine.CommandWork(&c.retry)
	case c.job != nil:
		return engine.Work(c.job.Operations)
	}
	return 1
}
