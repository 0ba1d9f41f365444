package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// TestCrashesStopAtTheLastMessage checks that crashes stop at the last message, and that they report a client that
// never gets that far.
func TestCrashesStopAtTheLastMessage(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{0, 5, mostCrashes - 1, mostCrashes, mostCrashes + 7} {
		steps := 0
		err := attempt(func() {
			eachCrash(func(step int) bool {
				steps = step
				return step <= messages
			})
		})
		want := ""
		if messages >= mostCrashes {
			want = fmt.Sprintf("more than %d messages", mostCrashes-1)
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("a client of %d messages: %v, want %q", messages, err, want)
		}
		if steps != min(messages+1, mostCrashes) {
			t.Errorf("a client of %d messages was tried %d times", messages, steps)
		}
	}
}
