package witness

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// maxSize bounds the sizes of trees: package tlog does not end for larger ones.
const maxSize = 1 << 62

// Checkpoint is what the text of a signed note says of a log: its origin, and the size and root hash of its tree.
type Checkpoint struct {
	Origin string
	tlog.Tree
}

// ParseCheckpoint reads the text of a note. Lines after the third say nothing of the tree and are allowed.
func ParseCheckpoint(text string) (c Checkpoint, err error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || slices.Index(lines, "") != len(lines)-1 {
		return c, errors.New("a checkpoint must have lines of origin, size and root hash, and no empty line")
	}
	c.Origin = lines[0]
	if c.N, err = parseSize(lines[1]); err != nil {
		return c, err
	}
	c.Hash, err = parseHash(lines[2])
	return c, err
}

// String returns the text that is to be signed.
func (c Checkpoint) String() string { return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.N, c.Hash) }

func parseSize(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxSize || strconv.FormatInt(n, 10) != text {
		return 0, fmt.Errorf("the size %q must be a decimal number from 0 to %d", text, int64(maxSize))
	}
	return n, nil
}

func parseHash(text string) (tlog.Hash, error) {
	h, err := tlog.ParseHash(text)
	if err != nil || h.String() != text {
		return h, fmt.Errorf("the hash %q must be 32 bytes in base64", text)
	}
	return h, nil
}
