// Package faultproxy has what HTTP proxies that injure requests on purpose share: listening on the loopback, sending
// a whole call on to the server, cutting a stream into its messages, and breaking a client's connection. Which fault
// meets which message is the caller's: demo draws them from a seeded schedule, conformance sets them case by case.
package faultproxy
