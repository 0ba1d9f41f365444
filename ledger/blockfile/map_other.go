//go:build !unix

package blockfile

// Map implements [File]: records are read into memory here.
func (f systemFile) Map(int64) ([]byte, error) { return nil, nil }

// Unmap implements [File].
func (f systemFile) Unmap([]byte) error { return nil }
