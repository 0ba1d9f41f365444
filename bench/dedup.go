package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

// withoutDedup makes a ledger that commits every write, only for the rows of dedup-off: it keeps no record of a stream,
// and looks for no retry before the log and at no session, sequence, key or hash behind it. The build gets it as an
// overlay, so that the product has no switch for it.
var withoutDedup = []struct{ file, before, insert string }{
	{"ledger/cache.go", "\tif !l.log.ReadsAlone() {\n", `
	clear(receipts)
	return nil
`},
	{"ledger/machine/write.go", "\tfound, err := m.loadStream(tx, c.organization, c.vault, c.clientID)\n", `
	m.streamKey = appendScope(m.streamKey[:0], c.organization, c.vault)
	if err := m.checkConditions(tx, m.streamKey, c.operations, out); err != nil || out.Code != 0 {
		return nil, err
	}
	out.CommittedSequence = c.sequence
	return m.commitWrite(tx, c, nil, m.streamKey, 0, RequestHash{}, out)
`},
}

// buildWithoutDedup builds bench over such a ledger.
func buildWithoutDedup(ctx context.Context, dir string) (binary string, err error) {
	const module = "github.com/seqledger/seqledger"
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w; it is built from its source tree", err)
	}
	replace := make(map[string]string)
	for i, w := range withoutDedup {
		source := filepath.Join(strings.TrimSpace(string(root)), w.file)
		patched := filepath.Join(dir, fmt.Sprint(i, ".go"))
		content, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		if n := strings.Count(string(content), w.before); n != 1 {
			return "", fmt.Errorf("%s has %q %d times, want once", w.file, w.before, n)
		}
		replace[source] = patched
		content = bytes.Replace(content, []byte(w.before), []byte(w.insert+w.before), 1)
		if err := os.WriteFile(patched, content, 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	binary = filepath.Join(dir, "without")
	return binary, errors.Join(err, os.WriteFile(binary+".json", overlay, 0o600),
		command(ctx, "", "go", "build", "-overlay", binary+".json", "-o", binary, module+"/bench"))
}

const (
	dedupTurns = 7
	// What exactly-once may cost: the least share of the throughput, and the most of the median latency.
	dedupSpeed, dedupLatency = 0.97, 1.04
)

// measureDedup measures engine/1 and engine/256 in turns with a ledger that does not deduplicate.
func measureDedup(ctx context.Context, b *bed) error {
	without, err := buildWithoutDedup(ctx, b.dir)
	if err != nil {
		return err
	}
	turns, duration := dedupTurns, min(b.o.duration, 1500*time.Millisecond)
	if duration < time.Second { // does it run?
		turns = 1
	}
	const rows = "^engine/(1|256)$"
	pairs, err := comparePairs(turns, func(side int) (map[string]harness.Values, error) {
		return runRows(ctx, []string{without, "/proc/self/exe"}[side], rows, duration, b.dir)
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		p, workers := pairs[name], strings.TrimPrefix(name, "engine")
		off := harness.Line{"row": "dedup-off" + workers}.With(harness.Medians(p[0]))
		on := harness.Line{"row": "dedup-on" + workers}.With(harness.Medians(p[1]))
		speed, latency := harness.Median(p.ratios("throughput_per_s")), harness.Median(p.ratios("p50_ms"))
		processor := harness.Median(p.ratios("client_cpu_us_per_write"))
		on["must_reach"] = dedupSpeed * off["throughput_per_s"].(float64)
		on["verdict"] = fmt.Sprintf("%s: %.3f of the rate, %.3f of p50, %.3f of the processor time",
			verdict(speed >= dedupSpeed && latency <= dedupLatency), speed, latency, processor)
		if err := b.tell(off, on); err != nil {
			return err
		}
	}
	return nil
}
