// Package message encodes and decodes messages of the API as far as client and server need it alike: the frames that a
// Writer sends, the codec of the frequent messages, the contents of an operation of any kind, and the canonical bytes
// from which a client computes leaves and hashes.
//
// It knows the API alone, and package wire, which knows the ledger's own types too, uses it. They are two packages
// because a program with the client must not carry the state machine: the client imports this one, and a linter keeps
// it so.
package message
