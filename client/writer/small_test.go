package writer

import (
	"testing"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestVerdicts of all codes. One that is not here, of this version or a newer one, ends the Writer.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	want := map[string]verdict{
		"ALREADY_COMMITTED": verdictCommitted, "SEQUENCE_GAP": verdictGap,
		"QUEUE_FULL": verdictRetry, "NOT_LEADER": verdictRetry, "DRAINING": verdictRetry,
		"OUTCOME_UNKNOWN": verdictRetry,
		"KEY_EXISTS":      verdictRefused, "KEY_NOT_FOUND": verdictRefused, "VERSION_MISMATCH": verdictRefused,
		"VALUE_MISMATCH": verdictRefused, "INVALID_ARGUMENT": verdictRefused, "PERMISSION_DENIED": verdictRefused,
		"TOO_MANY_STREAMS": verdictRefused,
	}
	for number, name := range seqledgerv1.WriteErrorCode_name {
		due, known := want[name[len("WRITE_ERROR_CODE_"):]]
		if !known {
			due = verdictFatal
		}
		refusal := failure.FromStream(&seqledgerv1.WriteError{Code: seqledgerv1.WriteErrorCode(number)})
		if got := verdictOf(refusal); got != due || due == verdictRetry && !refusal.IsTemporary() {
			t.Errorf("%s is %d, want %d", name, got, due)
		}
	}
}

// TestRingKeepsTheOrder through growth and wrapping, compared with a slice.
func TestRingKeepsTheOrder(t *testing.T) {
	t.Parallel()
	var r ring[int]
	var model []int
	for i := range 1000 {
		r.push(i)
		model = append(model, i)
		if i%3 == 2 {
			must.Equal(t, r.pop(), model[0], "popped %d")
			model = model[1:]
		}
	}
	if r.len() != len(model) {
		t.Fatalf("%d left, want %d", r.len(), len(model))
	}
	for i, want := range model {
		must.Equal(t, r.at(i), want, "at(%d) is %d", i)
	}
}

// TestTheLedgerIDIsFoundInATxID around the version, the variant and the index; other text has
// none.
func TestTheLedgerIDIsFoundInATxID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"01234567-89ab-8cde-bc00-000000000001": 0x0123456789abcdef,
		"01234567-89ab-8cde-bfff-ffffffffffff": 0x0123456789abcdef, // the greatest index
		"ffffffff-ffff-8fff-bc00-000000000007": 1<<64 - 1,
		"00000000-0000-8000-8400-000000000007": 1,
	} {
		if got, ok := ledgerOf(text); !ok || got != want {
			t.Errorf("%s is of ledger %016x, got %016x, %v", text, want, got, ok)
		}
	}
	for _, text := range []string{"", "tx-1", "01234567-89ab-7cde-bc00-000000000001", "01234567-89ab-8cde-bc00"} {
		if _, ok := ledgerOf(text); ok {
			t.Errorf("%q is not a tx_id", text)
		}
	}
}
