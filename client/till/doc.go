// Command till is an example: a till that posts payments to a ledger, each of
// them once, however often it is killed.
//
// It keeps two files. The book is its own: what it intends to pay and what it
// knows to be paid. The journal is the Writer's. The order of steps is what
// makes a payment happen once:
//
//  1. "intended" goes into the book, durably.
//  2. The payment is submitted with its number as the tag. The Writer has it in
//     the journal, durably, before it sends it.
//  3. The ledger answers, and "paid" goes into the book, durably.
//  4. The payment is acknowledged, and only then leaves the journal.
//
// After a crash at any point the till asks the Writer first what the journal
// holds (step 2 or 3 was reached; the Writer knows the outcome or finds it out)
// and submits what the book intends and the journal does not hold (step 1 was
// reached, nothing was sent).
//
//	till --server 127.0.0.1:7450 --dir ./till --payments 100
package main
