package follow

import (
	"errors"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A closed Client never answers again, so Into ends.
func TestClosedClient(t *testing.T) {
	t.Parallel()
	c := must.Get(client.New(client.Options{Server: "127.0.0.1:1"}))(t)
	must.Do(t, c.Close())
	for _, err := range c.Watch(t.Context(), new(seqledgerv1.WatchRequest)) {
		if !errors.Is(err, failure.ErrClosed) || passes(err) {
			t.Errorf("Into would retry after %v", err)
		}
	}
}
