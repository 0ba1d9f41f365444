package witness

import "golang.org/x/mod/sumdb/tlog"

// SetWrite replaces what stores the state of a witness.
func (w *Witness) SetWrite(write func(path string, content []byte) error) { w.write = write }

// FormatRequest returns the body of add-checkpoint.
func FormatRequest(old int64, proof tlog.TreeProof, signed []byte) []byte {
	return formatRequest(old, proof, signed)
}

// ParseRequest reads the body of add-checkpoint.
func ParseRequest(body []byte) (old int64, proof tlog.TreeProof, signed []byte, err error) {
	return parseRequest(body)
}
