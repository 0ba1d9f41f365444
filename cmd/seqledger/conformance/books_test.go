package conformance

import (
	"strings"
	"testing"
)

// booksOf returns books with submitted writes and with a client's output.
func booksOf(t *testing.T, submitted []string, lines ...string) *books {
	t.Helper()
	b := newBooks()
	b.begin()
	for _, id := range submitted {
		b.intend(command{Do: "submit", ID: id})
	}
	text := strings.Join(lines, "\n") + "\n"
	// In pieces, as a pipe may deliver them.
	for len(text) > 0 {
		n, err := b.Write([]byte(text[:min(7, len(text))]))
		if err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	return b
}

// TestCompare covers the possible contradictions between what a client reported and what the ledger has.
func TestCompare(t *testing.T) {
	t.Parallel()
	const (
		a         = `{"event":"outcome","id":"a","outcome":"committed","sequence":"1","txId":"x"}`
		aRefused  = `{"event":"outcome","id":"a","outcome":"not_executed","code":"KEY_EXISTS"}`
		aUnknown  = `{"event":"outcome","id":"a","outcome":"unknown"}`
		aKnown    = `{"event":"outcome","id":"a","outcome":"known"}`
		aOther    = `{"event":"outcome","id":"a","outcome":"committed","sequence":"1","txId":"y"}`
		aNoTx     = `{"event":"outcome","id":"a","outcome":"committed","sequence":"1"}`
		aWrongSeq = `{"event":"outcome","id":"a","outcome":"committed","sequence":"2","txId":"x"}`
	)
	one := []found{{"a", 1, "x"}}
	for _, test := range []struct {
		name   string
		said   []string
		ledger []found
		wrong  string
	}{
		{"as it says", []string{a}, one, ""},
		{"said twice", []string{a, a}, one, ""},
		{"without the receipt", []string{aNoTx}, one, ""},
		{"nothing said, in the ledger", nil, one, ""},
		{"nothing said, not in the ledger", nil, nil, ""},
		{"unknown, in the ledger", []string{aUnknown}, one, ""},
		{"unknown, then committed", []string{aUnknown, a}, one, ""},
		{"refused", []string{aRefused}, nil, ""},
		{"known", []string{aKnown}, one, ""},
		{"twice", []string{a}, []found{{"a", 1, "x"}, {"a", 2, "y"}}, "2 times"},
		{"lost", []string{a}, nil, "is not in the ledger"},
		{"known and lost", []string{aKnown}, nil, "is not in the ledger"},
		{"refused and committed", []string{aRefused}, one, "was not executed, and it is"},
		{"another transaction", []string{aOther}, one, "is transaction y, and it is x"},
		{"another sequence", []string{aWrongSeq}, one, "has sequence 2, and it has 1"},
		{"made up", []string{a}, []found{{"a", 1, "x"}, {"b", 2, "y"}}, "never submitted"},
		{"committed, then refused", []string{a, aRefused}, one, "was committed before"},
		{"refused, then committed", []string{aRefused, a}, one, "was not_executed before"},
		{"two transactions", []string{a, aOther}, one, "was x before"},
		{"outcome of nothing", []string{`{"event":"outcome","id":"z","outcome":"committed"}`}, nil, "never submitted"},
		{"recovered nothing", []string{`{"event":"opened","recovered":["z"]}`}, nil, "never submitted"},
		{"no such outcome", []string{`{"event":"outcome","id":"a","outcome":"done"}`}, nil, "no such outcome"},
		{"no such event", []string{`{"event":"hello"}`}, nil, "no such event"},
		{"no JSON", []string{"hello"}, nil, "hello"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := booksOf(t, []string{"a"}, test.said...).compare(test.ledger)
			if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("want an error with %q, got %v", test.wrong, err)
			}
		})
	}
}
