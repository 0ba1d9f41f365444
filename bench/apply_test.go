package main

import (
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// TestAttacksRun runs a small attack of each kind: each must reach the applier, and
// none may fail. How long one may take is measured by go run ./bench apply.
func TestAttacksRun(t *testing.T) {
	t.Parallel()
	for _, kind := range attackKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r, err := runAttack(t.Context(), applyAttack{
				Interval: 1, Limit: 10, Window: 4, Streams: 5, Busy: true, Entities: 20, Scopes: 3,
				KeyBytes: machine.MaxKeyBytes,
				Comb:     true, ValueBytes: 33, Tombstones: 10, Rewind: true, Kind: kind, Operations: 2, Commands: 64,
			}, t.TempDir())
			if err != nil || r.Failure != "" || r.Slowest.Took <= 0 || r.Dearest.Processor <= 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestJudgeApplies: a mark is missed by work or memory, and not by a thread that did not run.
func TestJudgeApplies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		r      applyResult
		missed bool
		says   string
	}{
		"fast":    {r: applyResult{Slowest: applyCost{Took: maxApply}, Dearest: applyCost{Processor: maxApply}}},
		"work":    {r: applyResult{Dearest: applyCost{Processor: maxApply + 1}}, missed: true, says: "MISSED"},
		"memory":  {r: applyResult{Largest: applyCost{Allocated: maxApplyMemory + 1}}, missed: true, says: "MISSED"},
		"garbage": {r: applyResult{Memory: maxApplyMemory + 1}, says: "waited"},
		"failed":  {r: applyResult{Failure: "no disk"}, missed: true, says: "MISSED no disk"},
		"waited":  {r: applyResult{Slowest: applyCost{Took: maxApply + 1, Processor: 1, Queued: 2}}, says: "waited"},
	} {
		var text strings.Builder
		if err := judgeApplies(&text, []applyResult{{}, test.r}); (err != nil) != test.missed ||
			!strings.Contains(test.r.line(), test.says) {
			t.Errorf("%s: %v, %s", name, err, text.String())
		}
	}
}

// TestApplyMeter: an apply that works costs its thread processor time, one that sleeps does not.
func TestApplyMeter(t *testing.T) {
	t.Parallel()
	var m applyMeter
	end := m.observe()
	for began := processorTime(t); processorTime(t)-began < time.Millisecond; {
	}
	end()
	var r applyResult
	if err := m.worst(&r); err != nil || r.Dearest.Processor < time.Millisecond {
		t.Errorf("%+v, %v", r, err)
	}
	m.reset()
	if err := m.worst(&r); err != nil || r.Slowest.Took != 0 {
		t.Errorf("a reset keeps %+v, %v", r, err)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	c, err := threadCost()
	if err != nil {
		t.Fatal(err)
	}
	return c.Processor
}
