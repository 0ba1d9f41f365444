package payments

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var scope = &seqledgerv1.Scope{Organization: "acme", Vault: "main"}

// connected returns a client of a ledger in this process.
func connected(t *testing.T) *client.Client {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := must.Get(embedded.Open(t.Context(), embedded.Options{Dir: filepath.Join(t.TempDir(), "data"),
		Listener: listener}))(t)
	c := must.Get(client.New(client.Options{Server: listener.Addr().String()}))(t)
	t.Cleanup(func() {
		check.Is(t, errors.Join(c.Close(), l.Close()), nil)
	})
	return c
}

// payer opens a Payer with a payment log of these payments.
func payer(t *testing.T, c *client.Client, dir string, intend ...*Payment) (*Payer, *Log) {
	t.Helper()
	l := must.Get(OpenLog(filepath.Join(dir, "payments"), false))(t)
	t.Cleanup(func() { _ = l.Close() })
	p := must.Get(Open(t.Context(), Options{Client: c, Dir: dir, Scope: scope, ClientID: "till", Log: l}))(t)
	must.Do(t, l.Intend(intend...))
	return p, l
}

// indexOf returns the version of a payment's entity, 0 if there is none.
func indexOf(t *testing.T, c *client.Client, tag string) uint64 {
	t.Helper()
	e, err := c.GetEntity(t.Context(), &seqledgerv1.GetEntityRequest{Scope: scope, Key: entityKey + tag})
	if errors.Is(err, failure.ErrNotFound) {
		return 0
	}
	must.Do(t, err)
	return e.GetVersion()
}

func some(n int) (list []*Payment) {
	for i := range n {
		list = append(list, &Payment{Tag: fmt.Sprint("t-", i), Cents: int64(100 + i)})
	}
	return list
}

// TestPost: more payments than are under way at once are all paid, recorded with their transactions, and nothing is
// left in the journal.
func TestPost(t *testing.T) {
	t.Parallel()
	c, dir := connected(t), t.TempDir()
	intended := some(2*Batch + 1)
	p, l := payer(t, c, dir, intended...)
	must.Do(t, p.Post(t.Context(), l.Unpaid()))
	if unpaid := l.Unpaid(); len(unpaid) > 0 {
		t.Errorf("still to pay: %v", unpaid)
	}
	must.Do(t, p.Close(t.Context()))
	content, err := os.ReadFile(filepath.Join(dir, "payments"))
	if err != nil || strings.Count(string(content), "\npaid ") != len(intended) ||
		strings.Contains(string(content), "sequence-") {
		t.Errorf("%v: %s", err, content)
	}
	versions := map[string]uint64{}
	for _, payment := range intended {
		versions[payment.Tag] = indexOf(t, c, payment.Tag)
		if versions[payment.Tag] == 0 {
			t.Errorf("%s is not in the ledger", payment.Tag)
		}
	}
	// Another start has nothing to settle, and nothing to pay.
	again, l := payer(t, c, dir)
	must.Do(t, errors.Join(again.Post(t.Context(), l.Unpaid()), again.Close(t.Context())))
	for tag, version := range versions {
		if now := indexOf(t, c, tag); now != version {
			t.Errorf("%s was paid at index %d, and again at %d", tag, version, now)
		}
	}
}

// TestJournalThatIsGone: a program with intended payments must not start with an empty journal, because what was sent
// would be paid again.
func TestJournalThatIsGone(t *testing.T) {
	t.Parallel()
	c, dir := connected(t), t.TempDir()
	p, l := payer(t, c, dir, some(1)...)
	must.Do(t, errors.Join(p.Close(t.Context()), l.Close()))
	must.Do(t, os.RemoveAll(filepath.Join(dir, "journal")))
	l = must.Get(OpenLog(filepath.Join(dir, "payments"), false))(t)
	defer func() { _ = l.Close() }()
	if _, err := Open(t.Context(), Options{Client: c, Dir: dir, Scope: scope, ClientID: "till", Log: l}); err == nil {
		t.Error("it was opened")
	}
	check.Is(t, check.Err(os.Stat(filepath.Join(dir, "journal"))), os.ErrNotExist, "a journal was made")
}

// killedAfter leaves the journal as a program does that was killed with payments under way: the first so many of them
// have reached the ledger.
func killedAfter(t *testing.T, c *client.Client, dir string, payments []*Payment, reached int) {
	t.Helper()
	path := filepath.Join(dir, "journal")
	j := must.Get(journal.Open(path, journal.Options{}))(t)
	w := must.Get(writer.Open(t.Context(), c, writer.Options{Scope: scope, ClientID: "till", Journal: j}))(t)
	for _, payment := range payments[:reached] {
		pending, err := w.SubmitTagged(t.Context(), payment.Tag, payment.Operation())
		if err == nil {
			_, err = pending.Wait(t.Context())
		}
		must.Do(t, err)
	}
	must.Do(t, errors.Join(w.Close(t.Context()), j.Close()))
}

