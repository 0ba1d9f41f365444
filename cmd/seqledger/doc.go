// Command seqledger serves a ledger, writes to it, reads it and checks it.
//
//	seqledger serve
//	seqledger write  --scope acme/main --client-id till-7 --set balance/42=100
//	seqledger state  --scope acme/main --client-id till-7
//	seqledger import --scope acme/main --client-id loader events.ndjson
//	seqledger verify --data ./seqledger-data
//	seqledger demo
//
// main.go parses the command line and turns an error into a message and an exit
// code (exit.go). A flag comes from the command line, the environment, a YAML
// file or its default, in this order (config.go); flagvalues.go reads numbers and
// durations, flagfiles.go looks at the files and addresses that flags name. Each
// command is a struct with a Run method in a file of its own; scope.go, connect.go
// and connection.go hold the flags that several share, access.go those of serve
// that say who may connect, and output.go is the only place that knows how answers
// look. reach.go finds out why a server does not answer.
//
// Operations come from flags (operations.go) or from JSON (opjson.go). Import
// is the one command with a life of its own: import.go is the command,
// importinput.go reads the file, importstate.go is what survives a kill,
// importrun.go decides where to go on and sends. What the demo does is in package
// demo; demo.go has its flags and demoshow.go its output.
package main
