// Package examples has four programs that use keys. The tests run them as processes, with a real server. Command jobs
// can also be started with go run; the others are files of the test.
//
//   - jobs: an endpoint without support for keys, protected by the gateway
//   - tasks: a queue whose tasks are keyed writes to the ledger
//   - submit: a service that submits jobs to a runner at most once, with [idempotency.Do]
//   - forms: a form intake with [idempotency.Middleware], for visitors and users
package examples

import _ "github.com/seqledger/seqledger/client/idempotency" // for the links above
