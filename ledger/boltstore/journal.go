package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// A large checkpoint of a large file is written in steps. bbolt keeps every page that a transaction changes in memory
// until it commits: where many records of a large state have changed, that is a page of 4 KiB and its records for each,
// some GiB together; and pages that the transaction replaces are free only after it, so that the file grows by as much.
// So the changes are first written sequentially to a separate bucket, the journal, in the transaction that makes the
// checkpoint durable. They are then applied to their tables in transactions of bounded size, the last of which removes
// the journal. Meanwhile the frozen overlay hides the tables.
//
// Changes are idempotent: after a crash, Open reads the journal into a frozen overlay, which hides the tables as it did
// before, and the next Flush begins by applying all of it again.

var journalBucket = []byte("journal")

// journalTable is the number that its records are sealed under. Like controlTable it is that of no table.
const journalTable machine.Table = 253

const (
	// defaultStepBytes is the most bytes of pages that a transaction of a large checkpoint changes, apart from its last
	// record. Until the commit they are in memory about twice, as records and as pages.
	defaultStepBytes = 64 << 20
	// defaultJournalFrom bounds it as well, because no transaction changes more pages than there are.
	defaultJournalFrom = 128 << 20
	// defaultJournalRun is the least number of bytes of changes in each record of the journal except the last.
	defaultJournalRun = 64 << 10
)

// changes are those of an overlay, by table and key.
type changes [machine.TableCount]entries

func (o *overlay) changes() *changes {
	var c changes
	for table := range machine.Table(machine.TableCount) {
		c[table] = o.table(table).sorted()
	}
	return &c
}

func (c *changes) len() (n int) {
	for i := range c {
		n += c[i].len()
	}
	return n
}

// first returns the first table that has changes, and these.
func (c *changes) first() (machine.Table, entries) {
	for i, e := range c {
		if e.len() > 0 {
			return machine.Table(i), e
		}
	}
	return 0, entries{}
}

// errLarge means that a checkpoint has to be written in steps.
var errLarge = errors.New("too much for one transaction")

// pacer lets a flush rest; see Options.Yield.
type pacer struct {
	yield func(worked time.Duration)
	began time.Time
}

func (s *Store) pacer() *pacer { return &pacer{s.yield, time.Now()} }

// rest yields if the flush has worked for so long.
func (p *pacer) rest(least time.Duration) {
	if p.yield == nil {
		return
	}
	if worked := time.Since(p.began); worked >= least {
		p.yield(worked)
		p.began = time.Now()
	}
}

// step makes one transaction durable, and rests. It returns how many bytes of pages it took.
func (s *Store) step(p *pacer, fill func(tx *bbolt.Tx) error) (pages int64, err error) {
	if pages, err = s.transact(fill); err == nil {
		p.rest(0)
	}
	return pages, err
}

