// Package chaos runs a cluster of real processes under load, kills, stops and cuts off its nodes, and checks what
// the clients saw: each write that was acknowledged is there, once; registers are linearizable (Porcupine); the nodes
// end with one digest, and their directories pass seqledger verify.
//
// chaos.go runs it, nodes.go has the processes, faults.go what is done to them, load.go the clients, check.go the
// judgment. A fault is a row of the table in faults.go.
//
//	go run ./bench chaos -nodes 3 -duration 10m -seed 7
//	go run ./bench chaos -duration 30s -plain    # clients that repeat under new numbers: must fail
//	go run ./bench chaos -duration 30s -early    # clients that take for acknowledged what they have sent: must fail
//
// Where it runs as root, each node has a disk for itself (disk.go), which is full, slow or hangs now and then, and is
// in a network namespace (namespaces.go), whose packets a router drops. Elsewhere connections go through proxies
// (proxies.go).
package chaos
