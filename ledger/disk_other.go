//go:build !linux && !darwin

package ledger

// diskSpace knows nothing here: a size of 0 says so.
func diskSpace(string) (free, size uint64, err error) { return 0, 0, nil }
