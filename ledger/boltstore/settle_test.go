package boltstore

import (
	"bytes"
	"os"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Rewriting the meta page must leave every byte of the file as it was.
func TestSettleChangesNothing(t *testing.T) {
	t.Parallel()
	path := filled(t, 100)
	before := must.Get(os.ReadFile(path))(t)
	file := must.Get(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer func() { _ = file.Close() }()
	must.Do(t, (&Store{path: path, file: file}).settle(metaOf(t, path)))
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file changed, %v", err)
	}
}
