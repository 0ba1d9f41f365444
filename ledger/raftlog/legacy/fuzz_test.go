package legacy

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
)

// allocated returns how many bytes a call takes from the heap.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// FuzzDecodeEntryOfWAL: an entry that is taken from the disk is the one that was
// asked for, and a command the one that was summed. The look for torn writes
// reads the same index from its frame.
func FuzzDecodeEntryOfWAL(f *testing.F) {
	for _, e := range []raft.Log{
		{Index: 7, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: sum([]byte("data")),
			AppendedAt: time.Unix(1, 0)},
		{Index: 1 << 40, Term: 300, Type: raft.LogNoop, AppendedAt: time.Unix(1, 0).In(time.FixedZone("", 61))},
		{Index: 8, Term: 3, Type: raft.LogConfiguration, Data: make([]byte, 200)},
	} {
		var encoded bytes.Buffer
		must(f, (&wal.BinaryCodec{}).Encode(&e, &encoded))
		f.Add(encoded.Bytes(), e.Index)
	}
	f.Add([]byte{7, 3, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, uint64(7))
	f.Fuzz(func(t *testing.T, encoded []byte, index uint64) {
		var err error
		if took := allocated(func() { err = decodeVerified(encoded, index) }); took > uint64(64<<10+4*len(encoded)) {
			t.Errorf("%d bytes took %d of memory", len(encoded), took)
		}
		if err != nil {
			return
		}
		var e raft.Log
		must(t, (&wal.BinaryCodec{}).Decode(encoded, &e))
		if e.Index != index || e.Type == raft.LogCommand && !bytes.Equal(e.Extensions, sum(e.Data)) {
			t.Errorf("%+v was taken for a whole entry %d", e, index)
		}
		if at, _, ok := entryFrame(appendFrame(nil, segment.FrameEntry, encoded)); ok && at != index {
			t.Errorf("the frame of entry %d says %d", index, at)
		}
		var again bytes.Buffer
		must(t, (&wal.BinaryCodec{}).Encode(&e, &again))
		frame := appendFrame(nil, segment.FrameEntry, again.Bytes())
		if at, size, ok := entryFrame(frame); !ok || at != index || size != len(frame) {
			t.Errorf("%+v has a frame of %d bytes, which reads as entry %d of %d bytes, %v", e, len(frame), at,
				size, ok)
		}
	})
}

// FuzzDecodeConfiguration: a membership that is taken has members, survives
// being written, and takes memory in proportion to its bytes, whatever lengths
// it claims.
func FuzzDecodeConfiguration(f *testing.F) {
	f.Add(raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "b"}}}))
	f.Add(raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Nonvoter, ID: "é"},
		{ID: "c"}}}))
	f.Add([]byte("\x81\xa7Servers\xdd\xff\xff\xff\xff"))
	f.Add([]byte("\x81\xa7Servers\x91\x81\xa2ID\xdb\xff\xff\xff\xff"))
	f.Add([]byte("\x81\xa70000000\xc90000\xff")) // an extension, which took 800 MB
	f.Fuzz(func(t *testing.T, b []byte) {
		var conf raft.Configuration
		var err error
		if took := allocated(func() { conf, err = decodeConfiguration(b) }); took > uint64(1<<20+1024*len(b)) {
			t.Errorf("%d bytes took %d of memory", len(b), took)
		}
		if err != nil {
			return
		}
		again, err := decodeConfiguration(raft.EncodeConfiguration(conf))
		if err != nil || !reflect.DeepEqual(again, conf) {
			t.Errorf("%+v is written and read as %+v, %v", conf, again, err)
		}
	})
}

// FuzzSnapshotMetadata: metadata that is taken for a snapshot's is what Raft's
// own store reads there, and says what the name of the directory says.
func FuzzSnapshotMetadata(f *testing.F) {
	const id = "3-17-1700000000000"
	f.Add([]byte(`{"Version":1,"ID":"` + id + `","Index":17,"Term":3,"Peers":null,` +
		`"Configuration":{"Servers":[{"Suffrage":0,"ID":"a","Address":"a"}]},` +
		`"ConfigurationIndex":1,"Size":9,"CRC":"AAAA"}`))
	f.Add([]byte(`{"Version":1,"ID":"` + id + `","Index":17,"Term":3,"index":18}`))
	f.Add([]byte(`{"Version":1,"ID":"` + id + `","Index":1,"Term":3}`))
	f.Add([]byte(`null`))
	base := f.TempDir()
	store, err := raft.NewFileSnapshotStoreWithLogger(base, keptSnapshots,
		hclog.New(&hclog.LoggerOptions{Output: io.Discard}))
	must(f, err)
	dir := filepath.Join(base, "snapshots")
	must(f, os.MkdirAll(filepath.Join(dir, id), 0o755))
	f.Fuzz(func(t *testing.T, content []byte) {
		must(t, os.WriteFile(filepath.Join(dir, id, snapshotMetadata), content, 0o600))
		leftovers, err := checkSnapshotMetadata(dir)
		if err != nil {
			return
		}
		metas, err := store.List()
		if err != nil || len(metas) != 1 || len(leftovers) != 0 {
			t.Fatalf("%q is taken, and Raft's store lists %v, %v; left over: %v", content, metas, err, leftovers)
		}
		if m := metas[0]; m.ID != id || m.Index != 17 || m.Term != 3 {
			t.Errorf("%q is taken for %s, and Raft reads %+v", content, id, m)
		}
	})
}

// FuzzReadUsed: of any file with any holes, what is read is all but the zeros at
// its end, up to a frame's boundary.
func FuzzReadUsed(f *testing.F) {
	f.Add([]byte("front"), uint32(0), []byte{}, uint32(0))
	f.Add([]byte("front"), uint32(chunkBytes), []byte("torn"), uint32(9))
	f.Add([]byte{}, uint32(2*chunkBytes-3), []byte{0, 1, 0}, uint32(chunkBytes))
	f.Add([]byte{0}, uint32(0), []byte{0}, uint32(chunkBytes-2))
	f.Fuzz(func(t *testing.T, front []byte, hole uint32, torn []byte, zeros uint32) {
		const most = 3 * chunkBytes
		file := append(bytes.Clone(front), make([]byte, hole%most)...)
		file = append(append(file, torn...), make([]byte, zeros%most)...)
		got, err := readUsed(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.TrimRight(file, "\x00")
		want = append(want[:len(want):len(want)], make([]byte, -len(want)&(frameHeader-1))...)
		if !bytes.Equal(got, want) {
			t.Errorf("of %d bytes %d were read, want %d", len(file), len(got), len(want))
		}
	})
}
