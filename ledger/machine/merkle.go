package machine

import (
	"crypto/sha256"
	"math/bits"
)

// RFC 6962 hashing. The prefixes differ so that a leaf never passes for a node, nor a
// block header for either.
const (
	leafPrefix   = 0
	nodePrefix   = 1
	headerPrefix = 2
)

func hashNode(left, right *Hash) Hash {
	var b [65]byte
	b[0] = nodePrefix
	copy(b[1:33], left[:])
	copy(b[33:], right[:])
	return sha256.Sum256(b[:])
}

// merkleRoot returns the root over the leaf hashes, which must not be empty.
// It overwrites leaves.
//
// Pairing neighbours level by level, with a lone last node moving up as it is,
// gives the same tree as RFC 6962's split at the largest power of two.
func merkleRoot(leaves []Hash) Hash {
	for n := len(leaves); n > 1; n = (n + 1) / 2 {
		for i := 0; i < n/2; i++ {
			leaves[i] = hashNode(&leaves[2*i], &leaves[2*i+1])
		}
		if n%2 == 1 {
			leaves[n/2] = leaves[n-1]
		}
	}
	return leaves[0]
}

// merklePath returns the inclusion path of leaf i, from its sibling upwards. It
// overwrites leaves rather than copying them, which would double the memory of
// a large block.
func merklePath(leaves []Hash, i int) []Hash {
	path := make([]Hash, 0, bits.Len(uint(len(leaves))))
	for n := len(leaves); n > 1; n = (n + 1) / 2 {
		if sibling := i ^ 1; sibling < n {
			path = append(path, leaves[sibling])
		}
		for j := 0; j < n/2; j++ {
			leaves[j] = hashNode(&leaves[2*j], &leaves[2*j+1])
		}
		if n%2 == 1 {
			leaves[n/2] = leaves[n-1]
		}
		i /= 2
	}
	return path
}
