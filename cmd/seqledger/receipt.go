package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/proof"
	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/receipt"
	"github.com/seqledger/seqledger/ledger/witness"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// receiptFlags make a server a transparency log.
type receiptFlags struct {
	ReceiptKey      []string      `help:"Sign checkpoints with this key, from seqledger receipt keygen, so that receipts verify offline; the same on every node. Repeatable, while a key is replaced." type:"path" placeholder:"FILE"`
	ReceiptOrigin   string        `help:"Name of the ledger in checkpoints, such as example.com/payments; its id follows." placeholder:"NAME"`
	ReceiptPolicy   string        `help:"Ask the witnesses in this policy that have a URL to cosign each checkpoint, and give receipts a checkpoint that meets its quorum, if there is one. A log line must be that of this ledger." type:"path" placeholder:"FILE"`
	ReceiptInterval time.Duration `help:"How often to sign a checkpoint." default:"10s"`
}

// options returns nil where there are to be no receipts. The id of the ledger is 0 as long as it is not known.
func (f *receiptFlags) options(id machine.LedgerID) (*ledger.ReceiptOptions, error) {
	if keys := len(f.ReceiptKey) > 0; keys != (f.ReceiptOrigin != "") || !keys && f.ReceiptPolicy != "" {
		return nil, usage("--receipt-key and --receipt-origin go together, and --receipt-policy with them")
	}
	if len(f.ReceiptKey) == 0 {
		return nil, nil //nolint:nilnil // None.
	}
	if f.ReceiptInterval < 100*time.Millisecond || f.ReceiptInterval > time.Hour {
		return nil, usage("--receipt-interval: must be from 100ms to 1h")
	}
	o := &ledger.ReceiptOptions{Origin: f.ReceiptOrigin, Interval: f.ReceiptInterval}
	if f.ReceiptPolicy != "" {
		var err error
		if o.Policy, err = readPolicy("--receipt-policy", f.ReceiptPolicy); err != nil {
			return nil, err
		}
	}
	for _, path := range f.ReceiptKey {
		key, err := witness.ReadKey(path, witness.LogKey)
		if err == nil { // the origin must be a name that can sign
			_, err = witness.ParseKey(key.As(f.ReceiptOrigin).String())
		}
		if err != nil {
			return nil, usage("--receipt-key, --receipt-origin: %w", err)
		}
		o.Keys = append(o.Keys, key)
	}
	return o, f.checkPolicy(o, id)
}

// checkPolicy refuses a policy that is not met by what the ledger signs.
func (f *receiptFlags) checkPolicy(o *ledger.ReceiptOptions, id machine.LedgerID) error {
	if o.Policy == nil {
		return nil
	}
	for _, l := range o.Policy.Logs {
		named := l.Name == receipt.Origin(f.ReceiptOrigin, id) ||
			id == 0 && strings.HasPrefix(l.Name, f.ReceiptOrigin+"/")
		for _, key := range o.Keys {
			if named && key.As(l.Name).String() == l.Key.String() {
				return nil
			}
		}
	}
	want := "a name that begins with " + f.ReceiptOrigin + "/, and --receipt-key"
	if id != 0 {
		want = o.Keys[0].As(receipt.Origin(f.ReceiptOrigin, id)).String()
	}
	return usage("--receipt-policy %s: log: no line is that of this ledger, which has %s", f.ReceiptPolicy, want)
}

type receiptCommand struct {
	Get    receiptGetCommand    `cmd:"" help:"Get a receipt that verifies offline."`
	Verify receiptVerifyCommand `cmd:"" help:"Verify a receipt. It needs no server."`
	Keygen receiptKeygenCommand `cmd:"" help:"Make a key that signs checkpoints."`
}

type receiptGetCommand struct {
	clientFlags `embed:""`
	ID          string `arg:"" help:"Id of the transaction, from a receipt or a block."`
	Out         string `short:"o" help:"File to write." env:"-" required:"" type:"path" placeholder:"FILE"`
}

func (*receiptGetCommand) Help() string {
	return `The server waits for its next checkpoint, some ten seconds. The file says everything that is needed: keep it, and give
it to whom you want. It shows no operations, only their hash.

    seqledger receipt get 8f14e45f-ceea-867a-8000-000000000007 -o payment.tlog-proof`
}

func (c *receiptGetCommand) Run(e *environment) error {
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		file, err := conn.GetReceipt(ctx, &seqledgerv1.GetReceiptRequest{TxId: c.ID})
		answer, is := errors.AsType[*failure.Error](err)
		if is && answer.ConnectCode == connect.CodeFailedPrecondition {
			return fail(exitRefused, "serve --receipt-key signs checkpoints", "%w", err)
		}
		if err != nil {
			return absent(err, "check the id and the server; seqledger state --receipts shows a client's ids",
				"there is no transaction %s, or none that this credential may read", c.ID)
		}
		r, err := receipt.Parse(file)
		if err == nil {
			var leaf machine.Leaf
			if leaf, err = machine.DecodeLeaf(r.Leaf); err == nil && !strings.EqualFold(leaf.ID().String(), c.ID) {
				err = fmt.Errorf("it is that of the transaction %s", leaf.ID())
			}
		}
		if err != nil {
			return fail(exitFailed, untrusted, "the server's receipt: %w", err)
		}
		if err := durable.WriteFile(c.Out, file); err != nil {
			return fail(exitFailed, "", "-o: %w", err)
		}
		return nil
	})
}

type receiptVerifyCommand struct {
	File    string `arg:"" help:"The receipt; - is standard input."`
	Policy  string `help:"The logs and witnesses that you believe, a file of the format c2sp.org/tlog-policy." env:"-" type:"path" placeholder:"FILE"`
	Key     string `help:"Instead of a policy, the public key of the ledger, and no witness." env:"-" placeholder:"VKEY"`
	Payload string `help:"Fail unless the transaction appended this file, or did the operations in it, as seqledger tx --json prints them." env:"-" type:"path" placeholder:"FILE"`
}

