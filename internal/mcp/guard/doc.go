// Package guard stands before an MCP server and lets chosen tools run once for a key.
//
// A client speaks to the guard on standard input and output, one JSON-RPC message a line. The guard
// speaks to the server, its child process or a streamable HTTP endpoint. Everything passes as it is,
// in both directions, but for two things: a call of a tool that the configuration names goes through
// package idempotency, and the list of tools says idempotentHint for these tools.
//
//	client ──line──▶ [Guard.Run] ──▶ tools/call of a guarded tool: Do(key) ──▶ [Upstream]
//	                             └─▶ everything else, the same bytes ───────▶ [Upstream]
//
// A guarded call, and a list of tools, reaches the server under an id of the guard's own, so that its
// answer is known whatever ids the client uses. The answer is stored before the client gets it. A
// cancellation of a guarded call that has begun is not passed on: half a payment helps no client, and
// the stored result answers the repeat.
//
// # Bounds
//
//	a message that passes                     any size from the server, 16 MiB from the client
//	a message that the guard reads            16 MiB ([MaxMessage]); an answer beyond that is not recognized
//	a guarded call's message                  1 MiB ([MaxCall])
//	a result that is kept                     1 MiB; a longer one is delivered and not kept
//	guarded calls and tool lists under way    Options.MaxCalls, 64
//
// Each direction holds one message at a time, each call under way holds its message and its answer.
// The memory is at most 2 × 16 MiB and MaxCalls × 17 MiB, and in practice as much as the calls have.
package guard
