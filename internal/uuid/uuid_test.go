package uuid

import (
	"regexp"
	"testing"
)

// UUIDs have the form of version 7, have the bits that are given, and differ.
func TestUUIDs(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for text, end := range map[string]string{
		Of(0, 0): "-7000-8000-000000000000", Of(^uint64(0), ^uint64(0)): "-7fff-bfff-ffffffffffff",
		Of(0x0abc<<48, 0x123456789abcdef0): "-7abc-9234-56789abcdef0",
	} {
		if !form.MatchString(text) || text[13:] != end {
			t.Errorf("%s, want the end %s", text, end)
		}
	}
	if a, b := New(), New(); a == b || !form.MatchString(a) {
		t.Errorf("%s and %s", a, b)
	}
}
