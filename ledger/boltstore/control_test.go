package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// FuzzControlRecords: whatever the file's own records hold, they are refused in
// one of the ways that have an advice, or they are exactly what a store of this
// version and identity writes.
func FuzzControlRecords(f *testing.F) {
	format := binary.LittleEndian.AppendUint32([]byte(formatMagic), formatVersion)
	mark := firstMark(Options{Identity: testIdentity}).Append(nil)
	newer := binary.LittleEndian.AppendUint32([]byte(formatMagic), formatVersion+1)
	f.Add(format, testIdentity, make([]byte, 16), mark, true)
	f.Add(format, testIdentity, make([]byte, 17), mark, true)
	f.Add(newer, testIdentity, make([]byte, 16), mark, true)
	f.Add(format, []byte("another"), make([]byte, 16), mark, true)
	f.Add([]byte("of another program"), []byte{}, []byte{}, []byte{}, true)
	f.Add(format, testIdentity, make([]byte, 16), blockKey(7), true)
	f.Add(sealed(controlTable, keyFormat, format), sealed(controlTable, keyIdentity, testIdentity),
		sealed(controlTable, keyApplied, []byte("0123456789abcdef")), sealed(controlTable, keyBlocks, mark), false)
	f.Add([]byte{}, []byte{1, 2, 3}, []byte{0, 0, 0, 0}, []byte{}, false)
	db := must.Get(bbolt.Open(filepath.Join(f.TempDir(), "state.db"), 0o600, &bbolt.Options{NoSync: true}))(f)
	f.Cleanup(func() { _ = db.Close() })
	f.Fuzz(func(t *testing.T, format, identity, applied, blocks []byte, seal bool) {
		tx := must.Get(db.Begin(true))(t)
		// Never committed, so that nothing is left for the next.
		defer func() { _ = tx.Rollback() }()
		bucket := must.Get(tx.CreateBucket(controlBucket))(t)
		stored := map[string][]byte{
			string(keyFormat): format, string(keyIdentity): identity, string(keyApplied): applied,
			string(keyBlocks): blocks,
		}
		must.Do(t, bucket.Put(keyStart, sealed(controlTable, keyStart, nil)))
		for key, value := range stored {
			if seal {
				stored[key] = sealed(controlTable, []byte(key), value)
			}
			must.Do(t, bucket.Put([]byte(key), stored[key]))
		}
		c, err := readControl(tx, testIdentity)
		if err != nil {
			if !errors.Is(err, ErrForeign) && !errors.Is(err, ErrVersion) && !errors.Is(err, machine.ErrCorrupt) {
				t.Errorf("%v is no refusal with an advice", err)
			}
			return
		}
		position := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, c.applied.Index),
			c.applied.Term)
		version := binary.LittleEndian.AppendUint32([]byte(formatMagic), formatVersion)
		for key, value := range map[string][]byte{
			string(keyFormat): version, string(keyIdentity): testIdentity, string(keyApplied): position,
			string(keyBlocks): c.mark.Append(nil),
		} {
			if want := sealed(controlTable, []byte(key), value); !bytes.Equal(stored[key], want) {
				t.Errorf("%s is %x and was taken for %x", key, stored[key], want)
			}
		}
	})
}
