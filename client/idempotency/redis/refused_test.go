package redis

import (
	"errors"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A server that denies the access has answered; one that loads its data or has lost its master has not.
func TestRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"NOPERM this user has no permissions to run the 'eval' command": true, "NOAUTH Authentication required.": true,
		"WRONGPASS invalid username-password pair": true, "LOADING Redis is loading the dataset in memory": false,
		"CLUSTERDOWN The cluster is down": false, "EOF": false,
	} {
		cause := errors.New(text)
		if err := refused(cause); errors.Is(err, idempotency.ErrRefused) != want || !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
	}
	must.Do(t, refused(nil))
}
