package redis

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A command is tried on every connection of the pool that may have been left, and not without end.
func TestConnectionsThatWereLeftAreCounted(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{PoolSize: 5})
	t.Cleanup(func() { _ = client.Close() })
	b := &backend{client: client, connections: new(connections)}
	for _, left := range []int{5, 6} {
		tried := 0
		err := b.do(t.Context(), false, func() error {
			if tried++; tried <= left {
				return errLeft
			}
			return nil
		})
		if errors.Is(err, errLeft) != (left > 5) || tried != 6 {
			t.Errorf("%d connections were left: %v after %d tries", left, err, tried)
		}
	}
}

func TestUnableServers(t *testing.T) {
	t.Parallel()
	for text, unable := range map[string]bool{
		"READONLY You can't write against a read only replica.":                                          true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":               true,
		"LOADING Redis is loading the dataset in memory":                                                 true,
		"CLUSTERDOWN The cluster is down":                                                                true,
		"ERR Error running script (call to f_1): @user_script:25: @user_script: 25: -READONLY You can't": true,
		"ERR unknown command 'READONLY'":                                                                 false,
		"OOM command not allowed when used memory > 'maxmemory'.":                                        false,
		"NOREPLICAS Not enough good replicas to write.":                                                  false,
	} {
		if isUnable(errors.New(text)) != unable {
			t.Error(text)
		}
	}
	if isUnable(nil) {
		t.Error("no error is an error")
	}
}
