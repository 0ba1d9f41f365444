// Package importing commits the lines of a file once, however often the import is killed. input.go
// reads the lines, state.go is what survives a kill, run.go sends what is not committed yet, and
// progress.go shows how far it has come. The command itself, with its flags and what it tells its
// user, is import.go of package main.
package importing
