// Package prototest draws protobuf messages at random, for tests that compare two encoders or two decoders, and has a
// plain codec. Only tests use it.
package prototest
