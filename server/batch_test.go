package server

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// TestABatchAnswersInItsPlaces: an invalid write, one that does not decode and one that is refused have their answers
// where they stand in the frame.
func TestABatchAnswersInItsPlaces(t *testing.T) {
	t.Parallel()
	write := func(sequence uint64) *seqledgerv1.WriteRequest {
		return &seqledgerv1.WriteRequest{
			Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientId: "c", Sequence: sequence,
			Operations: []*seqledgerv1.Operation{
				{Operation: &seqledgerv1.Operation_Append{Append: new(seqledgerv1.Append)}}},
		}
	}
	data := must.Get(proto.Marshal(&seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{
		write(1), write(0), write(2), write(9)}}))(t)
	var f wire.Frame
	if err := (wire.BinaryCodec{}).Unmarshal(append(data, 0x0a, 2, 0x78, 1), &f); err != nil || len(f.Bad) != 1 {
		t.Fatal(err, f.Bad)
	}
	b := &batch{size: len(f.Writes)}
	if writes := new(converter).convert(b, &f, newAuthorizationCache(anonymous)); len(writes) != 3 {
		t.Fatal(len(writes), "writes are valid")
	}
	committed := func(n uint64) machine.Outcome {
		return machine.Outcome{Code: machine.Committed, Receipt: machine.Receipt{Sequence: n}}
	}
	b.outcomes = []machine.Outcome{committed(1), committed(2), {Code: machine.SequenceGap, Last: 2}}
	var a answers
	a.add(t.Context(), newTestServer(t, Options{}), admission.Party{}, b)
	var got []string
	for _, r := range a.Response().Results {
		e := r.GetError()
		got = append(got, fmt.Sprint(r.GetReceipt().GetSequence(), " ", e.GetField(), e.GetCode()))
	}
	want := []string{"1 WRITE_ERROR_CODE_UNSPECIFIED", "0 sequenceWRITE_ERROR_CODE_INVALID_ARGUMENT",
		"2 WRITE_ERROR_CODE_UNSPECIFIED", "0 WRITE_ERROR_CODE_SEQUENCE_GAP", "0 15WRITE_ERROR_CODE_INVALID_ARGUMENT"}
	if !slices.Equal(got, want) || a.tally != (tally{committed: 2, refused: 3}) {
		t.Errorf("got %q and %+v, want %q", got, a.tally, want)
	}
}