// TestSettlesWhatAKillLeft: payments that reached the ledger and were not recorded are recorded at the next start, with
// the transaction that they had, and are not made again.
func TestSettlesWhatAKillLeft(t *testing.T) {
	t.Parallel()
	c, dir := connected(t), t.TempDir()
	intended := some(3)
	l, err := OpenLog(filepath.Join(dir, "payments"), false)
	if err == nil {
		err = errors.Join(l.Intend(intended...), l.Close())
	}
	must.Do(t, err)
	killedAfter(t, c, dir, intended, 2)
	before := indexOf(t, c, "t-0")
	p, l := payer(t, c, dir)
	if unpaid := l.Unpaid(); len(unpaid) != 1 || unpaid[0].Tag != "t-2" {
		t.Fatalf("still to pay: %v", unpaid)
	}
	must.Do(t, errors.Join(p.Post(t.Context(), l.Unpaid()), p.Close(t.Context())))
	if now := indexOf(t, c, "t-0"); now != before || indexOf(t, c, "t-2") == 0 {
		t.Errorf("t-0 was paid at index %d, and again at %d; t-2 at %d", before, now, indexOf(t, c, "t-2"))
	}
}

// TestTakenOverStream: another session has the stream, so that what the journal holds can never be sent again. What
// the ledger has of it is paid, and the rest is still to pay.
func TestTakenOverStream(t *testing.T) {
	t.Parallel()
	c, dir := connected(t), t.TempDir()
	intended := some(2)
	p, l := payer(t, c, dir, intended...)
	// Another writer of the stream, as a copy of the program on another machine is.
	j := must.Get(journal.Open(filepath.Join(t.TempDir(), "journal"), journal.Options{}))(t)
	other := must.Get(writer.Open(t.Context(), c, writer.Options{Scope: scope, ClientID: "till", Journal: j}))(t)
	pending, err := other.Submit(t.Context(), op.Set(entityKey+"t-0", []byte("100")))
	if err == nil {
		_, err = pending.Wait(t.Context())
	}
	must.Do(t, errors.Join(err, other.Close(t.Context()), j.Close()))
	before := indexOf(t, c, "t-0")
	if err := p.Post(t.Context(), l.Unpaid()); !errors.Is(err, failure.ErrFenced) || !strings.Contains(err.Error(),
		"t-0") {
		t.Fatalf("with a session that is over: %v", err)
	}
	_ = p.Close(t.Context()) // which tells again what is not settled
	must.Do(t, l.Close())
	again, l := payer(t, c, dir)
	unpaid := l.Unpaid()
	if len(unpaid) != 1 || unpaid[0].Tag != "t-1" {
		t.Fatalf("still to pay: %v", unpaid)
	}
	must.Do(t, errors.Join(again.Post(t.Context(), unpaid), again.Close(t.Context())))
	if now := indexOf(t, c, "t-0"); now != before || indexOf(t, c, "t-1") == 0 {
		t.Errorf("t-0 was paid at %d and at %d, t-1 at %d", before, now, indexOf(t, c, "t-1"))
	}
}

// TestOpenEndsWithItsContext, because it waits for a ledger that cannot be reached.
func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := must.Get(client.New(client.Options{Server: "127.0.0.1:1"}))(t)
	defer func() { _ = c.Close() }()
	dir := t.TempDir()
	l := must.Get(OpenLog(filepath.Join(dir, "payments"), false))(t)
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := Options{Client: c, Dir: dir, Scope: scope, ClientID: "till", Log: l}
	check.Is(t, check.Err(Open(ctx, o)), context.Canceled)
	// The journal was closed, so that it can be opened again.
	j := must.Get(journal.Open(filepath.Join(dir, "journal"), journal.Options{MustExist: true}))(t)
	must.Do(t, j.Close())
}

// TestAPersonSettles what is neither fenced nor expired: the Payer does not guess.
func TestAPersonSettles(t *testing.T) {
	t.Parallel()
	p := &Payer{options: Options{Scope: scope}}
	err := p.takeOver(t.Context(), &writer.UnsettledError{Cause: failure.ErrConditionFailed})
	if !errors.Is(err, failure.ErrConditionFailed) || !strings.Contains(err.Error(), "a person") {
		t.Error(err)
	}
}

// TestReceiptName: a payment whose receipt the ledger does not keep any more is recorded by its sequence.
func TestReceiptName(t *testing.T) {
	t.Parallel()
	check.Equal(t, receiptName(&seqledgerv1.Receipt{TxId: "tx", Sequence: 7}), "tx", "it is recorded as %q")
	check.Equal(t, receiptName(&seqledgerv1.Receipt{Sequence: 7, Replayed: true}), "sequence-7",
		"without its receipt it is recorded as %q")
}
