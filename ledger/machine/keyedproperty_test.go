package machine

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/rapidtest"
)

// keyedHistory applies random commands on a few keys, and decides each of them a
// second time by the pure function alone, on records in a map.
type keyedHistory struct {
	*rapid.T
	mem     *Memory
	m       *Machine
	records map[KeyedID]*keyed.Record
	now     int64
	log     []Logged
	sent    []*KeyedCommand
}

// Keyed commands give what the transitions say, whatever log entries they stand in
// and wherever the machine restarts; no response, count or index entry is left
// behind; and the state answers without the log what the log would.
func TestKeyedRecordsEqualTheirTransitions(t *testing.T) {
	t.Parallel()
	fired := map[Code]int{}
	rapidtest.CheckUntil(t, func() string {
		for code := KeyedOK; code <= KeyedNotFinal; code++ {
			if fired[code] == 0 {
				return fmt.Sprintf("%v has not happened", code)
			}
		}
		return ""
	}, func(t *rapid.T) {
		config := testConfig()
		config.EvictionInterval, config.EvictionLimit = pick[uint64](t, "interval", 1, 3, 10),
			pick[uint64](t, "limit", 1, 2, 50)
		h := &keyedHistory{T: t, mem: NewMemory(), records: map[KeyedID]*keyed.Record{}, now: testStart}
		h.reopen()
		h.apply(AppendCreate(nil, testLedger, 77, config))
		for range rapid.IntRange(5, 40).Draw(t, "entries") {
			h.step(fired)
		}
		var problems []Problem
		if _, err := h.m.Audit(h.mem, func(p Problem) { problems = append(problems, p) }, nil); err != nil ||
			len(problems) > 0 {
			t.Fatalf("the audit reports %v, %v", problems, err)
		}
		for name, entries := range map[string][]Logged{"as it was": h.log, "one by one": SplitLog(h.log),
			"in larger groups": MergeLog(h.log)} {
			mem, m := ReplayLog(h, entries)
			if m.head.digest != h.m.head.digest {
				t.Fatalf("invariant 8: applied %s, the digest is another", name)
			}
			for _, table := range []Table{TableKeyed, TableAttachments, TablePrincipals, TableExpiry} {
				if fmt.Sprint(mem.tables[table]) != fmt.Sprint(h.mem.tables[table]) {
					t.Fatalf("invariant 8: applied %s, table %d is another", name, table)
				}
			}
		}
	})
}

func (h *keyedHistory) reopen() {
	m, err := Open(h.mem)
	if err != nil {
		h.Fatal(err)
	}
	h.m = m
}

func (h *keyedHistory) apply(commands ...[]byte) []Outcome {
	h.log = append(h.log, Logged{Time: h.now, Commands: commands})
	out, err := h.m.Apply(h.mem, AppendEntry(nil, h.now, commands...))
	if err != nil {
		h.Fatal(err)
	}
	return out
}

func (h *keyedHistory) step(fired map[Code]int) {
	if later := pick[int64](h.T, "seconds", 0, 0, 1, 5, 70, 700, 4_000_000) * second; later > 0 {
		for _, step := range []int64{later, 9 * second, 9 * second, 9 * second, 9 * second} {
			h.now += step
			h.apply(AppendTick(nil)) // so that the state answers at the time of the log
			h.afterPass()
			if rapid.Bool().Draw(h.T, "at once") {
				break // else what an outage added to the leases passes
			}
		}
	}
	c := h.command()
	h.sent = append(h.sent, c)
	answer, answered, err := h.m.View(h.mem).AnswerKeyed(c, h.now)
	if err != nil {
		h.Fatal(err)
	}
	at := h.m.head.moment()
	at.Token++
	next, want := keyed.Transition(h.records[c.ID], &c.Command, at)
	out := h.apply(AppendKeyed(nil, c))[0]
	fired[out.Code]++
	if out.Code != keyedCodes+Code(want.Code) || out.Keyed.RetryAfter != int64(want.RetryAfter) {
		h.Fatalf("%v, want code %d", out.Code, want.Code)
	}
	if answered && answer.Code != out.Code {
		h.Fatalf("the state answers %v, the log %v", answer.Code, out.Code)
	}
	if want.Changed {
		h.records[c.ID] = next
	}
	h.afterPass()
	h.compare()
	if rapid.IntRange(0, 4).Draw(h.T, "restart") == 0 {
		h.reopen()
	}
}

