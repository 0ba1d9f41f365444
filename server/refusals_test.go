package server

import (
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// numbers returns what after returns, by the sequences that the entries were added with.
func numbers(r *refusals, after uint64) (sequences []uint64, last uint64) {
	entries, last := r.after(after)
	for _, e := range entries {
		sequences = append(sequences, e.about.sequence)
	}
	return sequences, last
}

// TestRefusalsKeepTheLast: the newest ones are kept, in their order, and a caller gets each of them once.
func TestRefusalsKeepTheLast(t *testing.T) {
	t.Parallel()
	r := new(refusals)
	if sequences, last := numbers(r, 0); len(sequences) != 0 || last != 0 {
		t.Errorf("before the first: %d, %d", sequences, last)
	}
	seen := uint64(0)
	for n := uint64(1); n <= 3*maxRefusals; n++ {
		r.add(refused{about: subject{sequence: n}})
		sequences, last := numbers(r, 0)
		kept := min(n, maxRefusals)
		if uint64(len(sequences)) != kept || sequences[0] != n-kept+1 || sequences[kept-1] != n || last != n {
			t.Fatalf("after %d: %d kept, from %d to %d, last %d", n, len(sequences), sequences[0], sequences[kept-1],
				last)
		}
		if n%100 != 0 {
			continue
		}
		news, last := numbers(r, seen)
		if uint64(len(news)) != n-seen || news[0] != seen+1 {
			t.Fatalf("the %d behind %d are %d", n-seen, seen, news)
		}
		seen = last
	}
	if sequences, _ := numbers(r, 3*maxRefusals); len(sequences) != 0 {
		t.Errorf("behind the last: %d", sequences)
	}
	// A server that was started again has not given this number out.
	if sequences, _ := numbers(r, 9*maxRefusals); len(sequences) != maxRefusals {
		t.Errorf("behind a number of an earlier server: %d", len(sequences))
	}
}

// TestRefusalsAtOnce: the race detector looks on.
func TestRefusalsAtOnce(t *testing.T) {
	t.Parallel()
	r := new(refusals)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { // ends by itself
			for range 1_000 {
				r.add(refused{message: "no"})
				r.after(0)
			}
		})
	}
	all.Wait()
	if _, last := r.after(0); last != 4_000 {
		t.Errorf("%d were counted", last)
	}
}

// TestARefusalCostsNothing in memory.
func TestARefusalCostsNothing(t *testing.T) { // not parallel, because it counts allocations
	s := newTestServer(t, Options{})
	e := refusal(&machine.Outcome{Code: machine.KeyExists}, 7)
	about := subjectOf(&seqledgerv1.WriteRequest{Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientId: "c"})
	check.Equal(t, testing.AllocsPerRun(100, func() { s.refused(methodWrite, e, about) }), 0, "%v allocations")
}

// TestKnownFields: of a path only the names of the API are kept.
func TestKnownFields(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"": "", "sequence": "sequence", "scope.organization": "scope.organization",
		"operations[3].set_entity.key":                "operations[3].set_entity.key",
		"operations[3].set_entity.expires_at.seconds": "operations[3].set_entity.expires_at.seconds",
		"writes": "", "writes[7].client_id": "writes[7].client_id",
		"secret": "", "scope.secret": "scope", "operations[secret].append": "",
		"operations[1].secret.key": "operations[1]",
		"sequence.secret":          "sequence", "scope..": "scope", ".": "", "operations[1]x.append": "",
		"idempotency_kye": "",
	} {
		check.Equal(t, knownField(path), want, "of %q %q is kept", path)
	}
}

// TestSubjectsAreBounded: a refused request may have names of any length.
func TestSubjectsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1<<20)
	m := &seqledgerv1.WriteRequest{
		Scope: &seqledgerv1.Scope{Organization: long, Vault: "x" + long}, ClientId: long, Sequence: 7,
	}
	about := subjectOf(m)
	lengths := [...]int{len(about.scope.Organization), len(about.scope.Vault), len(about.clientID)}
	if lengths != [...]int{128, 127, 256} || about.sequence != 7 {
		t.Errorf("%d bytes, sequence %d", lengths, about.sequence)
	}
	for _, m := range []any{(*seqledgerv1.WriteRequest)(nil), new(seqledgerv1.GetStatusRequest), nil} {
		check.Equal(t, subjectOf(m), subject{}, "%T without names has some: got %v", m)
	}
}
