package boltstore_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// A store between two starts: what was flushed is there, what was not comes
// back from the log after Checkpoint.
func Example() {
	dir, err := os.MkdirTemp("", "boltstore")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	open := func() *boltstore.Store {
		s, err := boltstore.Open(filepath.Join(dir, "state.db"),
			boltstore.Options{Create: true, Identity: []byte("ledger-1")})
		if err != nil {
			log.Fatal(err)
		}
		return s
	}
	apply := func(s *boltstore.Store, index uint64, value string) {
		err := s.Update(boltstore.Position{Index: index, Term: 1}, func(tx machine.Tx) error {
			return tx.Put(machine.TableMeta, []byte("head"), []byte(value))
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	s := open()
	apply(s, 1, "one")
	if err := s.Flush(); err != nil {
		log.Fatal(err)
	}
	apply(s, 2, "two")
	fmt.Println("applied", s.Applied().Index, "checkpoint", s.Checkpoint().Index)
	if err := s.Close(); err != nil {
		log.Fatal(err)
	}

	s = open()
	defer func() { _ = s.Close() }()
	err = s.View(func(r machine.Reader) error {
		head, err := r.Get(machine.TableMeta, []byte("head"))
		fmt.Printf("replay the log after %d; head is %s\n", s.Checkpoint().Index, head)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// applied 2 checkpoint 1
	// replay the log after 1; head is one
}
