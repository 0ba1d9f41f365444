package boltstore

import (
	"bytes"
	"os"
	"testing"
)

// Rewriting the meta page must leave every byte of the file as it was.
func TestSettleChangesNothing(t *testing.T) {
	t.Parallel()
	path := filled(t, 100)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := (&Store{path: path, file: file}).settle(metaOf(t, path)); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file changed, %v", err)
	}
}
