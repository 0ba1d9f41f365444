// Package faultproxy is an HTTP proxy that injures messages on purpose: calls, and the messages of streams. Which fault
// meets which message is the caller's decision: demo draws them from a seeded schedule, conformance sets them case by
// case. message.go reads the writes in a message, proxy.go relays calls and relay.go streams.
package faultproxy
