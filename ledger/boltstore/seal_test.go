package boltstore

import (
	"bytes"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Any bytes at all: unseal takes exactly what seal made.
func FuzzUnseal(f *testing.F) {
	f.Add(byte(1), []byte("key"), sealed(streams, []byte("key"), []byte("value")))
	f.Add(byte(255), []byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, table byte, key, stored []byte) {
		if len(key) > maxKeySize {
			return // Put refuses it
		}
		value, err := unseal(machine.Table(table), key, stored)
		if err == nil && !bytes.Equal(sealed(machine.Table(table), key, value), stored) {
			t.Errorf("accepted %x, which seal does not make", stored)
		}
	})
}
