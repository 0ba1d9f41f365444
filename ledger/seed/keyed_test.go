package seed

import (
	"bytes"
	"crypto/sha256"
	"path/filepath"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The state that a node joins with includes the records of keys: one in progress, and results with their responses,
// including a response that is too long for the record.
func TestRecordsComeWithTheState(t *testing.T) {
	t.Parallel()
	first := serve(t, filepath.Join(t.TempDir(), "1"), listen(t))
	call := func(key string, c keyed.Command) *machine.KeyedRecord {
		t.Helper()
		c.AttemptID = keyed.AttemptID{1}
		out, err := first.Keyed(t.Context(), &machine.KeyedCommand{
			ID:    machine.KeyedID{Scope: scope, Principal: "user:1", Key: sha256.Sum256([]byte(key))},
			Actor: "client:test", MaxKeys: 10, Command: c,
		}, 0, nil)
		if err != nil || out.Code != machine.Keyed(keyed.Acquired) && out.Code != machine.Keyed(keyed.OK) {
			t.Fatal(out.Code, err)
		}
		return out.Keyed.Record
	}
	records := map[string][]byte{
		"pending": nil, "done": []byte("done"), "long": bytes.Repeat([]byte("response "), 1_000),
	}
	tokens := map[string]uint64{}
	for key, response := range records {
		tokens[key] = call(key, keyed.Command{
			Kind: keyed.Reserve, ValidUntil: time.Now().Add(time.Minute).UnixNano(), Lease: int64(time.Minute),
			TTL: int64(time.Hour),
		}).Token
		if response != nil {
			call(key, keyed.Command{Kind: keyed.Complete, Token: tokens[key], Response: response})
		}
	}
	listener, dir := listen(t), filepath.Join(t.TempDir(), "2")
	must.Do(t, Join(t.Context(), options(dir, listener.Addr().String(), first.address)))
	joined := serve(t, dir, listener)
	for key, response := range records {
		want := keyed.Committed
		if response == nil {
			want = keyed.Pending
		}
		id := machine.KeyedID{Scope: scope, Principal: "user:1", Key: sha256.Sum256([]byte(key))}
		must.Do(t, joined.View(t.Context(), func(v machine.View) error {
			k, err := v.Keyed(&id, joined.Now())
			if err != nil {
				return err
			}
			if _, err := v.ReadAttachments(k); err != nil {
				return err
			}
			if k.State != want || k.Token != tokens[key] || !bytes.Equal(k.Response, response) {
				t.Errorf("%s: %v under token %d with %d bytes", key, k.State, k.Token, len(k.Response))
			}
			return nil
		}), "%s", key)
	}
}
