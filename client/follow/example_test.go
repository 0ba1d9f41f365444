package follow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/follow"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// moveMoney applies the transfers of a block to a table of balances.
func moveMoney(ctx context.Context, tx pgx.Tx, block *seqledgerv1.Block) error {
	const change = `INSERT INTO balances (account, cents) VALUES ($1, $2)
		ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`
	for _, transaction := range block.GetTransactions() {
		for _, operation := range transaction.GetOperations() {
			var transfer struct {
				From, To string
				Cents    int64
			}
			if err := json.Unmarshal(operation.GetAppend().GetPayload(), &transfer); err != nil {
				return err // following ends here: nothing of the block is applied
			}
			if _, err := tx.Exec(ctx, change, transfer.From, -transfer.Cents); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, change, transfer.To, transfer.Cents); err != nil {
				return err
			}
		}
	}
	return nil
}

// A table of balances, which every payload of the scope changes once.
func ExampleInto() {
	ctx := context.Background()
	ledger, err := client.New(client.Options{Server: "127.0.0.1:7450"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = ledger.Close() }()
	db, err := pgxpool.New(ctx, "postgres://app@db.example.com/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	scope := &seqledgerv1.Scope{Organization: "bank", Vault: "main"}
	err = follow.Into(ctx, ledger, db, scope, moveMoney, follow.Options{Name: "balances"})
	log.Fatal(err)
}

// The function of the example neither makes nor loses money, also when an account pays itself.
func TestExample(t *testing.T) {
	t.Parallel()
	db := must.Get(pgxpool.New(t.Context(), servertest.Database(t)))(t)
	t.Cleanup(db.Close)
	must.Get(db.Exec(t.Context(), follow.Schema()+
		"CREATE TABLE balances (account text PRIMARY KEY, cents bigint NOT NULL)",
		pgx.QueryExecModeSimpleProtocol))(t)
	ledger, _ := openLedger(t, filepath.Join(t.TempDir(), "data"))
	for i, payload := range []string{
		`{"from":"ann","to":"ann","cents":700}`, `{"from":"ann","to":"bob","cents":500}`,
		`{"from":"bob","to":"ann","cents":200}`, `{"from":"bob","to":"last","cents":1}`,
	} {
		must.Get(ledger.Write(t.Context(), &seqledgerv1.WriteRequest{
			Scope: scope, IdempotencyKey: fmt.Sprint(i),
			Operations: []*seqledgerv1.Operation{op.Append([]byte(payload))},
		}))(t)
	}
	stop := start(t, ledger, db, moveMoney)
	for last := 0; last == 0; {
		must.Do(t, db.QueryRow(t.Context(),
			"SELECT count(*) FROM balances WHERE account = 'last'").Scan(&last))
	}
	check.Is(t, stop(), context.Canceled)
	var got string
	must.Do(t, db.QueryRow(t.Context(),
		"SELECT string_agg(account || ' ' || cents, ', ' ORDER BY account) FROM balances").Scan(&got))
	check.Equal(t, got, "ann -300, bob 299, last 1", "the balances are %s")
}
