package machine

import "crypto/sha256"

// RFC 6962 hashing. The prefixes differ so that a leaf never passes for a node, nor a
// block header or the origin of a ledger for either.
const (
	leafPrefix   = 0
	nodePrefix   = 1
	headerPrefix = 2
	originPrefix = 3
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
