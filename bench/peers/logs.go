package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	hraft "github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	etcdwal "go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// raftLog is a log of Raft entries, as the comparison of logs drives it.
type raftLog interface {
	// append makes entries durable; they replace what is there from their first index on.
	append(term, first uint64, data ...[]byte) error
	// vote makes a term and a vote durable.
	vote(term, vote uint64) error
	// count opens the log anew, reads everything, and returns how many entries there are.
	count() (int, error)
	close() error
}

// logKinds are the logs that are compared. Each begins to write in an empty directory.
var logKinds = []struct {
	name string
	open func(dir string, segmentBytes int) (raftLog, error)
}{
	{"seqledger segment", openSegmentLog},
	{"etcd wal", openEtcdLog},
	{"raft-wal", openRaftWAL},
}

type segmentLog struct {
	o segment.Options
	*segment.Log
}

func openSegmentLog(dir string, segmentBytes int) (raftLog, error) {
	o := segment.Options{
		Disk: segment.OpenDirectory(dir), Identity: []byte("bench"), SegmentBytes: int64(segmentBytes),
		Random: rand.Reader, Logger: slog.New(slog.DiscardHandler),
	}
	if err := segment.Create(o, segment.Checkpoint{}, segment.State{}); err != nil {
		return nil, err
	}
	l, err := segment.Open(o)
	return &segmentLog{o, l}, err
}

func (l *segmentLog) append(term, first uint64, data ...[]byte) error {
	entries := make([]segment.Entry, len(data))
	for i, b := range data {
		entries[i] = segment.Entry{Index: first + uint64(i), Term: term, Kind: 1, Data: b}
	}
	return errors.Join(l.Append(nil, entries), l.Sync())
}

func (l *segmentLog) vote(term, vote uint64) error {
	return errors.Join(l.Append(&segment.State{Term: term, Vote: vote}, nil), l.Sync())
}

func (l *segmentLog) count() (int, error) {
	again, err := segment.Open(l.o)
	if err != nil {
		return 0, err
	}
	defer again.Close() //nolint:errcheck // It was only read.
	if again.Last().Index == 0 {
		return 0, nil
	}
	entries, err := again.Entries(1, again.Last().Index+1, 1<<30)
	return len(entries), err
}

func (l *segmentLog) close() error { return l.Close() }

type etcdLog struct {
	dir string
	*etcdwal.WAL
	state raftpb.HardState
}

func openEtcdLog(dir string, segmentBytes int) (raftLog, error) {
	etcdwal.SegmentSizeBytes = int64(segmentBytes)
	dir = filepath.Join(dir, "wal")
	w, err := etcdwal.Create(zap.NewNop(), dir, []byte("bench"))
	return &etcdLog{dir: dir, WAL: w}, err
}

func (l *etcdLog) append(term, first uint64, data ...[]byte) error {
	entries := make([]*raftpb.Entry, len(data))
	for i, b := range data {
		entries[i] = &raftpb.Entry{Index: new(first + uint64(i)), Term: &term, Data: b}
	}
	return l.Save(&l.state, entries)
}

func (l *etcdLog) vote(term, vote uint64) error {
	return l.Save(&raftpb.HardState{Term: &term, Vote: &vote}, nil)
}

func (l *etcdLog) count() (int, error) {
	n, err := l.read()
	if errors.Is(err, io.ErrUnexpectedEOF) && etcdwal.Repair(zap.NewNop(), l.dir) {
		return l.read() // as etcd itself does
	}
	return n, err
}

func (l *etcdLog) read() (int, error) {
	w, err := etcdwal.Open(zap.NewNop(), l.dir, &walpb.Snapshot{})
	if err != nil {
		return 0, err
	}
	defer w.Close() //nolint:errcheck // It was only read.
	_, _, entries, err := w.ReadAll()
	return len(entries), err
}

func (l *etcdLog) close() error { return l.Close() }

type hashicorpLog struct {
	dir          string
	segmentBytes int
	*raftwal.WAL
	last uint64
}

func openRaftWAL(dir string, segmentBytes int) (raftLog, error) {
	w, err := raftwal.Open(dir, raftwal.WithSegmentSize(segmentBytes))
	return &hashicorpLog{dir: dir, segmentBytes: segmentBytes, WAL: w}, err
}

func (l *hashicorpLog) append(term, first uint64, data ...[]byte) error {
	if first <= l.last {
		if err := l.DeleteRange(first, l.last); err != nil {
			return err
		}
	}
	logs := make([]*hraft.Log, len(data))
	for i, b := range data {
		logs[i] = &hraft.Log{Index: first + uint64(i), Term: term, Data: b}
	}
	l.last = first + uint64(len(data)) - 1
	return l.StoreLogs(logs)
}

func (l *hashicorpLog) vote(term, vote uint64) error {
	return errors.Join(l.SetUint64([]byte("CurrentTerm"), term), l.SetUint64([]byte("LastVoteTerm"), vote))
}

