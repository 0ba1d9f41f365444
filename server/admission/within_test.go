package admission

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A request and its first call are one request of the credential; each further call counts as one more.
func TestCallsWithinARequestCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the clock stands still
		c := must.Get(New(Options{Shares: true, Logger: slog.New(slog.DiscardHandler)}))(t)
		p := c.Party(newShare("agent"), Limits{Requests: 1, RequestsPerSecond: 3})
		h := c.BeforeAuth(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			within := func(want Bound) (leave func()) {
				t.Helper()
				leave, err := c.Within(ctx, p)
				refused, is := errors.AsType[*Refusal](err)
				if is != (want != boundCount) || is && refused.Bound != want {
					t.Fatalf("got %v, want a refusal because of %d", err, want)
				}
				return leave
			}
			leave := must.Get(c.Request(ctx, p))(t)
			defer leave()
			first := within(boundCount)
			within(Requests) // beside the first one
			first()
			for range 2 {
				within(boundCount)()
			}
			within(RequestsPerSecond)
			within(RequestsPerSecond) // the refused one has left nothing behind
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/mcp", http.NoBody))
		check.Equal(t, p.Share.used[Requests].Used(), 0, "places are kept: %v")
	})
}
