package redis

import (
	"errors"
	"testing"
)

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
