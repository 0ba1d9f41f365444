package sim

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
)

// bugs are the controls: deliberate bugs, each of which must be detected. Otherwise checks that find nothing prove
// nothing.
type bugs struct {
	noDeduplication bool // a stream forgets its commits
	noFencing       bool // a session is always the current one
	ackBeforeSync   bool // an entry is applied and answered while it is being written
	windowOfOne     bool // a stream keeps only its last receipt
	wallEviction    bool // an eviction pass also reads the wall clock
	wallStamp       bool // entries are stamped with the wall clock's time
	staleCache      bool // receipts are found by name instead of creation index
	tornCheckpoint  bool // data and position of a checkpoint are written separately
	blocksUnsynced  bool // a checkpoint is taken before its blocks are synced
	truncateEarly   bool // the log is truncated before the checkpoint is durable
	dropUnconfirmed bool // files are removed before the archive has them
	horizonVolatile bool // files are removed before a checkpoint has the horizon
	valuesLeft      bool // live values are removed with their files
	archiveUnsynced bool // the archive confirms copies that it has not synced
	hastyClient     bool // a writer reports every refusal as final
	blindRecovery   bool // a writer recovers without expected_session
	noTokens        bool // the token of a completion is not compared
	wallLease       bool // a lease also ends by the node's wall clock
	resultForgotten bool // what was completed is forgotten
	hastyTakeover   bool // an unknown outcome is given to the next owner
}

// ofKeys reports whether a bug is about keys.
func (b bugs) ofKeys() bool { return b.noTokens || b.wallLease || b.resultForgotten || b.hastyTakeover }

// singly reports whether a bug has to know which command is being applied.
func (b bugs) singly() bool { return b.noDeduplication || b.noFencing || b.ofKeys() }

// tamper injects bugs between the machine and its state, so that the machine itself needs no switches.
type tamper struct {
	w       *world
	current *command // the one being applied, with bugs.singly
}

func (t *tamper) on() bool {
	b := t.w.bugs
	return b.noDeduplication || b.noFencing || b.windowOfOne || b.wallEviction || b.ofKeys()
}

// entry records which command comes next.
func (t *tamper) entry(w *world, r record) []byte {
	t.w = w
	if w.bugs.singly() {
		t.current = w.oracle.commandsOf(r.index)[0].command
	}
	return r.data
}

func (n *node) writer(tx machine.Tx) machine.Tx {
	if n.tamper.on() {
		return tamperedTx{tx, &n.tamper}
	}
	return tx
}

func (n *node) reader(r machine.Reader) machine.Reader {
	if n.w.bugs.windowOfOne {
		n.tamper.w = n.w
		return tamperedTx{readOnly{r}, &n.tamper}
	}
	return r
}

// readOnly makes a Tx of a Reader; the missing methods are never called.
type readOnly struct{ machine.Reader }

var errReadOnly = errors.New("read only")

func (readOnly) Put(machine.Table, []byte, []byte) error { return errReadOnly }
func (readOnly) Delete(machine.Table, []byte) error      { return errReadOnly }

type tamperedTx struct {
	machine.Tx
	t *tamper
}

// Get implements machine.Reader.
func (x tamperedTx) Get(table machine.Table, key []byte) ([]byte, error) {
	b, err := x.Tx.Get(table, key)
	if err == nil && b != nil && table == machine.TableStreams {
		b = x.t.stream(b)
	}
	if err == nil && b != nil && table == machine.TableKeyed && x.t.current != nil && x.t.current.keyed != nil {
		return x.t.key(b, x.t.current.keyed)
	}
	return b, err
}

// Ascend implements machine.Reader.
func (x tamperedTx) Ascend(table machine.Table, from []byte, visit func(k, v []byte) bool) error {
	if table != machine.TableExpiry || !x.t.w.bugs.wallEviction {
		return x.Tx.Ascend(table, from, visit)
	}
	due := x.t.w.wall() - x.t.w.plan.config.ClientTTL
	return x.Tx.Ascend(table, from, func(k, v []byte) bool {
		stream := k[0] == 0
		if stream && int64(binary.BigEndian.Uint64(k[1:])) >= due {
			return false
		}
		return visit(k, v)
	})
}

// stream modifies the record of a stream according to the bug. ledger/FORMAT.md describes the layout.
func (t *tamper) stream(b []byte) []byte {
	rest := b[1:]
	number := func() uint64 {
		v, n := binary.Uvarint(rest)
		rest = rest[n:]
		return v
	}
	created, session, last, size := number(), number(), number(), number()
	times := rest[:16]
	rest = rest[16:]
	fenced := number()
	attempts := rest[:1+16*int(rest[0])]
	marks := rest[len(attempts):]
	places := marks[4*size:]
	marks = marks[:4*size]
	var current *machine.Write
	if t.current != nil {
		current = t.current.write
	}
	switch bugs := t.w.bugs; {
	case bugs.windowOfOne && size > 1:
		_, n := binary.Uvarint(places)
		size, marks, places = 1, marks[:4], places[:n]
	case bugs.noDeduplication && current != nil && current.Sequence < math.MaxUint64 && current.Sequence <= last:
		last, size, marks, places = current.Sequence-1, 0, nil, nil
	case bugs.noFencing && current != nil && current.Session != 0 && current.Session < session:
		session = current.Session
	default:
		return b
	}
	out := []byte{b[0]}
	for _, v := range []uint64{created, session, last, size} {
		out = binary.AppendUvarint(out, v)
	}
	out = append(out, times...)
	out = binary.AppendUvarint(out, fenced)
	out = append(append(append(out, attempts...), marks...), places...)
	return out
}

// key modifies the record of the key of a command according to the bug. Before it the row has a version, a time and the
// places of what is stored beside it.
func (t *tamper) key(row []byte, c *machine.KeyedCommand) ([]byte, error) {
	head := 1 + 8
	for range 2 {
		_, n := binary.Uvarint(row[head:])
		head += n
	}
	r, err := keyed.Decode(row[head:])
	if err != nil {
		return nil, err
	}
	switch bugs := t.w.bugs; {
	case bugs.noTokens && c.Kind == keyed.Complete && r.State == keyed.Pending:
		r.Token, r.AttemptID = c.Token, c.AttemptID
	case bugs.wallLease && c.Kind == keyed.Reserve && r.State == keyed.Pending && r.Policy == keyed.TakeOver &&
		t.w.wall() >= r.LeaseEnd:
		r.LeaseEnd = min(r.LeaseEnd, t.w.oracle.model.Time-1)
	case bugs.resultForgotten && c.Kind == keyed.Reserve && r.State == keyed.Committed:
		r.Expires = 0
	case bugs.hastyTakeover && c.Kind == keyed.Reserve && r.State == keyed.Pending &&
		t.w.oracle.model.Time >= r.LeaseEnd:
		r.Policy = keyed.TakeOver
	default:
		return row, nil
	}
	return r.Append(row[:head:head]), nil
}
