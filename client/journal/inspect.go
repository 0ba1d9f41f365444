package journal

import (
	"errors"
	"fmt"
	"os"
)

// Report is the content of a journal's file.
type Report struct {
	// Bytes is the size of the file without the zeros at its end, which are allocated for later
	// groups. Good counts the bytes of valid groups, with the header.
	Bytes, Good int64
	// Streams are the states as of the last good group.
	Streams []State
	// Damage is the first defect, or nil. With damage, Streams describe what precedes it. Without damage, the last
	// Bytes-Good bytes are a group that is being written or whose write was interrupted.
	Damage *DamageError
}

// Inspect reads a journal without a lock and without changing it, also while another process writes to it.
func Inspect(path string) (*Report, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	streams := make(map[Name]*stream)
	good, err := replay(path, content, streams)
	damage, damaged := errors.AsType[*DamageError](err)
	if err != nil && !damaged {
		return nil, err
	}
	return &Report{
		Bytes: max(good, int64(written(content))), Good: good, Streams: states(streams), Damage: damage,
	}, nil
}
