// Package keyed holds the rules of keyed idempotency: how commands change the record of an idempotency key.
//
// An owner reserves a record, does the work, and then completes or rejects it. Until then the record is PENDING under a
// lease. A finished record answers retries until it expires. If the lease ends without a result, the record becomes
// INDETERMINATE or available to the next owner, depending on the policy of its reservation.
//
//	absent ──Reserve──▶ PENDING ──Complete──▶ COMMITTED ──expires──▶ absent
//	                     │  │ └────Reject────▶ REJECTED ──expires──▶ absent
//	                     │  └──Release──▶ absent
//	                     └──lease ends──▶ INDETERMINATE ──Complete, Reject, Resolve──▶ finished
//
// If the reservation asked for the key to be remembered for longer than its result, what expires becomes EXPIRED first:
// it keeps the request, and answers retries that there is no result any more.
//
// [Transition] is one pure function of a record, a command and a time. The state machine of the ledger runs it inside
// the log, and a store on another database runs it between a read and a compare-and-swap, so that leases, fencing
// tokens, takeovers and expiry mean the same everywhere. It reads no clock and draws no random number, and a record has
// exactly one encoding.
//
// # Why a late copy does no harm
//
// A network may deliver a Reserve twice, the second time minutes later. The copy carries the attempt of the first
// delivery and a time until which it is valid. While the attempt owns the record, the copy gets the same token again.
// Once the attempt has ended (released, finished, taken over), the record keeps it for as long as a copy could be
// valid, even when the record itself counts as absent. So a copy never makes a reservation without an owner.
package keyed
