package boltstore

import (
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// TestAscendIsBoundedByDeletedKeys: whether deleted keys wait in the overlay alone, or hide keys of the file, a bounded
// Ascend steps over so many of them and no more, and visits all others.
func TestAscendIsBoundedByDeletedKeys(t *testing.T) {
	t.Parallel()
	const n, kept, bound = 3_000, 1_500, 100
	for what, flushed := range map[string]bool{"in the file": true, "in the overlay": false} {
		s := fresh(t)
		err := s.Update(next(s), func(tx machine.Tx) (err error) {
			for i := range n {
				if err = tx.Put(machine.TableRelationships, recordKey(i), recordValue(i)); err != nil {
					return err
				}
			}
			return nil
		})
		must.Do(t, err)
		if flushed {
			flush(t, s)
		}
		must.Do(t, s.Update(next(s), func(tx machine.Tx) (err error) {
			for i := 0; i < n && err == nil; i++ {
				if i != kept {
					err = tx.Delete(machine.TableRelationships, recordKey(i))
				}
			}
			return err
		}))
		calls, visited, from := 0, 0, []byte(nil)
		err = s.View(func(r machine.Reader) error {
			for {
				resume, err := r.(machine.BoundedReader).AscendBounded(machine.TableRelationships, from, bound,
					func(key, _ []byte) bool {
						if visited++; string(key) != string(recordKey(kept)) {
							t.Errorf("%s: %s is visited", what, key)
						}
						return true
					})
				if err != nil || resume == nil {
					return err
				}
				if calls++; string(resume) != string(recordKey(calls*bound-1)) && calls*bound <= kept {
					t.Errorf("%s: call %d ends behind %s", what, calls, resume)
				}
				from = append(resume, 0)
			}
		})
		if err != nil || visited != 1 || calls != (n-1)/bound {
			t.Errorf("%s: %d keys are visited in %d calls, want 1 in %d: %v", what, visited, calls, (n-1)/bound, err)
		}
	}
}
