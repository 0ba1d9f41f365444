package demo

import (
	"testing"

	"github.com/seqledger/seqledger/client/payments"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestCompare: the audit finds a payment that is there twice, one that is missing, and one that
// was not intended. It does not report a payment that was never acknowledged as lost.
func TestCompare(t *testing.T) {
	t.Parallel()
	intended := []*payments.Payment{{Tag: "a", Cents: 100, Paid: true}, {Tag: "b", Cents: 20, Paid: true},
		{Tag: "c", Cents: 3}}
	entry := func(tag string, cents int64) *seqledgerv1.Transaction {
		p := payments.Payment{Tag: tag, Cents: cents}
		return &seqledgerv1.Transaction{Operations: []*seqledgerv1.Operation{p.Operation()}}
	}
	for _, test := range []struct {
		name    string
		found   []*seqledgerv1.Transaction
		want    Side
		correct bool
	}{
		{"as it should be", []*seqledgerv1.Transaction{entry("a", 100), entry("b", 20)}, Side{CentsFound: 120}, true},
		{"open and there", []*seqledgerv1.Transaction{entry("c", 3), entry("b", 20), entry("a", 100)},
			Side{CentsFound: 123}, true},
		{"twice", []*seqledgerv1.Transaction{entry("a", 100), entry("b", 20), entry("a", 100)},
			Side{Duplicates: 1, CentsFound: 220}, false},
		{"three times, and one twice that is open",
			[]*seqledgerv1.Transaction{entry("a", 100), entry("a", 100), entry("a", 100),
				entry("b", 20), entry("c", 3), entry("c", 3)},
			Side{Duplicates: 3, CentsFound: 326}, false},
		{"lost", []*seqledgerv1.Transaction{entry("a", 100)}, Side{Lost: 1, CentsFound: 100}, false},
		{"all lost", nil, Side{Lost: 2}, false},
		{"nobody's", []*seqledgerv1.Transaction{entry("a", 100), entry("b", 20), entry("x", 1)},
			Side{Extra: 1, CentsFound: 121}, false},
		{"no payment", []*seqledgerv1.Transaction{entry("a", 100), entry("b", 20), {}},
			Side{Extra: 1, CentsFound: 120}, false},
		{"another amount", []*seqledgerv1.Transaction{entry("a", 100), entry("b", 21)},
			Side{Extra: 1, Lost: 1, CentsFound: 121}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			want := test.want
			want.Attempted, want.Acknowledged, want.CentsAcknowledged = 3, 2, 120
			want.Found = uint64(len(test.found))
			got := compare(intended, test.found)
			if *got != want || got.Correct() != test.correct {
				t.Errorf("want %+v, correct %t; got %+v, correct %t", want, test.correct, *got, got.Correct())
			}
		})
	}
}
