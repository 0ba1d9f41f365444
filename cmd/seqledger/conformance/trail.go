package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// trailLines bounds the lines that a trail keeps: the last seconds mostly explain why a case failed.
	trailLines = 60
	// trailLineBytes bounds a line, because a client may print anything.
	trailLineBytes = 300
)

// trail holds the last events of a case. It is reported when the case fails, because a failure that needs a busy
// machine may not occur again when someone looks for it.
type trail struct {
	began time.Time
	// noted is called with each line; it may be nil. It is set before the first line.
	noted func()

	mu    sync.Mutex
	lines []string // oldest first
}

func newTrail() *trail { return &trail{began: time.Now()} }

// note adds a line. A nil trail records nothing.
func (t *trail) note(format string, args ...any) {
	if t == nil {
		return
	}
	line := fmt.Sprintf("%.3fs ", time.Since(t.began).Seconds()) + fmt.Sprintf(format, args...)
	if len(line) > trailLineBytes {
		line = strings.ToValidUTF8(line[:trailLineBytes], "") + "…"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == trailLines {
		t.lines = slices.Delete(t.lines, 0, 1)
	}
	t.lines = append(t.lines, line)
	if t.noted != nil {
		t.noted()
	}
}

// last returns the last events, oldest first.
func (t *trail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lines)
}
