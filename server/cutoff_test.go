package server

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/cluster"
)

// TestAwaitCutOff: an election, or several that each elect a leader, end nothing. Changes while there is no leader
// prolong nothing.
func TestAwaitCutOff(t *testing.T) {
	t.Parallel()
	someone, none := cluster.Leader{ID: 1, Peer: "a"}, cluster.Leader{}
	type change struct {
		after  time.Duration
		leader cluster.Leader
	}
	const second = time.Second
	for name, test := range map[string]struct {
		changes []change
		ends    time.Duration // after the beginning; 0: never
		silent  time.Duration // from when on nothing is heard of a leader that is still believed in; 0: never
		heard   time.Duration // when it is heard of again; 0: never
	}{
		"a leader":   {[]change{{0, someone}}, 0, 0, 0},
		"none":       {nil, 10 * second, 0, 0},
		"elections":  {[]change{{9 * second, someone}, {second, none}, {9 * second, someone}}, 0, 0, 0},
		"lost later": {[]change{{0, someone}, {60 * second, none}}, 70 * second, 0, 0},
		"many attempts": {
			[]change{{4 * second, cluster.Leader{Term: 2}}, {4 * second, cluster.Leader{Term: 3}}}, 10 * second, 0, 0,
		},
		"this node": {[]change{{second, cluster.Leader{Self: true}}}, 0, 0, 0},
		// Looked at every ten seconds, and then given ten more.
		"a silent leader": {[]change{{0, someone}}, 50 * second, 35 * second, 0},
		// What is heard of a leader again changes nothing that wakes.
		"a pause": {[]change{{0, someone}}, 0, 35 * second, 45 * second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var mu sync.Mutex // guards the next two
				leader, changed := none, make(chan struct{})
				began, ended := time.Now(), time.Duration(0)
				// Ends with ctx.
				go awaitCutOff(ctx, func() (bool, <-chan struct{}) {
					mu.Lock()
					defer mu.Unlock()
					return known(leader) && (test.silent == 0 || time.Since(began) < test.silent ||
						test.heard > 0 && time.Since(began) >= test.heard), changed
				}, 10*second, func(cause error) {
					ended = time.Since(began)
					if _, is := errors.AsType[*cluster.NotLeaderError](cause); !is {
						t.Errorf("the cause is %v", cause)
					}
				})
				for _, c := range test.changes {
					<-time.After(c.after) // of the bubble's clock
					synctest.Wait()
					mu.Lock()
					leader = c.leader
					close(changed)
					changed = make(chan struct{})
					mu.Unlock()
					synctest.Wait()
				}
				<-time.After(time.Hour)
				cancel()
				synctest.Wait()
				check.Equal(t, ended, test.ends, "ended after %v")
			})
		})
	}
}
