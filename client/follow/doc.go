// Package follow applies the blocks of a scope to a PostgreSQL database, each once.
//
//	err := follow.Into(ctx, ledger, db, scope, func(ctx context.Context, tx pgx.Tx, block *seqledgerv1.Block) error {
//		for _, t := range block.GetTransactions() {
//			…
//		}
//		return nil
//	}, follow.Options{})
//
// The position is in the same transaction as the effects, so that neither a crash of this process nor one of the
// database repeats or leaves out a block. Several processes may follow under one name: a block's effects commit
// in one of them. Effects outside of the database are not covered.
//
// A ledger that was restored from a backup may lack blocks that were applied here. [Into] compares the hash of the
// last block before it applies anything else, and ends with a [*DivergedError].
package follow
