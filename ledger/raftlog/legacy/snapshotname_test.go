package legacy

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// TestSnapshotsOfOnePlace: two checkpoints may follow each other so fast that nothing was applied in between.
func TestSnapshotsOfOnePlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSnapshotsOfOnePlace) // there no time passes by itself
}

func testSnapshotsOfOnePlace(t *testing.T) {
	dir := t.TempDir()
	inner, err := raft.NewFileSnapshotStore(dir, keptSnapshots, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	store := &durableSnapshots{
		SnapshotStore: inner, dir: dir, sync: func(string) error { return nil }, fail: func(err error) { t.Error(err) },
	}
	_, transport := raft.NewInmemTransport("")
	for range 20 {
		sink, err := store.Create(1, 37, 2, raft.Configuration{}, 1, transport)
		if err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
