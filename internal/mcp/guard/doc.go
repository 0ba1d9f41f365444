// Package guard stands in front of an MCP server and lets selected tools run once per key.
//
// A client talks to the guard over standard input and output, one JSON-RPC message per line. The guard talks to the
// server, which is its child process or a streamable HTTP endpoint. Everything passes unchanged, in both directions,
// with two exceptions: a call of a configured tool goes through package idempotency, and the list of tools sets
// idempotentHint for these tools.
//
//	client ──line──▶ [Guard.Run] ──▶ tools/call of a guarded tool: Do(key) ──▶ [Upstream]
//	                             └─▶ everything else, the same bytes ───────▶ [Upstream]
//
// A guarded call, or a request for the list of tools, reaches the server under an id of the guard's own, so that the
// guard recognizes its answer whatever ids the client uses. The answer is stored before the client gets it. The
// cancellation of a guarded call that has begun is not passed on: half a payment helps no client, and the stored result
// answers the retry.
//
// # Limits
//
//	a message that passes                     any size from the server, 16 MiB from the client
//	a message that the guard reads            16 MiB ([MaxMessage]); a larger answer is not recognized
//	a guarded call's message                  1 MiB ([MaxCall])
//	a result that is kept                     1 MiB; a larger one is delivered and not kept
//	guarded calls and tool lists in flight    Options.MaxCalls, 64
//
// Each direction holds one message, and each call in flight holds its message and its answer. Memory use is at most 2 ×
// 16 MiB plus MaxCalls × 17 MiB, and in practice as much as the calls need.
package guard
