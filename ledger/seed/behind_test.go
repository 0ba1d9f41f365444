package seed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
)

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	must.Await(t, holds, what)
}

// writeAny writes to the leader, whichever node that is.
func writeAny(t *testing.T, sequence uint64, payload []byte, nodes ...*node) {
	t.Helper()
	await(t, fmt.Sprint("write ", sequence), func() bool {
		for _, n := range nodes {
			o, err := n.Write(t.Context(), &machine.Write{
				Scope: scope, ClientID: "c", Actor: "system:test", Sequence: sequence,
				Operations: []machine.Operation{{Kind: machine.OpAppend, Value: payload}},
			})
			var elsewhere *cluster.NotLeaderError
			switch {
			case err == nil && (o.Code == machine.Committed || o.Code == machine.Replayed):
				return true
			case err == nil:
				t.Fatalf("write %d: %s", sequence, o.Code)
			case !errors.As(err, &elsewhere) && !errors.Is(err, ledger.ErrOutcomeUnknown):
				t.Fatal(err)
			}
		}
		return false
	})
}

// listenAlone returns a listener whose port no other test takes once it is closed.
func listenAlone(t *testing.T) net.Listener {
	t.Helper()
	if runtime.GOOS != "linux" {
		return listen(t) // most systems have only one loopback address
	}
	l := must.Get(net.Listen("tcp", "127.0.0.3:0"))(t)
	return l
}

// listenAgain listens at the address of a node that has closed its listener.
func listenAgain(t *testing.T, address string) net.Listener {
	t.Helper()
	l := must.Get(freeport.Listen(t.Context(), address))(t)
	return l
}

// While a node is away, the others drop the log that it needs. It fails, takes the state of another node, and follows
// again under its own id. The same holds when it is needed for a majority: another of the three is lost, and the one
// that is left cannot confirm that its state is current.
func TestNodeThatIsBehind(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"two others": false, "one other": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodeBehind(t, lost)
		})
	}
}

func nodeBehind(t *testing.T, lost bool) {
	t.Helper()
	shortLog := func(o *ledger.Options) { o.LogBytes = 64 << 10 } // a seed multiplies it
	var nodes []*node
	var listeners []net.Listener
	var dirs []string
	for id := 1; id <= 3; id++ {
		listeners, dirs = append(listeners, listenAlone(t)), append(dirs, filepath.Join(t.TempDir(), fmt.Sprint(id)))
		if id > 1 {
			o := options(dirs[id-1], listeners[id-1].Addr().String(), nodes[0].address)
			must.Do(t, Join(t.Context(), o))
		}
		nodes = append(nodes, serve(t, dirs[id-1], listeners[id-1], shortLog))
	}
	await(t, "three voters", func() bool {
		for _, n := range nodes {
			s := n.Cluster().Status()
			voters := 0
			for _, m := range s.Members {
				if m.Voter {
					voters++
				}
			}
			if voters != 3 {
				return false
			}
		}
		return true
	})
	writeAny(t, 1, []byte("all of them have it"), nodes...)
	must.Do(t, nodes[2].Close())
	sequence := uint64(2)
	await(t, "the others have dropped the beginning of their logs", func() bool {
		writeAny(t, sequence, bytes.Repeat([]byte{byte(sequence)}, 256<<10), nodes[:2]...)
		sequence++
		for _, dir := range dirs[:2] {
			if _, err := os.Stat(filepath.Join(dir, "log", "segments", "0000000000000001.log")); err == nil {
				return false
			}
		}
		return true
	})
	others := nodes[:2]
	if lost {
		must.Do(t, nodes[1].Close())
		others = nodes[:1]
	}
	reopened := serve(t, dirs[2], listenAgain(t, nodes[2].address), shortLog)
	select {
	case <-reopened.Failed():
	case <-time.After(2 * time.Minute):
		t.Fatal("the node never found out that it is behind")
	}
	behind, is := errors.AsType[*cluster.BehindError](reopened.Err())
	if !is {
		t.Fatal(reopened.Err())
	}
	_ = reopened.Close()                     // returns the failure
	o := options(dirs[2], "", "127.0.0.1:1") // no node listens there; the log names the others
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.Do(t, Again(ctx, o, behind.At.Index))
	back := serve(t, dirs[2], listenAgain(t, nodes[2].address), shortLog)
	others = append(slices.Clone(others), back)
	writeAny(t, sequence, []byte("all of them again"), others...)
	want := standing(t, nodes[0])
	for _, n := range others[1:] {
		if got := standing(t, n); got != want {
			t.Errorf("node %d is at %s, and the first one at %s", n.Cluster().Status().Self, got, want)
		}
	}
	check.Equal(t, back.Cluster().Status().Self, 3, "it is node %d")
}
