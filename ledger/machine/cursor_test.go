package machine

import (
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// FuzzCursors: whatever a client makes up as the place where a page begins, a
// page is in order and within its scope, and nothing panics.
func FuzzCursors(f *testing.F) {
	base := preparedState(f)
	v := base.view()
	_, _ = v.VisitStreams(nil, nil, func(key []byte, _ NamedStream) bool {
		f.Add(key, "doc", "")
		return true
	})
	_, _ = v.VisitRelationships(testScope, "", "", nil, func(key []byte, _ Relationship) bool {
		f.Add(key, "", "owner")
		return true
	})
	f.Add([]byte{}, "\xff", "k")
	f.Fuzz(func(t *testing.T, after []byte, resource, relation string) {
		for _, scope := range []*Scope{nil, &testScope} {
			last := ""
			_, err := v.VisitStreams(scope, after, func(key []byte, s NamedStream) bool {
				if string(key) <= last || string(key) <= string(after) || scope != nil && s.Scope != *scope {
					t.Errorf("%x comes after %x and %x", key, after, last)
				}
				last = string(key)
				return true
			})
			check.Is(t, err, nil, "streams after %x", after)
		}
		last := ""
		_, err := v.VisitRelationships(testScope, resource, relation, after, func(key []byte, r Relationship) bool {
			if string(key) <= last || resource != "" && r.Resource != resource {
				t.Errorf("%x (%v) comes after %x", key, r, last)
			}
			last = string(key)
			return true
		})
		check.Is(t, err, nil, "relationships of %q after %x", resource, after)
		must.Do(t, check.Err(v.VisitEntities(testScope, relation, string(after),
			func(e Entity) bool { return e.Key > string(after) })), "entities after %x", after)
	})
}
