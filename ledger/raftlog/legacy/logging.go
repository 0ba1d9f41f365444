package legacy

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// newHclog returns a logger for the libraries that writes to out. What they
// call information (elections, snapshots, compactions) is routine here and goes
// to the debug level, so that a healthy node says nothing at info.
func newHclog(out *slog.Logger, name string) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: name, Output: io.Discard, Level: hclog.Off})
	l.RegisterSink(slogSink{out})
	return l
}

type slogSink struct{ out *slog.Logger }

// routineWarnings are warnings of hashicorp/raft that a node gives at each
// healthy start, because it cannot know yet that it has no leader to wait for.
var routineWarnings = map[string]bool{
	"heartbeat timeout reached, starting election": true,
}

// Accept implements hclog.SinkAdapter.
func (s slogSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch {
	case level == hclog.Warn && !routineWarnings[msg]:
		to = slog.LevelWarn
	case level == hclog.Error:
		to = slog.LevelError
	}
	ctx := context.Background()
	if !s.out.Enabled(ctx, to) {
		return
	}
	attrs := make([]any, 0, len(args)+2)
	attrs = append(attrs, "component", name)
	for i, a := range args {
		// hclog.Fmt is a format with its arguments; slog would print the slice.
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			a = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		if i%2 == 0 {
			a = fmt.Sprint(a) // slog marks a key that is not a string as bad
		}
		attrs = append(attrs, a)
	}
	s.out.Log(ctx, to, msg, attrs...)
}
