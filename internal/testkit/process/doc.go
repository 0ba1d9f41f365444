// Package process finds programs that are installed and runs them, for tests and for the benchmarks: servers that end
// with the process that has started them.
package process