// transact makes one transaction durable, with the checksums of its pages.
func (s *Store) transact(fill func(tx *bbolt.Tx) error) (pages int64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	tx, err := s.begin(true)
	if err != nil {
		return 0, err
	}
	defer func() {
		if p := recover(); p != nil {
			// bbolt's writer lock may stay locked.
			s.poisoned.Store(true)
			err = damaged(controlTable, nil, "bbolt: %v", p)
		}
	}()
	if err := fill(tx); err != nil {
		_ = tx.Rollback() // the first error is the one that tells the cause
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	if err := s.checkFreeList(); err != nil {
		return 0, fmt.Errorf("read back what was committed: %w", pageDamage(controlTable, nil, err))
	}
	if err := s.updateSums(); err != nil {
		return 0, err
	}
	stats := tx.Stats()
	return stats.GetPageAlloc(), nil
}

// writeJournal puts all changes into the journal. The control record says that there is one: without it, a journal
// whose bucket is lost would leave tables that look complete.
func (s *Store) writeJournal(tx *bbolt.Tx, c *changes, p *pacer) error {
	bucket, err := tx.CreateBucket(journalBucket)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	bucket.FillPercent = 1
	w := journalWriter{bucket: bucket}
	for table := range machine.Table(machine.TableCount) {
		for i := range c[table].len() {
			w.run = appendChange(w.run, table, c[table].at(i))
			if len(w.run) < s.journalRun {
				continue
			}
			if err := w.put(); err != nil {
				return err
			}
			p.rest(workBetweenRests)
		}
	}
	if len(w.run) > 0 {
		if err := w.put(); err != nil {
			return err
		}
	}
	return errors.Join(w.put(), putControl(tx, keyJournal, []byte{1})) // an empty record is the end
}

type journalWriter struct {
	bucket *bbolt.Bucket
	number uint32 // of the next record
	run    []byte // what it has so far
}

func (w *journalWriter) put() error {
	key := journalKey(w.number)
	err := w.bucket.Put(key, sealed(journalTable, key, w.run))
	w.number, w.run = w.number+1, w.run[:0]
	return err
}

func journalKey(number uint32) []byte { return binary.BigEndian.AppendUint32(nil, number) }

// appendChange appends `u8 table | bytes key | u8 0` for a removal, and otherwise `u8 table | bytes key | u8 1 | bytes
// value`, where bytes begin with their number as a varint.
func appendChange(dst []byte, table machine.Table, e entry) []byte {
	dst = appendBytes(append(dst, byte(table)), e.key)
	if e.deleted {
		return append(dst, 0)
	}
	return appendBytes(append(dst, 1), e.value())
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// merge puts changes into their tables in as many transactions as it takes, and removes the journal with the last.
func (s *Store) merge(c *changes, p *pacer) (pages int64, err error) {
	for {
		n, err := s.mergeSome(c, p)
		if pages += n; err != nil || c.len() == 0 {
			return pages, err
		}
	}
}

// mergeSome is one transaction of merge.
func (s *Store) mergeSome(c *changes, p *pacer) (pages int64, err error) {
	return s.step(p, func(tx *bbolt.Tx) error {
		if err := s.writeSome(tx, c, s.stepBytes, p); err != nil || c.len() > 0 {
			return err
		}
		// bbolt frees as many pages as the header of each says.
		err := s.readJournal(tx, func([]byte) error { p.rest(workBetweenRests); return nil })
		if err != nil {
			return err
		}
		return errors.Join(tx.DeleteBucket(journalBucket), putControl(tx, keyJournal, []byte{0}))
	})
}

// writeSome puts changes into their tables until that has cost more than a budget; see writeTable.
func (s *Store) writeSome(tx *bbolt.Tx, c *changes, budget int64, p *pacer) error {
	for budget > 0 && c.len() > 0 {
		table, e := c.first()
		n, cost, err := s.writeTable(tx, table, e, budget, p)
		if err != nil {
			return err
		}
		c[table] = e.from(n)
		budget -= cost
	}
	return nil
}

// finish puts what a process before has left in the journal into its tables; under flushMu.
func (s *Store) finish() error {
	if !s.unmerged {
		return nil
	}
	if _, err := s.merge(s.frozen.changes(), s.pacer()); err != nil {
		return s.fail(fmt.Errorf("finish the checkpoint up to log entry %d: %w", s.Checkpoint().Index, err))
	}
	s.merged()
	return nil
}

// merged drops the frozen overlay, which the file now holds; see thaw.
func (s *Store) merged() {
	s.presorting.Lock()
	defer s.presorting.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmerged = false
	s.dropFrozen()
}

// loadJournal returns what the journal has.
func (s *Store) loadJournal(tx *bbolt.Tx) (*overlay, error) {
	o := s.newOverlay()
	return o, s.readJournal(tx, o.takeRun)
}

// readJournal calls take with what each record of the journal has.
func (s *Store) readJournal(tx *bbolt.Tx, take func(run []byte) error) (err error) {
	defer recoverDamage(journalTable, nil, &err)
	bucket, found, err := s.pages(tx).Buckets(uint64(tx.Cursor().Bucket().Root())).Bucket(journalBucket)
	if err == nil && !found {
		err = damaged(journalTable, nil, "the journal is missing")
	}
	if err != nil {
		return pageDamage(journalTable, nil, err)
	}
	cursor, number, ended := bucket.Cursor(), uint32(0), false
	key, value, err := cursor.Seek(nil)
	for ; key != nil && err == nil; key, value, err = cursor.Next() {
		if ended || string(key) != string(journalKey(number)) {
			return damaged(journalTable, key, "it should be number %d of the journal", number)
		}
		number++
		run, err := unseal(journalTable, key, value)
		if err != nil {
			return err
		}
		if err := cursor.VerifyLeaf(key, false); err != nil {
			return pageDamage(journalTable, key, err)
		}
		if err := take(run); err != nil {
			return damaged(journalTable, key, "%v", err)
		}
		ended = len(run) == 0
	}
	if err == nil && !ended {
		err = damaged(journalTable, nil, "the end of the journal is missing")
	}
	return pageDamage(journalTable, nil, err)
}

var errJournal = errors.New("it has no whole change")

// takeRun decodes changes; see appendChange.
func (o *overlay) takeRun(run []byte) error {
	for len(run) > 0 {
		table := machine.Table(run[0])
		key, rest, ok := cutBytes(run[1:])
		if !ok || len(rest) == 0 || rest[0] > 1 {
			return errJournal
		}
		if !table.InStateFile() {
			return fmt.Errorf("it has a change of table %d", table)
		}
		if err := checkKey(table, key); err != nil {
			return err
		}
		if run = rest[1:]; rest[0] == 0 {
			o.remove(table, key)
			continue
		}
		value, rest, ok := cutBytes(run)
		if !ok {
			return errJournal
		}
		o.put(table, key, value)
		run = rest
	}
	return nil
}

// cutBytes cuts off what appendBytes has appended.
func cutBytes(from []byte) (b, rest []byte, ok bool) {
	n, size := binary.Uvarint(from)
	if size <= 0 || n > uint64(len(from)-size) {
		return nil, nil, false
	}
	end := size + int(n)
	return from[size:end], from[end:], true
}
