// Package examples has four programs that use keys, each with the two commands that run it in its
// own documentation. Its tests run them as processes, before and behind a real server.
//
//   - jobs: an endpoint that knows nothing of keys, behind the gateway
//   - tasks: a queue whose tasks are keyed writes to the ledger
//   - submit: a service that submits jobs to a runner at most once, with [idempotency.Do]
//   - forms: an intake of forms behind [idempotency.Middleware], for visitors and users
package examples

import _ "github.com/seqledger/seqledger/client/idempotency" // for the links above
