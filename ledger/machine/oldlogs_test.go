package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oldLog is a log that a program of an earlier level wrote, and what came of it there.
// The histories are random ones that meet every rule. At level 1 one has values,
// conditions and passes of many kinds; at level 3 some have keyed records.
type oldLog struct {
	name    string
	entries [][]byte
	want    map[string]string
	ends    []uint64 // the ledger indexes behind the entries; set by replay
}

func logsOfLevel(t testing.TB, level int) (logs []oldLog) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", fmt.Sprintf("level%d", level), "*.log"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d logs of level %d: %v", len(paths), level, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		log := oldLog{name: filepath.Base(path), want: map[string]string{}}
		d := decoder{rest: data}
		for len(d.rest) > 0 {
			log.entries = append(log.entries, d.bytes())
		}
		if d.bad {
			t.Fatalf("%s does not decode", path)
		}
		text, err := os.ReadFile(strings.TrimSuffix(path, ".log") + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			cut := strings.LastIndex(line, " ")
			log.want[line[:cut]] = strings.TrimSpace(line[cut:])
		}
		logs = append(logs, log)
	}
	return logs
}

// replay applies the log and compares what came of it.
func (l *oldLog) replay(t testing.TB) *Memory {
	t.Helper()
	mem := NewMemory()
	m, err := Open(mem)
	if err != nil {
		t.Fatal(err)
	}
	l.ends = nil
	for i, entry := range l.entries {
		if _, err := m.Apply(mem, entry); err != nil {
			t.Fatalf("%s: entry %d: %v", l.name, i, err)
		}
		l.ends = append(l.ends, m.head.index)
		if i%7 == 6 { // a restart
			if m, err = Open(mem); err != nil {
				t.Fatalf("%s: %v", l.name, err)
			}
		}
	}
	if got := fmt.Sprint(m.head.index); got != l.want["index"] {
		t.Errorf("%s: index %s, want %s", l.name, got, l.want["index"])
	}
	if got := m.head.digest.String(); got != l.want["digest"] {
		t.Errorf("%s: digest %s, want %s", l.name, got, l.want["digest"])
	}
	return mem
}

// sums returns a hash of each table's rows.
func (m *Memory) sums() (sums []string) {
	for table := range m.tables {
		h := sha256.New()
		for _, key := range m.tables[table].keys {
			h.Write(appendBytes(appendBytes(nil, []byte(key)), m.tables[table].values[key]))
		}
		sums = append(sums, hex.EncodeToString(h.Sum(nil)))
	}
	return sums
}

// A log of level 3 gives the digest, and every row, that it gave to the program that wrote it. Then the ledger goes on
// at the newest level with what it has.
func TestLogsOfLevel3(t *testing.T) {
	t.Parallel()
	for _, log := range logsOfLevel(t, 3) {
		mem := log.replay(t)
		for table, sum := range mem.sums() {
			if name := fmt.Sprintf("table %d", table); sum != log.want[name] {
				t.Errorf("%s: %s is not what it was", log.name, name)
			}
		}
		m, err := Open(mem)
		if err != nil {
			t.Fatal(err)
		}
		if m.head.level != 3 {
			t.Fatalf("%s: it has level %d", log.name, m.head.level)
		}
		f := &fixture{TB: t, mem: mem, m: m, now: m.head.time}
		if out := f.one(AppendRaiseLevel(nil, Level)); out.Code != Committed || f.m.head.level != Level {
			t.Fatalf("%s: raising the level gave %v", log.name, out.Code)
		}
		f.configure(ConfigUpdate{EvictionLimit: new(uint64(1_000)), MaxStreams: new(uint64(1_000))})
		f.commit(appendWrite("of level 4", 1, 0, "x"))
		for range 3 { // what is pending becomes unclaimed, then unknown, and then is over as all else
			f.elapse(60 * 24 * 3_600 * second)
			f.round()
		}
		left, streams := len(mem.tables[TableExpiry].keys)+len(mem.tables[TableKeyed].keys), f.view().Streams()
		if left > 0 || streams > 0 {
			t.Errorf("%s: %d rows and %d streams are left", log.name, left, streams)
		}
		if problems := audit(t, f.m, f.mem); len(problems) != 0 {
			t.Errorf("%s: %v", log.name, problems)
		}
	}
}
