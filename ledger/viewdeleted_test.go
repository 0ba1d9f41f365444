package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// deletedKeys is a ledger of which nearly every key was deleted since the last checkpoint.
func deletedKeys(b *testing.B, n int) *Ledger {
	b.Helper()
	l := must.Get(Open(b.Context(), Options{Dir: b.TempDir(), CheckpointBytes: 1 << 30, ScrubBytes: -1}))(b)
	b.Cleanup(func() { _ = l.Close() })
	sequence := uint64(0)
	each := func(operations func(key string) []machine.Operation) {
		for from := 0; from < n; {
			w := testWrite("deleter", 0, 1)
			for len(w.Operations) < machine.MaxOperations-2 && from < n {
				w.Operations = append(w.Operations, operations(fmt.Sprintf("key-%07d", from))...)
				from++
			}
			sequence++
			w.Sequence = sequence
			must.Equal(b, must.Get(l.Write(b.Context(), w))(b).Code, machine.Committed)
		}
	}
	each(func(key string) []machine.Operation {
		return []machine.Operation{
			{Kind: machine.OpSetEntity, Key: []byte(key), Value: []byte("value")},
			{Kind: machine.OpCreateRelationship, Key: []byte("doc"), Relation: []byte("of"), Subject: []byte(key)},
		}
	})
	must.Do(b, l.flush())
	each(func(key string) []machine.Operation {
		return []machine.Operation{
			{Kind: machine.OpDeleteEntity, Key: []byte(key)},
			{Kind: machine.OpDeleteRelationship, Key: []byte("doc"), Relation: []byte("of"), Subject: []byte(key)},
		}
	})
	return l
}

// BenchmarkViewOverDeletedKeys lists what 300,000 deleted keys have left, which is nothing, and tells for how long a
// View kept the state from changing.
func BenchmarkViewOverDeletedKeys(b *testing.B) {
	l := deletedKeys(b, 300_000)
	for name, list := range map[string]func(v machine.View, after []byte) ([]byte, error){
		"relationships": func(v machine.View, after []byte) ([]byte, error) {
			all := func([]byte, machine.Relationship) bool { return true }
			return v.VisitRelationships(testScope, "doc", "", after, all)
		},
		"entities": func(v machine.View, after []byte) ([]byte, error) {
			resume, err := v.VisitEntityRefs(testScope, "", string(after), func(machine.EntityRef) bool { return true })
			return []byte(resume), err
		},
	} {
		b.Run(name, func(b *testing.B) {
			var views []time.Duration
			for b.Loop() {
				for after, more := []byte(nil), true; more; more = len(after) > 0 {
					took := time.Duration(0)
					must.Do(b, l.View(b.Context(), func(v machine.View) (err error) {
						began := time.Now()
						after, err = list(v, after)
						took = time.Since(began)
						return err
					}, machine.TableRelationships, machine.TableEntities))
					views = append(views, took)
				}
			}
			slices.Sort(views)
			b.ReportMetric(float64(views[len(views)/2].Microseconds()), "µs/median-view")
			b.ReportMetric(float64(views[len(views)*99/100].Microseconds()), "µs/99%-view")
			b.ReportMetric(float64(len(views))/float64(b.N), "views/op")
		})
	}
}