// afterPass takes over what a pass may have done: it moves records on that are due,
// and does nothing else.
func (h *keyedHistory) afterPass() {
	at := h.m.head.moment()
	for id, r := range h.records {
		e, err := loadKeyed(h.mem, id.TableKey())
		if err != nil {
			h.Fatal(err)
		}
		next, kept := keyed.Expire(r, at)
		switch {
		case e == nil && (kept || r.Due(at) > at.Now):
			h.Fatalf("a record was removed that is not due: %+v", r)
		case e == nil:
			delete(h.records, id)
		case e.State != r.State && next.State == e.State:
			h.records[id] = next
		}
	}
}

// compare compares every record with the map, with what is kept beside it.
func (h *keyedHistory) compare() {
	if got := len(h.mem.tables[TableKeyed].keys); got != len(h.records) {
		h.Fatalf("%d records, want %d", got, len(h.records))
	}
	for id, want := range h.records {
		e, err := loadKeyed(h.mem, id.TableKey())
		if err != nil || e == nil {
			h.Fatalf("%+v: %v, %v", id, e, err)
		}
		k := e.public(id)
		if whole, err := h.m.View(h.mem).ReadAttachments(k); err != nil || !whole {
			h.Fatalf("attachments of %+v: %t, %v", id, whole, err)
		}
		if !bytes.Equal(k.Record.Append(nil), want.Append(nil)) {
			h.Fatalf("the record is\n%+v, want\n%+v", k.Record, *want)
		}
	}
}

func (h *keyedHistory) command() *KeyedCommand {
	t := h.T
	if len(h.sent) > 0 && rapid.IntRange(0, 4).Draw(t, "copy") == 0 {
		return rapid.SampledFrom(h.sent).Draw(t, "of")
	}
	id := KeyedID{
		pick(t, "scope", Scope{"acme", ""}, Scope{"acme", "v"}, Scope{"other", ""}), pick(t, "namespace", "", "jobs"),
		pick(t, "principal", "p", "pq"),
		[32]byte{rapid.ByteRange(1, 2).Draw(t, "key")},
	}
	if len(h.records) > 0 && rapid.IntRange(0, 3).Draw(t, "known") > 0 {
		known := make([]KeyedID, 0, len(h.records))
		for _, c := range h.sent {
			if h.records[c.ID] != nil {
				known = append(known, c.ID)
			}
		}
		id = rapid.SampledFrom(known).Draw(t, "id")
	}
	c := reserveKey(id, rapid.ByteRange(1, 250).Draw(t, "attempt"), h.now)
	c.Policy = keyed.Policy(rapid.IntRange(0, 1).Draw(t, "policy"))
	c.Fingerprint.Digest[0] = pick[byte](t, "request", 7, 7, 7, 8)
	c.ValidUntil += pick[int64](t, "valid", 0, 0, -200*second)
	c.TTL = pick[int64](t, "ttl", 10, 1_000) * second
	if r := h.records[id]; r != nil && rapid.IntRange(0, 3).Draw(t, "own") > 0 {
		content := pick(t, "content", "", "short", longValue, string(bytes.Repeat([]byte("r"), maxInlineAttachment+1)))
		c = ownKey(keyed.Kind(rapid.IntRange(2, 8).Draw(t, "kind")), c, r.Token, []byte(content))
		c.AttemptID, c.State, c.TTL = r.AttemptID, keyed.Committed, pick[int64](t, "ttl", 0, 10)*second
	}
	return c
}
