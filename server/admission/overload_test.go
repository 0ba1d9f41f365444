package admission

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The log gets a line at once, then one for all refusals that follow.
func TestOverloadIsLoggedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		var o overload
		for range 100 {
			o.refuse(t.Context(), logger, "requests")
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "refused=1") {
			t.Errorf("want one line for a hundred refusals, got %s", log.String())
		}
		log.Reset()
		<-time.After(overloadEvery)
		o.refuse(t.Context(), logger, "requests")
		if !strings.Contains(log.String(), "refused=100") || !strings.Contains(log.String(), "level=WARN") {
			t.Errorf("want a line for all that were not told of, got %s", log.String())
		}
	})
}
