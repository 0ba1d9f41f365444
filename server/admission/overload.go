package admission

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// overloadEvery is how often the log says that requests are refused because there
// are too many: a line for each would make the overload worse.
const overloadEvery = 10 * time.Second

// overload logs now and then that the server refuses requests. The metrics count every refusal.
type overload struct {
	next    atomic.Int64 // Unix nanoseconds; no line before
	refused atomic.Int64 // since the last line
}

// refuse counts a refusal, and logs all since the last line unless that was written recently.
func (o *overload) refuse(ctx context.Context, logger *slog.Logger, bound string) {
	o.refused.Add(1)
	now, next := time.Now().UnixNano(), o.next.Load()
	if now < next || !o.next.CompareAndSwap(next, now+int64(overloadEvery)) {
		return
	}
	logger.WarnContext(ctx, "too much to do: requests are refused", "bound", bound, "refused", o.refused.Swap(0))
}
