package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows the progress of an import: a bar on a terminal, occasional lines elsewhere,
// nothing with --json.
type progress struct {
	bar   *progressbar.ProgressBar // nil without a terminal
	e     *environment             // nil without progress lines
	total uint64                   // lines
	first uint64                   // lines that were committed before
	began time.Time
	told  time.Time
}

func newProgress(e *environment, total, first uint64) *progress {
	p := &progress{total: total, first: first, began: time.Now(), told: time.Now()}
	if e.json {
		return p
	}
	p.e = e
	if f, ok := e.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		// The bar counts what this run sends, otherwise its rate and the time
		// left would take the lines of earlier runs for its own.
		p.bar = progressbar.NewOptions64(int64(total-first),
			progressbar.OptionSetWriter(e.stderr), progressbar.OptionSetDescription("importing"),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("lines"),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish())
	}
	return p
}

// to records that all lines up to this one are committed.
func (p *progress) to(line uint64) {
	switch {
	case p.bar != nil:
		_ = p.bar.Set64(int64(line - p.first)) // a broken terminal must not stop an import
	case p.e != nil:
		// Print rarely, because these lines end up in log files.
		now := time.Now()
		if now.Sub(p.told) < progressEvery {
			return
		}
		p.told = now
		rate := float64(line-p.first) / now.Sub(p.began).Seconds()
		left := time.Duration(float64(p.total-line) / rate * float64(time.Second))
		p.e.notice("imported %d of %d lines, %.0f a second, %s left", line, p.total, rate, left.Round(time.Second))
	}
}

// end removes the bar.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
