package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// trailLines bounds the lines that a trail keeps: a case that fails is mostly explained by its last seconds.
	trailLines = 60
	// trailLineBytes bounds a line, because a client may say anything.
	trailLineBytes = 300
)

// trail is what was seen last in a case. It is reported when the case fails, because a failure that needs a busy
// machine may not come again when it is looked for.
type trail struct {
	began time.Time
	// noted is called with each line; nil calls nothing. It is set before the first line.
	noted func()

	mu    sync.Mutex
	lines []string // the oldest first
}

func newTrail() *trail { return &trail{began: time.Now()} }

// note adds a line. A nil trail keeps nothing.
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
	call(t.noted)
}

// last returns what was seen last, the oldest first.
func (t *trail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lines)
}
