// Package format says what another version of a format is: no damage.
package format

import (
	"errors"
	"fmt"
)

// ErrVersion means something of a format version that this program does not read. It is said only where a checksum
// shows that the version is what was written.
var ErrVersion = errors.New("format version")

// Check returns an error unless the version found is the one that this program reads.
func Check[V byte | int | uint32](found, known V) error {
	if found == known {
		return nil
	}
	return fmt.Errorf("it has %w %d, and this program reads %d; use the program that wrote it",
		ErrVersion, found, known)
}
