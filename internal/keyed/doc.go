// Package keyed has the rules of keyed idempotency: how commands change the record of a key.
//
// A record is reserved by an owner, who does the work and then completes or rejects it. Until
// then the record is PENDING under a lease. A finished record answers repeats until it expires.
// A lease that ends without an answer makes the record INDETERMINATE, or available to the next
// owner, as its reservation says.
//
//	absent ──Reserve──▶ PENDING ──Complete──▶ COMMITTED ──expires──▶ absent
//	                     │  │ └────Reject────▶ REJECTED ──expires──▶ absent
//	                     │  └──Release──▶ absent
//	                     └──lease ends──▶ INDETERMINATE ──Complete, Reject, Resolve──▶ finished
//
// [Transition] is one pure function of a record, a command and a time. The state
// machine of the ledger runs it inside the log, and a store on another database
// runs it between a read and a compare-and-swap, so that a lease, a fence, a
// takeover and an expiry mean the same everywhere. It reads no clock and draws no
// random number, and a record has exactly one encoding.
//
// # Why a late copy does no harm
//
// A network may deliver a Reserve twice, the second time minutes later. The copy has the
// attempt of the first, and a time until which it is valid. While the attempt owns the record,
// the copy gets the same token again. Once the attempt has ended (released, finished, taken
// over) the record keeps it for as long as a copy could be valid, also when the record itself
// counts as absent. So a copy never makes a reservation without an owner.
package keyed
