// Package idempotency runs work once for a key that its client chose, and answers every repeat with
// the first result.
//
// A client that cannot count its requests (a browser, a webhook, a job producer) sends a key. Its
// request is lost, or its answer, and it sends the request again with the same key. There are three
// entry points, with one core:
//
//   - [Middleware] before an HTTP handler, with the header Idempotency-Key;
//   - [Interceptor] before a Connect, gRPC or gRPC-Web handler, with the same header;
//   - [Do] around any function.
//
// Work that is itself a write to the ledger needs none of them: a keyed write commits with its key
// in one step.
//
// Work that none of them surrounds takes a key by hand: [Store.Reserve], and then [Store.Complete],
// [Store.Reject] or [Store.Release]. The programs in examples show four uses as a whole.
//
// # What happens
//
// The first call reserves the key in a [Store] and becomes its owner, with a lease. It does the work,
// sends heartbeats meanwhile, and stores the result, before the client sees it. A repeat with the same
// request waits for the result, or gets it at once. A repeat with another request is refused, because
// the record has a [Fingerprint] of the first one.
//
//	absent ──Reserve──▶ PENDING ──Complete──▶ COMMITTED ──expires──▶ absent
//	                     │  │ └────Reject────▶ REJECTED ──expires──▶ absent
//	                     │  └──Release──▶ absent
//	                     └──lease ends──▶ INDETERMINATE ──Complete, Reject──▶ finished
//
// # What is not promised
//
// The store and the work's own effects are two systems, and no key makes them one. An owner that
// crashes after the card was charged and before its Complete leaves a record that says only that it
// began. Settings.OnLeaseExpired decides then:
//
//   - [BecomeIndeterminate], the default: the work never runs twice. Repeats are refused with
//     CodeOutcomeUnknown until the owner's late result, or a person, settles the record. The work
//     may have happened or not; find out with the system that did it.
//   - [TakeOver]: the next caller runs the work again, with a higher fencing token
//     ([Owner.Token]). The work happens at least once, and once in effect only if it is itself
//     idempotent or if its resource refuses lower tokens.
//
// In the same way a response of 500, a timeout or a panic says nothing about effects: by default the
// key is left to the end of its lease, and not released. Say with Options.ServerErrors or
// [ErrNotExecuted] where you know better.
//
// A result is kept for Settings.TTL. A repeat that comes later is a first request.
//
// # When the store fails
//
// Before the work, nothing is executed and the call fails with CodeStoreUnavailable (or the work
// runs unguarded, with Options.Open). After the work, the response is delivered, the key stays
// taken (with [TakeOver] only until the lease ends), and the [Journal] repeats the result until the
// store has it, also after a restart. Without a journal the outcome is unknown to repeats.
//
// # Stores
//
// [Ledger] keeps records in a seqledger server or cluster: one log commit to reserve and one to
// complete. Packages postgres, redis and s3 below this one keep them where a team's data already is.
// [Memory] is for tests and single processes. [NewStore] makes a store of any database
// with a compare-and-swap, from two methods; it runs the same transition as the ledger. Package
// storetest tests any of them.
//
// # Bounds
//
// A keyed request has at most Options.MaxBody bytes in memory and its response 1 MiB, headers
// included; a longer one, and a stream of events, is delivered as it comes and kept without its body.
// Each owner has one goroutine for its heartbeats, which ends with the work. A call of the store takes
// at most Settings.StoreTimeout, besides the wait for another owner; a failed Reserve takes one call
// more, which releases the key in case only the answer was lost.
package idempotency
