package journal

import (
	"fmt"
	"os"
)

// Report is what a journal's file says to someone who only looks.
type Report struct {
	// Bytes is the size of the file without the zeros at its end, which are
	// room for what is to come. Good is how many of them are whole groups.
	Bytes, Good int64
	// Streams as of the last good group.
	Streams []State
	// Damage is nil, or what is wrong first; Streams then tells what came
	// before it. Without damage, Bytes-Good bytes at the end are a group that
	// is being written or whose writing was interrupted.
	Damage *DamageError
}

// Inspect reads a journal without a lock and without changing it, also while
// another process writes to it.
func Inspect(path string) (*Report, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	streams := make(map[Name]*stream)
	good, err := replay(path, content, streams)
	report := &Report{Bytes: max(good, int64(written(content))), Good: good, Streams: states(streams)}
	if err != nil {
		damage, ok := err.(*DamageError) //nolint:errorlint // replay returns no other and wraps none.
		if !ok {
			return nil, err
		}
		report.Damage = damage
	}
	return report, nil
}
