package main

import (
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestListRefusals: a refused write is listed with its client, behind a number and as JSON, too.
func TestListRefusals(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := []string{"write", "--scope", "acme/main", "--client-id", "till-7", "--append", "x", "--sequence"}
	check.Equal(t, s.do(t, "list", "refusals").expect(t, exitDone).stdout, "", "before the first: %q")
	s.do(t, append(write, "9")...).expect(t, exitRefused)
	s.do(t, append(write, "1")...).expect(t, exitDone)
	s.do(t, append(write, "7")...).expect(t, exitRefused)
	lines := strings.Split(s.do(t, "list", "refusals").expect(t, exitDone).stdout, "\n")
	must.Equal(t, len(lines), 4, "%q: %v", lines)
	for i, want := range []string{"NUMBER TIME REASON",
		"1 SEQUENCE_GAP Write acme/main till-7 9 sequence 9 is more than",
		"2 SEQUENCE_GAP Write acme/main till-7 7 sequence 7 is more than"} {
		fields := strings.Fields(lines[i])
		if i > 0 {
			fields = append(fields[:1], fields[2:]...) // without the time
		}
		if got := strings.Join(fields, " "); !strings.HasPrefix(got, want) {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	r := s.do(t, "list", "refusals", "--after", "1", "--json").expect(t, exitDone)
	if r.field(t, "number") != "2" || r.field(t, "clientId") != "till-7" ||
		r.field(t, "code") != "WRITE_ERROR_CODE_SEQUENCE_GAP" {
		t.Errorf("%s", r.stdout)
	}
}
