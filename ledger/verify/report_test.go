package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// A directory that is damaged all over does not make a report without end, and none of it is forgotten in the sum.
func TestProblemsAreBounded(t *testing.T) {
	t.Parallel()
	p := new(Report)
	must.Do(t, p.Problem("/data"), "nothing is wrong")
	for i := range maxProblems + 5 {
		p.add(fmt.Sprint("row ", i), errors.New("is gone"))
	}
	if len(p.Problems) != maxProblems || p.Omitted != 5 {
		t.Errorf("%d problems and %d more", len(p.Problems), p.Omitted)
	}
	err := p.Problem("/data")
	if !errors.Is(err, machine.ErrCorrupt) || !IsDamage(err) {
		t.Errorf("%v is no damage", err)
	}
	for _, want := range []string{"/data", fmt.Sprint(maxProblems + 5), "row 0: is gone"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

// stands at some positions, each with the ledger index of its position less ten.
func standsAt(digest byte, positions ...uint64) (list []stand) {
	for _, at := range positions {
		list = append(list, stand{position: at, index: at - 10, digest: machine.Hash{digest, byte(at)}})
	}
	return list
}

// Two nodes are compared where both have been, and the first difference is the one that is told.
func TestStandsAreComparedWhereBothWere(t *testing.T) {
	t.Parallel()
	same := standsAt(1, 20, 21, 22, 25)
	other := standsAt(1, 20, 21, 22, 25)
	other[1].digest = machine.Hash{9}
	other[3].digest = machine.Hash{9}
	ahead := standsAt(1, 20, 21, 22, 25)
	ahead[2].index++
	for _, test := range []struct {
		what    string
		a, b    []stand
		index   uint64
		differs string
	}{
		{"the same", same, same, 15, ""},
		{"one began later", same, same[2:], 15, ""},
		{"one ended before", same[:2], same, 11, ""},
		{"they overlap", same[:3], same[1:], 12, ""},
		{"one ends before the other begins", same[:2], same[2:], 0, ""},
		{"entries that one of them does not have", standsAt(1, 20, 22), standsAt(1, 21, 22, 23), 12, ""},
		{"another digest", same, other, 11, "log entry 21"},
		{"another ledger index", same, ahead, 12, "log entry 22"},
		{"nothing", nil, same, 0, ""},
	} {
		for _, turn := range [][2][]stand{{test.a, test.b}, {test.b, test.a}} {
			c := new(Comparison)
			c.compareStands(turn[0], turn[1])
			if test.differs == "" && len(c.Differences) > 0 || test.differs != "" && (len(c.Differences) != 1 ||
				c.Differences[0].Where != test.differs) {
				t.Errorf("%s: %v", test.what, c.Differences)
			}
			if c.Index != test.index && (test.what != "another ledger index" || c.Index != test.index+1) {
				t.Errorf("%s: compared up to index %d, want %d", test.what, c.Index, test.index)
			}
		}
	}
}

// What cannot be read says nothing about what is stored.
func TestFailuresAreNoDamage(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		nil, context.Canceled, fs.ErrPermission, syscall.EIO, os.ErrDeadlineExceeded, errors.New("no space"),
		&fs.PathError{Op: "open", Path: "state.db", Err: syscall.EMFILE},
	} {
		if IsDamage(err) {
			t.Errorf("%v is damage", err)
		}
	}
	if !IsDamage(fmt.Errorf("state: %w", errors.Join(errors.New("x"), machine.ErrCorrupt))) {
		t.Error("damage behind another error is none")
	}
}
