// Package idempotency runs work once per idempotency key, and answers every retry with the first result. The client
// chooses the key.
//
// A client that cannot number its requests (a browser, a webhook, a job producer) sends a key. When the request or its
// response is lost, the client sends the request again with the same key. The package has three entry points on one
// core:
//
//   - [Middleware] wraps an HTTP handler and reads the header Idempotency-Key;
//   - [Interceptor] wraps a Connect, gRPC or gRPC-Web handler and reads the same header;
//   - [Do] wraps any function.
//
// Work that is itself a write to the ledger needs none of them: a keyed write commits together with its key.
//
// Where no entry point fits, call the store directly: [Store.Reserve], then [Store.Complete], [Store.Reject] or
// [Store.Release]. The programs in examples show four complete uses.
//
// # How it works
//
// The first call reserves the key in a [Store] and becomes its owner, with a lease. It does the work, sends heartbeats
// meanwhile, and stores the result before the client sees it. A retry of the same request waits for the result, or gets
// it at once. A different request with the same key is refused, because the record holds a [Fingerprint] of the first
// request.
//
//	absent ──Reserve──▶ PENDING ──Complete──▶ COMMITTED ──expires──▶ absent
//	                     │  │ └────Reject────▶ REJECTED ──expires──▶ absent
//	                     │  └──Release──▶ absent
//	                     └──lease ends──▶ INDETERMINATE ──Complete, Reject──▶ finished
//
// # What is not guaranteed
//
// The store and the effects of the work are two systems, and no key makes them one. An owner that crashes after
// charging the card and before its Complete leaves a record that says only that the work began. Settings.OnLeaseExpired
// decides what happens then:
//
//   - [BecomeIndeterminate], the default: the work never runs twice. Retries are refused with CodeOutcomeUnknown until
//     the owner's late result, or an operator, settles the record. The work may or may not have been done; ask the
//     system that does it.
//   - [TakeOver]: the next caller runs the work again, with a higher fencing token ([Owner.Token]). The work runs at
//     least once. It takes effect once only if it is itself idempotent or its resource refuses lower tokens.
//
// Likewise, a response of 500, a timeout or a panic leaves the effects unknown: by default the key is held until the
// lease ends, and not released. Use Options.ServerErrors or [ErrNotExecuted] where you know more.
//
// A result is kept for Settings.TTL. A retry that arrives later counts as a first request.
//
// # When the store fails
//
// If the store fails before the work, nothing is executed and the call fails with CodeStoreUnavailable (or the work
// runs unguarded, with Options.Open). If it fails after the work, the response is delivered, the key stays reserved
// (with [TakeOver] only until the lease ends), and the [Journal] retries until the store has the result, even after a
// restart. Without a journal, retries see an unknown outcome.
//
// # Stores
//
// [Ledger] keeps records in a seqledger server or cluster: one log commit to reserve and one to complete. The packages
// postgres, redis and s3 below this one keep them in storage that a team already uses. [Memory] is for tests and
// single processes. [NewStore] builds a store on any database with a compare-and-swap, from two methods; it runs the
// same transition as the ledger. Package storetest tests any of them.
//
// # Limits
//
// A keyed request holds at most Options.MaxBody bytes in memory, and its response 1 MiB, headers included. A longer
// response, or a stream of events, is delivered as it is written and stored without its body. Each owner has one
// goroutine for its heartbeats, which ends with the work. A store call takes at most Settings.StoreTimeout, plus the
// wait for another owner. A failed Reserve makes one more call, which releases the key in case only the answer was
// lost.
package idempotency
