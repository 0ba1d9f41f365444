// Package prototest draws protobuf messages at random, for tests that hold two
// encoders or two decoders against each other. No program uses it.
package prototest
