// Command peers measures seqledger against PostgreSQL, Redis, NATS JetStream
// and etcd, all doing the same work with the same durability on this machine.
//
//	go run .                                  # the whole table, about 20 minutes
//	go run . -quick                           # seconds: does it run?
//	go run . -systems seqledger,redis -rows fresh/64
//	go run . -list                            # which peers are here, and how to get the rest
//
// The work is one write: compare the sequence of the client's stream, store key,
// request hash and reply, append the payload, make all of it durable, answer. A
// retry is the same request again, and is answered with the stored reply. What a
// peer cannot do of this is said beside its name.
//
// rows.go says what is measured, measure.go in which order, system.go what a
// system has to be able to do; each system has a file of its own. process.go
// starts and ends servers, usage.go and syncs.go look at what they use up.
// summary.go makes medians and ratios of the rounds, targets.go judges them,
// report.go writes the results. The method and its rules of fairness are in
// ../README.md.
package main
