// Package chaos runs a cluster of real processes under load, kills, stops and disconnects its nodes, and checks what
// the clients saw: the ledger has each acknowledged write once, registers are linearizable (Porcupine), the nodes end
// with one digest, and their directories pass seqledger verify.
//
// chaos.go runs it, nodes.go has the processes, faults.go the faults, load.go the clients, and check.go the checks. A
// fault is a row of the table in faults.go.
//
//	go run ./bench chaos -nodes 3 -duration 10m -seed 7
//	go run ./bench chaos -duration 30s -plain    # clients that repeat under new numbers: must fail
//	go run ./bench chaos -duration 30s -early    # clients that count a write as acknowledged once sent: must fail
//
// As root, each node has a disk (disk.go), which is full, slow or hangs now and then, and a network namespace
// (namespaces.go), whose packets a router drops. Other users have neither, and the run says so.
package chaos