func (l *hashicorpLog) count() (n int, err error) {
	w, err := raftwal.Open(l.dir, raftwal.WithSegmentSize(l.segmentBytes))
	if err != nil {
		return 0, err
	}
	defer w.Close() //nolint:errcheck // It was only read.
	first, _ := w.FirstIndex()
	last, _ := w.LastIndex()
	for i := first; i <= last && i > 0; i++ {
		if err := w.GetLog(i, new(hraft.Log)); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (l *hashicorpLog) close() error { return l.Close() }

// logRow is one kind of work; step i of it is made durable by one call.
type logRow struct {
	name  string
	steps int
	step  func(l raftLog, i uint64) error
}

var logRows = []logRow{
	{"entry of 300 bytes (one writer)", 1500, func(l raftLog, i uint64) error {
		return l.append(1, i, logPayload(300))
	}},
	{"entry of 50 KiB (256 writers)", 500, func(l raftLog, i uint64) error {
		return l.append(1, i, logPayload(50<<10))
	}},
	{"tail of 10 entries replaced", 100, func(l raftLog, i uint64) error {
		return l.append(i, i, slices.Repeat([][]byte{logPayload(300)}, 10)...)
	}},
	{"term and vote", 300, func(l raftLog, i uint64) error { return l.vote(i, 1) }},
}

var logPayloadBytes = func() []byte {
	b := make([]byte, 50<<10)
	_, _ = rand.Read(b)
	return b
}()

func logPayload(n int) []byte { return logPayloadBytes[:n] }

// compareLogs measures the logs in turns, and then damages them.
func compareLogs(dir string, rounds int, out io.Writer) error {
	_, err := fmt.Fprintf(out, "| work, durable | log | median µs | processor µs |\n|---|---|---:|---:|\n")
	if err != nil {
		return err
	}
	for _, row := range logRows {
		took, used := map[string][]float64{}, map[string][]float64{}
		for range rounds {
			for _, kind := range logKinds {
				if err := measureLog(dir, row, kind.open, func(wall []float64, processor float64) {
					took[kind.name] = append(took[kind.name], wall...)
					used[kind.name] = append(used[kind.name], processor)
				}); err != nil {
					return fmt.Errorf("%s: %s: %w", kind.name, row.name, err)
				}
			}
		}
		for _, kind := range logKinds {
			_, err := fmt.Fprintf(out, "| %s | %s | %.0f | %.0f |\n",
				row.name, kind.name, middle(took[kind.name]), middle(used[kind.name]))
			if err != nil {
				return err
			}
		}
	}
	return damageLogs(dir, out)
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func measureLog(
	parent string, row logRow, open func(string, int) (raftLog, error), found func([]float64, float64),
) (err error) {
	dir, err := os.MkdirTemp(parent, "log-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := open(dir, 64<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	wall := make([]float64, 0, row.steps)
	before := processorTime()
	for i := range uint64(row.steps) {
		began := time.Now()
		if err := row.step(l, i+1); err != nil {
			return err
		}
		wall = append(wall, float64(time.Since(began).Nanoseconds())/1e3)
	}
	found(wall, float64((processorTime()-before).Nanoseconds())/1e3/float64(row.steps))
	return nil
}

func processorTime() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // it cannot fail with these arguments
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// damagedEntries is how many entries a log has before it is damaged. Each holds its number.
const damagedEntries = 60

// logDamages are what happens to a log that was closed. Each gets the newest file and all files.
var logDamages = []struct {
	name   string
	damage func(files []string) error
}{
	{"nothing", func([]string) error { return nil }},
	{"half of the last entry is zeros", func(files []string) error { return change(files, damagedEntries, halfZero) }},
	{"a bit of the last entry", func(files []string) error { return change(files, damagedEntries, flipBit) }},
	{"a bit of an entry in the middle of the newest file", func(files []string) error {
		return change(files, damagedEntries-3, flipBit)
	}},
	{"a bit of an entry in an older file", func(files []string) error { return change(files, 2, flipBit) }},
	{"the newest file is missing", func(files []string) error { return os.Remove(files[len(files)-1]) }},
	{"the newest file is cut in half", func(files []string) error {
		info, err := os.Stat(files[len(files)-1])
		if err != nil {
			return err
		}
		return os.Truncate(files[len(files)-1], info.Size()/2)
	}},
}

func numbered(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 1000) }

func flipBit(b []byte)  { b[500] ^= 1 }
func halfZero(b []byte) { clear(b[500:]) }

// change damages the payload of an entry.
func change(files []string, entry int, how func([]byte)) error {
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if at := bytes.Index(b, numbered(entry)); at >= 0 {
			how(b[at : at+1000])
			return os.WriteFile(name, b, 0o600)
		}
	}
	return fmt.Errorf("entry %d is in no file", entry)
}

// damageLogs damages logs and says what a start makes of it.
func damageLogs(parent string, out io.Writer) error {
	_, err := fmt.Fprintf(out, "\n| damage at rest | log | at the next start |\n|---|---|---|\n")
	if err != nil {
		return err
	}
	for _, d := range logDamages {
		for _, kind := range logKinds {
			result, err := damageLog(parent, kind.open, d.damage)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", kind.name, d.name, err)
			}
			if _, err := fmt.Fprintf(out, "| %s | %s | %s |\n", d.name, kind.name, result); err != nil {
				return err
			}
		}
	}
	return nil
}

func damageLog(
	parent string, open func(string, int) (raftLog, error), damage func([]string) error,
) (result string, err error) {
	dir, err := os.MkdirTemp(parent, "log-*")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := open(dir, 16<<10)
	if err != nil {
		return "", err
	}
	for i := range uint64(damagedEntries) {
		if err := l.append(1, i+1, numbered(int(i)+1)); err != nil {
			return "", err
		}
	}
	if err := l.close(); err != nil {
		return "", err
	}
	var files []string
	for _, pattern := range []string{"*.log", "*.wal", "wal/*.wal"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		files = append(files, found...)
	}
	slices.Sort(files)
	if err := damage(files); err != nil {
		return "", err
	}
	return describeLog(l)
}

func describeLog(l raftLog) (result string, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = fmt.Sprintf("panics: %v", p), nil
		}
	}()
	switch n, err := l.count(); {
	case err != nil:
		return "refused", nil //nolint:nilerr // The refusal is the result.
	case n == damagedEntries:
		return "all entries", nil
	default:
		return fmt.Sprintf("%d of %d entries, without a word", n, damagedEntries), nil
	}
}
