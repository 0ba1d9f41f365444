// Package servertest starts the database servers that tests need, from what is installed on this machine, on free ports
// of loopback. A test whose server is not installed is skipped and says which package has it; with
// SEQLEDGER_TEST_SERVERS=1 it fails instead. POSTGRES_BIN names the directory of another PostgreSQL's programs, and
// REDIS_BIN the program of another Redis or a Valkey.
//
// Each server belongs to the test that has started it, and ends with it.
package servertest
