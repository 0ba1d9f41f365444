package importing

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress shows the progress of an import: a bar on a terminal, occasional lines elsewhere.
type Progress struct {
	bar    *progressbar.ProgressBar         // nil without a terminal
	notice func(format string, args ...any) // nil for silence
	total  uint64                           // lines
	first  uint64                           // lines that were committed before
	began  time.Time
	told   time.Time
}

// progressEvery is how often a line is printed without a terminal: seldom, because these lines
// end up in log files.
const progressEvery = 5 * time.Second

// NewProgress begins to show the progress of an import of total lines, of which an earlier run has
// committed the first ones. The bar goes to stderr, if that is a terminal, and lines to notice; a
// nil notice shows nothing at all.
func NewProgress(
	stderr io.Writer, notice func(format string, args ...any), total, first uint64,
) *Progress {
	p := &Progress{notice: notice, total: total, first: first, began: time.Now(), told: time.Now()}
	if notice == nil {
		return p
	}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		// The bar counts what this run sends, otherwise its rate and the time
		// left would take the lines of earlier runs for its own.
		p.bar = progressbar.NewOptions64(int64(total-first),
			progressbar.OptionSetWriter(f), progressbar.OptionSetDescription("importing"),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("lines"),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish())
	}
	return p
}

// To records that all lines up to this one are committed.
func (p *Progress) To(line uint64) {
	switch {
	case p.bar != nil:
		_ = p.bar.Set64(int64(line - p.first)) // a broken terminal must not stop an import
	case p.notice != nil:
		now := time.Now()
		if now.Sub(p.told) < progressEvery {
			return
		}
		p.told = now
		rate := float64(line-p.first) / now.Sub(p.began).Seconds()
		left := time.Duration(float64(p.total-line) / rate * float64(time.Second))
		p.notice("imported %d of %d lines, %.0f a second, %s left", line, p.total, rate, left.Round(time.Second))
	}
}

// End removes the bar.
func (p *Progress) End() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
