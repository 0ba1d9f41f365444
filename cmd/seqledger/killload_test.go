package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func killScope() *seqledgerv1.Scope {
	return &seqledgerv1.Scope{Organization: "acme", Vault: "kill"}
}

// killLoad is what the Writers were told.
type killLoad struct {
	mu       sync.Mutex
	received []map[uint64]*seqledgerv1.Receipt // by writer and sequence
	progress chan struct{}                     // has room for one: a write was acknowledged
	end      func()                            // ends the Writers
}

// startLoad starts Writers, each with the client that conn returns.
func startLoad(t *testing.T, writers int, conn func() *client.Client) *killLoad {
	t.Helper()
	l := &killLoad{received: make([]map[uint64]*seqledgerv1.Receipt, writers), progress: make(chan struct{}, 1)}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range writers {
		l.received[i] = map[uint64]*seqledgerv1.Receipt{}
		w := must.Get(writer.Open(t.Context(), conn(), writer.Options{
			Scope: killScope(), ClientID: fmt.Sprint("writer-", i),
		}))(t)
		running.Go(func() { l.write(t, w, i, stop) }) // ends with stop
	}
	l.end = sync.OnceFunc(func() {
		close(stop)
		running.Wait()
	})
	return l
}

func (l *killLoad) write(t *testing.T, w *writer.Writer, id int, stop chan struct{}) {
	for n := 1; ; n++ {
		select {
		case <-stop:
			must.Do(t, w.Close(context.Background()), "writer %d: close", id)
			return
		default:
		}
		receipt, err := w.Write(context.Background(), &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: fmt.Appendf(nil, "%d/%d", id, n)},
		}})
		if err != nil {
			t.Errorf("writer %d: write %d: %v", id, n, err)
			return
		}
		l.mu.Lock()
		l.received[id][uint64(n)] = receipt
		l.mu.Unlock()
		select {
		case l.progress <- struct{}{}:
		default:
		}
	}
}

// audit reads the whole scope and compares.
func (l *killLoad) audit(t *testing.T, c *client.Client) {
	t.Helper()
	acknowledged, found := 0, map[string]*seqledgerv1.Transaction{}
	want := 0
	for _, m := range l.received {
		want += len(m)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hangs+time.Duration(want)*time.Millisecond)
	defer cancel()
	for block, err := range c.Watch(ctx, &seqledgerv1.WatchRequest{Scope: killScope()}) {
		must.Do(t, err, "after %d of %d transactions", len(found), want)
		for _, tx := range block.GetTransactions() {
			key := fmt.Sprintf("%s %d", tx.GetClientId(), tx.GetSequence())
			if found[key] != nil {
				t.Errorf("%s was committed twice", key)
			}
			found[key] = tx
		}
		if len(found) >= want {
			break
		}
	}
	for id, m := range l.received {
		for n, receipt := range m {
			acknowledged++
			tx := found[fmt.Sprintf("writer-%d %d", id, n)]
			payload := fmt.Sprintf("%d/%d", id, n)
			if tx == nil || tx.GetTxId() != receipt.GetTxId() || tx.GetBlockHeight() != receipt.GetBlockHeight() ||
				string(tx.GetOperations()[0].GetAppend().GetPayload()) != payload {
				t.Errorf("writer %d sequence %d: acknowledged %v, found %v", id, n, receipt, tx)
			}
		}
	}
	if acknowledged == 0 || acknowledged != len(found) {
		t.Errorf("%d acknowledged, %d found: every write was answered in the end", acknowledged, len(found))
	}
	t.Logf("%d acknowledged", acknowledged)
}
