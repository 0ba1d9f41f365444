//go:build race

package boltstore

// scrub makes pages part of Go's heap, where the race detector sees them, and overwrites memory that is used again.
const scrub = true
