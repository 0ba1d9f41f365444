package harness

import (
	"os"
	"testing"
)

// One bad round must not show, in any of the values.
func TestMedians(t *testing.T) {
	t.Parallel()
	rounds := []Values{{"a": 100, "b": 0}, {"a": 1, "b": 7}, {"a": 2, "b": 6}}
	if m := Medians(rounds); m["a"] != 2 || m["b"] != 6 || len(m) != 2 {
		t.Errorf("got %v", m)
	}
}

// Our own process is there and has used something; one that is gone counts nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	used, err := Usage(t.TempDir(), os.Getpid(), 1<<30)()
	if err != nil || used["cpu_us_per_write"] <= 0 || used["client_cpu_us_per_write"] != 0 {
		t.Errorf("got %v, %v", used, err)
	}
	if Memory("VmRSS", os.Getpid(), 1<<30) <= 0 {
		t.Error("no memory is resident")
	}
}
