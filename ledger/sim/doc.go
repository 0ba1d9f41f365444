// Package sim simulates the ledger.
package sim
