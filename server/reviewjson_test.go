package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// TestReviewLargestWriteInJSON: the limits of a write are those of its operations, so
// that a write within them is taken in every encoding.
func TestReviewLargestWriteInJSON(t *testing.T) {
	t.Parallel()
	h := start(t)
	key := strings.Repeat(`\n`, 1_024)
	operation := `{"createRelationship":{"resource":"` + key + `","relation":"` + key + `","subject":"` + key + `"}}`
	body := `{"scope":{"organization":"acme"},"clientId":"c","sequence":"1","operations":[` +
		operation + strings.Repeat(","+operation, 999) + `]}`
	status, _, answer := h.post(t, seqledgerv1connect.LedgerServiceWriteProcedure, "application/json", body)
	if status != http.StatusOK {
		t.Errorf("3 MiB of keys, %d bytes of JSON: got %d %.200s", len(body), status, answer)
	}
	key = strings.Repeat(`\u0001`, 1_024)
	operation = `{"createRelationship":{"resource":"` + key + `","relation":"` + key + `","subject":"` + key + `"}}`
	body = `{"scope":{"organization":"acme"},"clientId":"d","sequence":"1","operations":[` +
		operation + strings.Repeat(","+operation, 999) + `]}`
	status, _, answer = h.post(t, seqledgerv1connect.LedgerServiceWriteProcedure, "application/json", body)
	if status != http.StatusOK {
		t.Errorf("3 MiB of keys, %d bytes of JSON: got %d %.200s", len(body), status, answer)
	}
}
