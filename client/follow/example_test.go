package follow_test

import (
	"context"
	"encoding/json"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/follow"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

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
	err = follow.Into(ctx, ledger, db, scope, func(ctx context.Context, tx pgx.Tx, block *seqledgerv1.Block) error {
		for _, transaction := range block.GetTransactions() {
			for _, operation := range transaction.GetOperations() {
				var transfer struct {
					From, To string
					Cents    int64
				}
				if err := json.Unmarshal(operation.GetAppend().GetPayload(), &transfer); err != nil {
					return err // following ends here: nothing of the block is applied
				}
				changes := map[string]int64{transfer.From: -transfer.Cents, transfer.To: transfer.Cents}
				for account, cents := range changes {
					_, err := tx.Exec(ctx, `INSERT INTO balances (account, cents) VALUES ($1, $2)
						ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`, account, cents)
					if err != nil {
						return err
					}
				}
			}
		}
		return nil
	}, follow.Options{Name: "balances"})
	log.Fatal(err)
}
