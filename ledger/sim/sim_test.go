package sim

import (
	"testing"
	"fmt"
	"time"
)

func TestTry(t *testing.T) {
	dir := t.TempDir()
	began := time.Now()
	total := 0
	counted := map[string]int{}
	for seed := range uint64(40) {
		r := run(seed, 1<<30, bugs{}, dir)
		total += r.commands
		for k, n := range r.counted { counted[k] += n }
		if r.err != nil { t.Fatal(r.err) }
	}
	fmt.Println(total, time.Since(began), counted)
}
