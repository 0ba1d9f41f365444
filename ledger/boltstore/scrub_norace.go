//go:build !race

package boltstore

const scrub = false
