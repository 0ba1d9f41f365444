package uuid

import (
	"regexp"
	"testing"
	"testing/synctest"
	"time"
)

// UUIDs have the form of version 7, differ, and begin with the time in milliseconds.
func TestNew(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 1000 {
		id := New()
		if !form.MatchString(id) || seen[id] {
			t.Fatalf("%s, seen before: %v", id, seen[id])
		}
		seen[id] = true
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.UnixMilli(0x0123456789ab).Sub(time.Now())) //nolint:forbidigo // The clock of the bubble.
		for id, want := range map[string]string{
			Of(0, 0): "01234567-89ab-7000-8000-000000000000", Of(^uint64(0), ^uint64(0)): "01234567-89ab-7fff-bfff-ffffffffffff",
			Of(0x0abc<<48, 0x123456789abcdef0): "01234567-89ab-7abc-9234-56789abcdef0",
		} {
			if id != want {
				t.Errorf("%s, want %s", id, want)
			}
		}
	})
}
