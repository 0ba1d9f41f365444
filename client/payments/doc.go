// Package payments is an example: a program that posts payments to a ledger, each of them once,
// however often the program is killed. seqledger demo runs it, and kills it.
//
// The program keeps two files. The payment log ([Log]) is its own: what it intends to pay and what it knows to be paid.
// The journal is the Writer's. The order of steps is what makes a payment happen once:
//
//  1. "intended" goes into the payment log, durably.
//  2. The payment is submitted with its tag. The Writer has it in the journal, durably, before
//     it sends it.
//  3. The ledger answers, and "paid" goes into the payment log, durably.
//  4. The payment is acknowledged, and only then leaves the journal.
//
// After a crash at any point, [Open] first asks the Writer what the journal holds. Those payments reached step 2 or
// 3, and the Writer settles them. A payment that the payment log intends and the journal does not hold was not sent;
// [Log.Unpaid] lists it, to be posted again.
package payments
