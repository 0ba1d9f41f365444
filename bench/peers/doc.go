// Command peers measures seqledger against PostgreSQL, Redis, NATS JetStream
// and etcd, all doing the same work with the same durability on this machine.
//
//	go run .                                  # the whole table, about 20 minutes
//	go run . -quick                           # seconds: does it run?
//	go run . -systems seqledger,redis -rows fresh/64
//	go run . -list                            # which peers are here, and how to get the rest
//
// The work is one write: compare the sequence of the client's stream, store key, request hash
// and reply, append the payload, make all of it durable, answer. A retry is the same request
// again, and is answered with the stored reply. The table says beside a peer's name what it
// cannot do.
//
// rows.go defines what is measured, measure.go the order, system.go the interface of a system;
// each system has its own file. process.go starts and ends servers, usage.go and syncs.go
// measure their resource usage. summary.go computes medians and ratios of the rounds,
// targets.go compares them with targets, report.go writes the results. The method and its rules
// of fairness are in ../README.md.
package main
