package raftlog

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// ReadOutline returns what a node must not forget, and changes nothing.
func TestReadOutline(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	members := core.Members{
		Voters: []uint64{1, 2}, Highest: 2, Addresses: []core.Address{{ID: 1, Peer: "127.0.0.1:7451"}},
	}
	o := options(dir, new(recorder))
	base := Position{Index: 10, Term: 3}
	must.Do(t, CreateAt(o, base, members.Encode(), State{Term: 7, Vote: 2}))
	files, err := segment.Open(openOptions(o))
	must.Do(t, err)
	err = files.Append(&State{Term: 8, Vote: 1, Commit: 10}, []segment.Entry{
		{Index: 11, Term: 3, Kind: core.KindCommand, Data: []byte("a")},
		{Index: 12, Term: 8, Kind: core.KindCommand, Data: []byte("b")},
		{Index: 13, Term: 8, Kind: core.KindCommand, Data: []byte("c")},
	})
	if err == nil {
		err = files.Sync()
	}
	if err == nil {
		err = files.Abandon() // as a kill would leave it
	}
	must.Do(t, err)
	name := filepath.Join(dir, segmentsDir, "0000000000000001.log")
	before := must.Get(os.ReadFile(name))(t)
	out, err := ReadOutline(dir, o.Identity)
	if err != nil || out.State != (State{Term: 8, Vote: 1, Commit: 10}) || !reflect.DeepEqual(out.Members, members) {
		t.Fatalf("%+v, %v", out, err)
	}
	for _, test := range []struct {
		at   Position
		want bool
	}{
		{Position{Index: 9, Term: 3}, true}, // the log begins after it
		{Position{Index: 10, Term: 3}, true},
		{Position{Index: 11, Term: 3}, true},
		{Position{Index: 12, Term: 8}, true},
		{Position{Index: 12, Term: 9}, false}, // another leader's entry is committed there
		{Position{Index: 13, Term: 8}, false}, // nothing follows it
		{Position{Index: 14, Term: 9}, false},
	} {
		check.Equal(t, out.Ahead(test.at), test.want, "ahead of %s: %v", test.at)
	}
	check.Equal(t, string(must.Get(os.ReadFile(name))(t)), string(before), "the log was changed: got %v")
	if _, err := ReadOutline(dir, []byte("another")); !IsDamage(err) {
		t.Errorf("the log of another directory: %v", err)
	}
	if _, err := ReadOutline(t.TempDir(), o.Identity); err == nil {
		t.Error("a log that is not there has an outline")
	}
}

// A log that starts from another node's state has at least the term of that state.
func TestCreateAtKeepsTermAndVote(t *testing.T) {
	t.Parallel()
	members := core.Members{Voters: []uint64{1, 2}, Highest: 2}
	at := Position{Index: 10, Term: 3}
	for _, test := range []struct{ before, want State }{
		{State{}, State{Term: 3, Commit: 10}},
		{State{Term: 2, Vote: 1, Commit: 4}, State{Term: 3, Commit: 10}},
		{State{Term: 3, Vote: 1}, State{Term: 3, Vote: 1, Commit: 10}},
		{State{Term: 9, Vote: 2, Commit: 12}, State{Term: 9, Vote: 2, Commit: 12}},
	} {
		dir := filepath.Join(t.TempDir(), "log")
		o := options(dir, new(recorder))
		must.Do(t, CreateAt(o, at, members.Encode(), test.before))
		out, err := ReadOutline(dir, o.Identity)
		if err != nil || out.State != test.want || !reflect.DeepEqual(out.Members, members) {
			t.Errorf("of %+v it made %+v, %v", test.before, out, err)
		}
		if err := CreateAt(o, at, members.Encode(), test.before); err == nil {
			t.Error("a log was made where one is")
		}
	}
	o := options(filepath.Join(t.TempDir(), "log"), new(recorder))
	for name, encoded := range map[string][]byte{
		"none": nil, "too many bytes": append(members.Encode(), 0), "no node": new(core.Members).Encode(),
	} {
		if err := CreateAt(o, at, encoded, State{}); err == nil {
			t.Errorf("members with %s were taken", name)
		}
	}
}

// openOptions returns the options of the log's files.
func openOptions(o Options) segment.Options {
	o.setDefaults()
	return o.segments(false)
}
