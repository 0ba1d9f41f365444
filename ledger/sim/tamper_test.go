package sim

import (
	"encoding/binary"
	"errors"
	"math"

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
	believeTorn     bool // a torn record counts as written
	noResync        bool // data read after a kill counts as synced
	tornCheckpoint  bool // data and position of a checkpoint are written separately
	blocksUnsynced  bool // a checkpoint is taken before its blocks are synced
	truncateEarly   bool // the log is truncated before the checkpoint is durable
	dropUnconfirmed bool // files are removed before the archive has them
	horizonVolatile bool // files are removed before a checkpoint has the horizon
	valuesLeft      bool // live values are removed with their files
	archiveUnsynced bool // the archive confirms copies that it has not synced
	hastyClient     bool // a writer reports every refusal as final
	blindRecovery   bool // a writer recovers without expected_session
}

// singly reports whether a bug has to know which command is being applied.
func (b bugs) singly() bool { return b.noDeduplication || b.noFencing }

// tamper injects bugs between the machine and its state, so that the machine itself needs no switches.
type tamper struct {
	w       *world
	current *machine.Write // the command being applied, with bugs.singly
}

func (t *tamper) on() bool {
	b := t.w.bugs
	return b.noDeduplication || b.noFencing || b.windowOfOne || b.wallEviction
}

// entry records which command comes next.
func (t *tamper) entry(w *world, r record) []byte {
	t.w = w
	if w.bugs.singly() {
		t.current = w.oracle.commandsOf(r.index)[0].command.write
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
	switch bugs := t.w.bugs; {
	case bugs.windowOfOne && size > 1:
		_, n := binary.Uvarint(places)
		size, marks, places = 1, marks[:4], places[:n]
	case bugs.noDeduplication && t.current != nil && t.current.Sequence < math.MaxUint64 && t.current.Sequence <= last:
		last, size, marks, places = t.current.Sequence-1, 0, nil, nil
	case bugs.noFencing && t.current != nil && t.current.Session != 0 && t.current.Session < session:
		session = t.current.Session
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
