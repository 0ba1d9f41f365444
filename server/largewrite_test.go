package server_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestWriteBeyondTheLimit: a write that is too large, by any amount, is invalid: resource_exhausted would make the
// client repeat it for ever.
func TestWriteBeyondTheLimit(t *testing.T) {
	t.Parallel()
	h := start(t)
	for _, mebibytes := range []int{5, 7} {
		w := writeOf("c", 1)
		for range mebibytes {
			w.Operations = append(w.Operations, appendOp(strings.Repeat("x", 1<<20)))
		}
		_, err := h.client.Write(t.Context(), connect.NewRequest(w))
		if code, e := connect.CodeOf(err), detail(err); code != connect.CodeInvalidArgument ||
			e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT {
			t.Errorf("%d MiB: got %v with %v, want invalid_argument", mebibytes, err, e)
		}
	}
}
