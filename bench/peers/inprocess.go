package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// inProcess is a ledger in this process: no network, no encoding.
type inProcess struct {
	dir    string
	ledger *ledger.Ledger
}

func (i *inProcess) start(ctx context.Context, dir string) (err error) {
	i.dir = dir
	i.ledger, err = ledger.Open(ctx, ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	return err
}

func (i *inProcess) restart(ctx context.Context) error {
	if err := i.stop(); err != nil {
		return err
	}
	return i.start(ctx, i.dir)
}

func (i *inProcess) processes() []int { return []int{os.Getpid()} }

func (i *inProcess) stop() error {
	if i.ledger == nil {
		return nil
	}
	err := i.ledger.Close()
	i.ledger = nil
	return err
}

func (i *inProcess) connect(context.Context, placement) (conn, error) {
	return &inProcessConn{i.ledger}, nil
}

// logBytes returns how many bytes of log entries were written.
func (i *inProcess) logBytes() uint64 { return i.ledger.Stats().LogBytes }

type inProcessConn struct{ ledger *ledger.Ledger }

func (c *inProcessConn) write(_ context.Context, _ int, j *job) (answer, error) {
	// Like a caller without a deadline.
	out, err := c.ledger.Write(context.Background(), &machine.Write{
		Scope: machine.Scope{Organization: "bench", Vault: "peers"}, ClientID: j.client(), Actor: "system:bench",
		Sequence: j.sequence, Key: machine.Key{Present: true, UUID: j.key()},
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: j.payload}},
	})
	if err != nil {
		return answer{}, err
	}
	if out.Code != machine.Committed && out.Code != machine.Replayed {
		return answer{}, fmt.Errorf("refused: %s", out.Code)
	}
	return answer{reply: fmt.Sprint(out.Receipt.Index), replayed: out.Code == machine.Replayed}, nil
}

func (c *inProcessConn) retry(ctx context.Context, caller int, j *job) (answer, error) {
	return c.write(ctx, caller, j)
}

func (c *inProcessConn) close() error { return nil }
