package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// transfer shows the progress of a backup or restore: a bar on a terminal, occasional lines
// elsewhere, nothing with --json. A nil transfer shows nothing.
type transfer struct {
	bar   *progressbar.ProgressBar // nil without a terminal
	e     *environment
	doing string
	total int64 // bytes; 0 if unknown
	told  time.Time
}

func newTransfer(e *environment, doing string, total int64) *transfer {
	if e.json {
		return nil
	}
	p := &transfer{e: e, doing: doing, total: total, told: time.Now()}
	if f, ok := e.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if total == 0 {
			total = -1 // a spinner
		}
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(e.stderr),
			progressbar.OptionSetDescription(doing), progressbar.OptionShowBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	return p
}

// to records that done bytes have been transferred.
func (p *transfer) to(done int64) {
	switch {
	case p == nil:
	case p.bar != nil:
		_ = p.bar.Set64(done) // a broken terminal must not stop it
	case time.Since(p.told) >= progressEvery:
		p.told = time.Now()
		p.e.notice("%s: %d of %d bytes", p.doing, done, p.total)
	}
}

// end removes the bar.
func (p *transfer) end() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
	}
}
