// Package prototest draws protobuf messages at random, for tests that hold two
// encoders or two decoders against each other, and has a plain codec. No program
// uses it.
package prototest
