package server

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
)

// TestABlockThatIsTooLarge for one message is refused with a code that clients do not repeat. The answer names what can
// be read: its parts, and its header.
func TestABlockThatIsTooLarge(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	payload := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 1<<20)))
	append4 := strings.Repeat(fmt.Sprintf(`{"append":{"payload":%q}},`, payload), 3) + `{"append":{}}`
	body := `{"scope":{"organization":"acme"},"clientId":"c","sequence":1,"operations":[` + append4 + `]}`
	if w := post(s.handler, seqledgerv1connect.LedgerServiceWriteProcedure, body); w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	for content, want := range map[seqledgerv1.BlockContent]connect.Code{
		seqledgerv1.BlockContent_BLOCK_CONTENT_UNSPECIFIED: connect.CodeOutOfRange,
		seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS:       0,
		seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER:      0,
	} {
		party := admission.Party{Limits: admission.Limits{MessageBytes: 4 << 20}} // half of it for a block
		chain := &machine.Chain{Scope: machine.Scope{Organization: "acme"}}
		reader := &blockReader{s, party, chain, content, s.options.Ledger.Chain}
		block, err := reader.read(t.Context(), 1, nil)
		if want == 0 {
			if err != nil || block.GetHeader().GetHeight() != 1 {
				t.Errorf("%v: %v", content, err)
			}
			continue
		}
		err = connectError(t.Context(), s.options.Logger, err)
		if connect.CodeOf(err) != want || !strings.Contains(err.Error(), "BLOCK_CONTENT_PARTS") ||
			!strings.Contains(err.Error(), "BLOCK_CONTENT_HEADER") {
			t.Errorf("%v: got %v, want %v that names what to ask for", content, err, want)
		}
	}
}
