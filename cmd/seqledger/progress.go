package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressEvery is how often a line is printed without a terminal: seldom, because these lines end up in log files.
const progressEvery = 5 * time.Second

// seldom paces the lines about progress.
type seldom struct{ told time.Time }

// due reports whether it is time for a line. There is none before the first interval has passed.
func (s *seldom) due() bool {
	now := time.Now()
	if s.told.IsZero() {
		s.told = now
	}
	if now.Sub(s.told) < progressEvery {
		return false
	}
	s.told = now
	return true
}

// progress shows how far long work has come: a bar on a terminal, a line now and then elsewhere, nothing with --json.
// A nil progress shows nothing.
type progress struct {
	e     *environment
	bar   *progressbar.ProgressBar // nil without a terminal
	doing string
	unit  string // bytes or lines
	first int64  // what an earlier run has done
	total int64  // 0 if unknown
	began time.Time
	seldom
}

func newProgress(e *environment, doing, unit string, first, total int64) *progress {
	if e.json {
		return nil
	}
	now := time.Now()
	p := &progress{e: e, doing: doing, unit: unit, first: first, total: total, began: now, seldom: seldom{now}}
	f, ok := e.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return p
	}
	// The bar counts what this run does. Otherwise its rate and the time left would include the work of earlier runs.
	left := total - first
	if total == 0 {
		left = -1 // a spinner
	}
	p.bar = progressbar.NewOptions64(left, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(doing),
		progressbar.OptionShowBytes(unit == "bytes"), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
		progressbar.OptionSetItsString(unit), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish())
	return p
}

// to records how much is done, including the work of earlier runs.
func (p *progress) to(done int64) {
	switch {
	case p == nil:
	case p.bar != nil:
		_ = p.bar.Set64(done - p.first) // a broken terminal must not stop the work
	case p.due():
		rate := float64(done-p.first) / time.Since(p.began).Seconds()
		left := time.Duration(float64(p.total-done) / rate * float64(time.Second))
		p.e.notice("%s: %d of %d %s, %.0f a second, %s left", p.doing, done, p.total, p.unit, rate,
			max(left, 0).Round(time.Second))
	}
}

// end removes the bar.
func (p *progress) end() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
	}
}
