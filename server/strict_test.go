package server

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// decodeFrame decodes a frame of a WriteStream in JSON.
func decodeFrame(body string) *frame {
	f := new(frame)
	f.decodeJSON([]byte(body))
	return f
}

// TestFrameInJSON: a mistake in one write is that write's; a mistake in the
// frame is the frame's, however lenient encoding/json would be about it.
func TestFrameInJSON(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct {
		invalid string // the field of the frame's error, "-" for none
		bad     []int
		writes  int
	}{
		`{}`:                          {"-", nil, 0},
		`{"writes":[]}`:               {"-", nil, 0},
		`{"writes":[{},{}]}`:          {"-", nil, 2},
		`{"writes":[{},{"x":1},{}]}`:  {"-", []int{1}, 3},
		`{"writes":[null,{"x":1}]}`:   {"-", []int{0, 1}, 2},
		`{"writes":[1,"a",[],{}]}`:    {"-", []int{0, 1, 2}, 4},
		`{"Writes":[{}]}`:             {"Writes", nil, 0},
		`{"WRITES":[{}]}`:             {"WRITES", nil, 0},
		`{"writes":[{}],"x":1}`:       {"x", nil, 0},
		`{"writes":[],"writes":[{}]}`: {"writes", nil, 0},
		`{"writes":{}}`:               {"writes", nil, 0},
		`{"writes":[{}]`:              {"", nil, 0},
		`{"writes":[{}]}{}`:           {"", nil, 0},
		`[]`:                          {"", nil, 0},
		`nonsense`:                    {"", nil, 0},
		``:                            {"", nil, 0},
	} {
		f := decodeFrame(body)
		field, refused := f.invalid.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if refused != (want.invalid != "-") || refused && field.Field != want.invalid {
			t.Errorf("%s: the frame's error is %v, want the field %q", body, f.invalid, want.invalid)
			continue
		}
		if refused {
			continue
		}
		var bad []int
		for i := range f.bad {
			bad = append(bad, i)
		}
		slices.Sort(bad)
		if len(f.writes) != want.writes || !slices.Equal(bad, want.bad) {
			t.Errorf("%s: got %d writes, bad ones at %v; want %+v", body, len(f.writes), bad, want)
		}
	}
}

// TestFrameInBinary is the same for the binary encoding: one damaged write
// between two whole ones.
func TestFrameInBinary(t *testing.T) {
	t.Parallel()
	whole := everything()
	damaged := everything()
	damaged.ClientId = "?"
	m := &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{whole, damaged, whole}}
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(data), "\x12\x01?", "\x12\x01\xff", 1) // field 2, one byte: not UTF-8
	if text == string(data) {
		t.Fatal("the sample has no client id to damage")
	}
	f := new(frame)
	f.decodeBinary([]byte(text))
	if f.invalid != nil || len(f.writes) != 3 || len(f.bad) != 1 {
		t.Fatal(f.invalid, len(f.writes), f.bad)
	}
	field, ok := f.bad[1].(*machine.FieldError) //nolint:errorlint // Not wrapped.
	if !ok || field.Field != "client_id" || field.Problem != "is not UTF-8" {
		t.Error(f.bad[1])
	}
	for _, i := range []int{0, 2} {
		if !proto.Equal(f.writes[i], whole) {
			t.Errorf("write %d came out as %v", i, f.writes[i])
		}
	}
	b := &batch{size: 3}
	if writes := b.convert(f, newAuthorizationCache(anonymous)); len(writes) != 2 || len(b.invalid) != 1 ||
		b.invalid[0].place != 1 {
		t.Error("the damaged write must be refused in its place:", len(writes), b.invalid)
	}
}

// TestErrorsDoNotRepeatHugeInput: a refusal of five mebibytes is not five
// mebibytes.
func TestErrorsDoNotRepeatHugeInput(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 1<<20)
	for name, body := range map[string]string{
		"field": `{"` + huge + `":1}`,
		"value": `{"sequence":"` + huge + `"}`,
		"key":   `{"idempotencyKey":"` + huge + `","scope":{"organization":"a"}}`,
	} {
		m := new(seqledgerv1.WriteRequest)
		err := decodeJSON([]byte(body), m)
		if err == nil {
			err = newConverter("system:test", m).write(new(machine.Write), m)
		}
		if err == nil || len(err.Error()) > 1_000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// TestResultsMemoryIsClean: a response reuses the memory of the previous one, and must not show
// any of it.
func TestResultsMemoryIsClean(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	committed := func(n uint64, versions int) machine.Outcome {
		r := machine.Receipt{Sequence: n, Index: n, CommittedAt: int64(n) * 1e9, Actor: anonymous.Actor(), Replayed: n%2 == 0}
		for range versions {
			r.Versions = append(r.Versions, n)
		}
		return machine.Outcome{Code: machine.Committed, Receipt: r}
	}
	var used results
	for round, outcomes := range [][]machine.Outcome{
		{committed(1, 3), {Code: machine.SequenceGap, Last: 4}, committed(2, 100)},
		{{Code: machine.KeyExists, EntityKey: []byte("k")}, committed(3, 1)},
		{committed(4, 0), committed(5, 500), committed(6, 1), {Code: machine.SessionFenced}},
		{committed(7, maxKeptVersions+1)},
		{committed(8, 1)}, // in new memory
	} {
		var fresh results
		b := &batch{size: len(outcomes), outcomes: outcomes, writes: make([]batchWrite, len(outcomes))}
		for _, r := range []*results{&used, &fresh} {
			r.reset()
			r.add(t.Context(), s, admission.Party{}, b)
		}
		if used.count() != len(outcomes) || !proto.Equal(&used.response, &fresh.response) {
			t.Errorf("round %d: got %v, want %v", round, &used.response, &fresh.response)
		}
		for i := range outcomes {
			if got := len(used.response.Results[i].GetReceipt().GetResults()); got != len(outcomes[i].Receipt.Versions) {
				t.Errorf("round %d, result %d: %d operations, want %d", round, i, got, len(outcomes[i].Receipt.Versions))
			}
		}
	}
}

func TestResultsMemoryIsGivenBack(t *testing.T) {
	t.Parallel()
	var r results
	giant := machine.Outcome{Code: machine.Committed,
		Receipt: machine.Receipt{Versions: make([]uint64, maxKeptVersions+1)}}
	r.reset()
	r.add(t.Context(), newTestServer(t, Options{}), admission.Party{},
		&batch{size: 1, outcomes: []machine.Outcome{giant}, writes: make([]batchWrite, 1)})
	if len(r.versions) <= maxKeptVersions {
		t.Fatal("the sample is too small")
	}
	if r.reset(); r.slots != nil || r.versions != nil {
		t.Error("a giant response must not be kept")
	}
}