func (*receiptVerifyCommand) Help() string {
	return `Hashes all of the receipt again, up to a checkpoint that the policy demands signatures of. What is printed is true if
these are honest. Without witnesses that is the operator of the ledger alone, who could show others another history.

    seqledger receipt verify payment.tlog-proof --policy ledger.policy
    seqledger receipt verify payment.tlog-proof --policy ledger.policy --payload order.json
    seqledger receipt verify payment.tlog-proof --key example.com/payments/9c0ffee01234abcd+4b39d8f1+AT…`
}

// receiptVerified is what verify prints with --json.
type receiptVerified struct {
	Transaction json.RawMessage `json:"transaction"` // without its operations
	PayloadHash string          `json:"payloadHash"`
	Outcome     string          `json:"outcome"`
	Origin      string          `json:"origin"`
	Size        int64           `json:"size,string"`
	Cosigners   []string        `json:"cosigners"`
}

func (c *receiptVerifyCommand) Run(e *environment) error {
	policy, err := c.policy()
	if err != nil {
		return err
	}
	file, err := readBounded(e, c.File, receipt.MaxBytes)
	if err != nil {
		return usage("the receipt: %w", err)
	}
	const forged = "do not rely on it: it is damaged, forged, of another ledger, or the policy is"
	r, err := receipt.Parse(file)
	if err != nil {
		return fail(exitFailed, forged, "%w", err)
	}
	s, err := r.Verify(policy)
	if err != nil {
		return fail(exitFailed, forged, "%w", err)
	}
	if c.Payload != "" {
		if err := c.comparePayload(e, s.Payload); err != nil {
			return err
		}
	}
	return c.show(e, s)
}

func (*receiptVerifyCommand) show(e *environment, s *receipt.Statement) error {
	x := s.Transaction
	x.BlockHeight, x.Position = s.Height, s.Position
	tx := wire.RenderTransaction(&x)
	text, err := compactJSON(tx)
	v := receiptVerified{
		Transaction: text, PayloadHash: hex.EncodeToString(s.Payload[:]), Outcome: machine.Committed.String(),
		Origin: s.Checkpoint.Origin, Size: s.Checkpoint.N, Cosigners: []string{},
	}
	for _, w := range s.Cosigners {
		v.Cosigners = append(v.Cosigners, w.Name+" at "+w.Time.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return err
	}
	return e.show(v, func(t *table) {
		showTransaction(t, tx)
		if k := tx.GetKeyed(); k != nil {
			t.row("key of", k.GetPrincipal(), k.GetNamespace(), hex.EncodeToString(k.GetKeyHash()))
		}
		t.field("payload hash", v.PayloadHash)
		t.row("outcome", fmt.Sprintf("%s, operations %d", v.Outcome, len(s.Versions)))
		for i, version := range s.Versions {
			if version == 0 {
				t.row("", fmt.Sprintf("operation %d found nothing to change", i))
			}
		}
		t.row("checkpoint", v.Origin, fmt.Sprintf("%d blocks", v.Size))
		for _, name := range v.Cosigners {
			t.field("cosigned by", name)
		}
		if len(v.Cosigners) == 0 {
			t.row("cosigned by", "no witness: the operator of the ledger could show others another history")
		}
	})
}

func (c *receiptVerifyCommand) policy() (*witness.Policy, error) {
	if (c.Policy == "") == (c.Key == "") {
		return nil, usage("give --policy or --key, which says whom you believe")
	}
	if c.Policy != "" {
		return readPolicy("--policy", c.Policy)
	}
	policy, err := witness.ParsePolicy([]byte("log " + c.Key + "\nquorum none\n"))
	if err != nil {
		return nil, usage("--key: %w", err)
	}
	return policy, nil
}

// comparePayload compares the hash of the operations with that of a file.
func (c *receiptVerifyCommand) comparePayload(e *environment, want machine.Hash) error {
	content, err := readBounded(e, c.Payload, maxFileBytes)
	if err != nil {
		return usage("--payload: %w", err)
	}
	appended := []*seqledgerv1.Operation{{Operation: &seqledgerv1.Operation_Append{
		Append: &seqledgerv1.Append{Payload: content},
	}}}
	answer := new(seqledgerv1.GetTransactionResponse)
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(content, answer) != nil {
		answer = nil
	}
	for _, operations := range [][]*seqledgerv1.Operation{appended, answer.GetTransaction().GetOperations()} {
		if hash, err := proof.PayloadHash(operations); err == nil && bytes.Equal(hash, want[:]) {
			return nil
		}
	}
	return fail(exitFailed, "the receipt is that of another write, or the file was changed",
		"--payload %s: the transaction has other operations", c.Payload)
}

type receiptKeygenCommand struct {
	Origin string `arg:"" help:"Origin of the ledger: what serve --receipt-origin has, a slash, and the id of the ledger."`
	File   string `arg:"" help:"New file for the private key." type:"path"`
}

func (*receiptKeygenCommand) Help() string {
	return `The public key is printed, as the log lines of policies have it. The same file belongs on every node that may lead. A
ledger that is restored has another id, and so another public key, which its start logs: whoever verifies learns of it.

    seqledger receipt keygen example.com/payments/9c0ffee01234abcd receipt.key
    seqledger serve --receipt-key receipt.key --receipt-origin example.com/payments`
}

func (c *receiptKeygenCommand) Run(e *environment) error {
	return createKey(e, witness.LogKey, c.Origin, c.File)
}
