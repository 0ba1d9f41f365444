package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	keptWrites = 350
	keptWindow = 8 // receipts of a stream
	keptKeys   = 12
)

// standing is a clock with which ledger time goes on where it was: by today's, the streams of an old directory
// would have expired.
func standing() time.Time { return time.Time{} }

// oldWrite is write i of an old directory.
func oldWrite(i int) *machine.Write {
	w := appendWrite(fmt.Sprintf("client-%02d", i%7), uint64(i/7)+1, fmt.Append(nil, "payload ", i))
	w.Key = machine.Key{UUID: [16]byte{byte(i), byte(i >> 8), 1}, Present: true}
	w.Operations = append(w.Operations,
		machine.Operation{Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "account/%d", i%11),
			Value: fmt.Appendf(nil, "%0100d", i)},
		machine.Operation{Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "lease/%d", i), Value: []byte("x"),
			ExpiresAt: 1},
		machine.Operation{Kind: machine.OpCreateRelationship, Key: []byte("doc"), Relation: []byte("owner"),
			Subject: fmt.Appendf(nil, "u%d", i%5)})
	return w
}

func keptOptions(dir string) ledger.Options {
	config := machine.DefaultConfig()
	config.EvictionInterval, config.ReceiptWindow = 10, keptWindow
	return ledger.Options{
		Dir: dir, Logger: slog.New(slog.DiscardHandler), CheckpointBytes: 48 << 10, LogBytes: 64 << 10, Config: config,
	}
}

// keptKey is a command on a key of a directory: some are reserved alone, others have a response of either size.
func keptKey(i int) *machine.KeyedCommand {
	return &machine.KeyedCommand{
		ID: machine.KeyedID{
			Scope: scope, Namespace: "jobs", Principal: fmt.Sprint("user:", i%3), Key: [32]byte{byte(i)},
		},
		Actor: "client:test", MaxKeys: 100, Command: keyed.Command{
			Kind: keyed.Reserve, AttemptID: keyed.AttemptID{byte(i), 5},
			Lease: int64(keyed.MaxLease), TTL: int64(keyed.MaxTTL),
			Fingerprint: keyed.Fingerprint{Algorithm: 1, Digest: [32]byte{byte(i)}},
		},
	}
}

func keptWrite(i int) *machine.KeyedWrite {
	return &machine.KeyedWrite{
		ID:    machine.KeyedID{Scope: scope, Principal: "client:test", Key: [32]byte{byte(i), 1}},
		Actor: "client:test", TTL: int64(keyed.MaxTTL), MaxKeys: 100,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: fmt.Appendf(nil, "by key %d", i)}},
	}
}

// fillKept writes what is in a directory, from one write on, and calls acknowledged behind each.
func fillKept(l *ledger.Ledger, from, to int, acknowledged func(i int, r machine.Receipt) error) error {
	ctx := context.Background()
	for i := from; i < to; i++ {
		out, err := l.Write(ctx, oldWrite(i))
		if err != nil || out.Code != machine.Committed {
			return fmt.Errorf("write %d: %v: %w", i, out.Code, err)
		}
		if key := i / 10; i%10 == 0 && key < keptKeys {
			if err := fillKey(l, key); err != nil {
				return fmt.Errorf("key %d: %w", key, err)
			}
		}
		if err := acknowledged(i, out.Receipt); err != nil {
			return err
		}
	}
	return nil
}

func fillKey(l *ledger.Ledger, key int) error {
	ctx := context.Background()
	c := keptKey(key)
	c.ValidUntil = l.Now() + int64(time.Minute)
	out, err := l.Keyed(ctx, c, 0, nil)
	if err != nil || out.Code != machine.Keyed(keyed.Acquired) {
		return fmt.Errorf("reserve: %v: %w", out.Code, err)
	}
	if key%3 > 0 {
		c.Kind, c.Token, c.TTL = keyed.Complete, out.Keyed.Record.Token, 0
		c.Response = []byte(strings.Repeat("response ", 1+key%3*50))
		if out, err = l.Keyed(ctx, c, 0, nil); err != nil || out.Code != machine.Keyed(keyed.OK) {
			return fmt.Errorf("complete: %v: %w", out.Code, err)
		}
	}
	out, err = l.WriteKeyed(ctx, keptWrite(key), nil)
	if err != nil || out.Code != machine.Committed {
		return fmt.Errorf("keyed write: %v: %w", out.Code, err)
	}
	return nil
}

// keptIsThere starts a ledger on a directory, and asks for everything in it.
func keptIsThere(t *testing.T, dir string, writes int, forgets bool) {
	t.Helper()
	const clients = 7
	l := open(t, ledger.Options{Dir: dir, Clock: standing, Logger: slog.New(slog.DiscardHandler)})
	replayed := 0
	for i := range writes {
		out, err := l.Write(t.Context(), oldWrite(i))
		if err != nil || out.Code != machine.Replayed && out.Code != machine.AlreadyCommitted {
			t.Errorf("write %d: %v %v", i, out.Code, err)
		}
		if out.Code == machine.Replayed {
			replayed++
		}
	}
	if replayed < clients && !forgets || replayed > clients*keptWindow {
		t.Errorf("%d writes are answered with their receipts", replayed)
	}
	check.Equal(t, must.Get(l.Write(t.Context(), oldWrite(writes+clients)))(t).Code, machine.SequenceGap,
		"a write behind the next one: %v")
	for key := range keptKeys {
		out, err := l.WriteKeyed(t.Context(), keptWrite(key), nil)
		if err != nil || out.Code != machine.Replayed && out.Code != machine.AlreadyCommitted {
			t.Errorf("keyed write %d: %v %v", key, out.Code, err)
		}
		c := keptKey(key)
		c.AttemptID[1] = 6
		c.ValidUntil = l.Now() + int64(time.Minute)
		want := machine.Keyed(keyed.Replay)
		if key%3 == 0 {
			want = machine.Keyed(keyed.InFlight)
		}
		out, err = l.Keyed(t.Context(), c, 0, nil)
		if err != nil || out.Code != want ||
			key%3 > 0 && len(out.Keyed.Record.Response) != len("response ")*(1+key%3*50) {
			t.Errorf("key %d: %v %v, want %v", key, out.Code, err, want)
		}
	}
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		for i := writes - 11; i < writes; i++ {
			e, err := v.Entity(scope, fmt.Sprintf("account/%d", i%11))
			if err != nil || string(e.Value) != fmt.Sprintf("%0100d", i) {
				return fmt.Errorf("account/%d is %q: %w", i%11, e.Value, err)
			}
		}
		return nil
	}))
	closeLedger(t, l)
}
