// Command seqledger serves a ledger, writes to it, reads it and checks it.
//
//	seqledger serve
//	seqledger write  --scope acme/main --client-id till-7 --set balance/42=100
//	seqledger state  --scope acme/main --client-id till-7
//	seqledger import --scope acme/main --client-id loader events.ndjson
//	seqledger verify --data ./seqledger-data
//	seqledger demo
//	seqledger conformance --client ./my-client
//
// main.go parses the command line and turns an error into a message and an exit code (exit.go). A
// flag comes from the command line, the environment, a YAML file or its default, in this order
// (config.go); flagvalues.go reads numbers and durations, and flagfiles.go looks at the files and addresses that
// flags name. Each command is a struct with a Run method, most of them in their own files. scope.go, connect.go and
// connection.go hold the shared flags, access.go holds the flags of serve that say who may connect,
// and output.go formats all answers. reach.go finds out why a server does not answer.
//
// Operations come from flags or from JSON: see package operation. import.go is the command import, importinput.go reads
// its lines, and importsend.go sends them. The demo itself is package demo;
// demo.go has its flags and demoshow.go its output. conformance.go is the command of package
// conformance.
package main
