package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

// The four sides are measured, every answer is what it must be, and a fresh key costs two commands.
func TestGatewayMeasures(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it builds seqledger, which make test-long has")
	}
	o := quickOptions(t)
	o.fraction = quickFraction
	lines := measured(t, o, func(ctx context.Context, b *bed) error { return measureGateway(ctx, b, 2) })
	if last := lines[len(lines)-1]; last["value"] != "2.00" || last["verdict"] != "reached" {
		t.Errorf("want two commands for a fresh key, got %v", last)
	}
}

// Replays are held against the proxy's requests of the same round.
func TestGatewayFindings(t *testing.T) {
	t.Parallel()
	round := func(rates ...float64) (list []harness.Values) {
		for _, rate := range rates {
			list = append(list, harness.Values{"throughput_per_s": rate})
		}
		return list
	}
	for name, test := range map[string]struct {
		replays      []harness.Values
		commands     float64
		replay, most string
	}{
		"dearer":             {round(90, 900, 9), 2, "MISSED", "reached"},
		"as cheap":           {round(100, 1000, 9), 2.004, "reached", "reached"},
		"a command too many": {round(100, 1000, 10), 2.01, "reached", "MISSED"},
	} {
		sides := [4][]harness.Values{round(1, 1, 1), round(100, 1000, 10), round(1, 1, 1), test.replays}
		lines := gatewayFindings(sides, test.commands)
		replay, commands := lines[len(lines)-2]["verdict"], lines[len(lines)-1]["verdict"]
		if replay != test.replay || commands != test.most {
			t.Errorf("%s: got %s and %s", name, replay, commands)
		}
	}
}

// What is opened is kept until the attack ends, and given up; what still waits then is not counted.
func TestHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var released atomic.Int32
		text, err := hold(ctx, 4, func(life context.Context, i int) (func(), error) {
			switch i {
			case 2:
				return nil, errors.New("refused")
			case 3:
				<-life.Done()
				return nil, life.Err()
			}
			return func() {
				if ctx.Err() == nil {
					t.Error("released before the end")
				}
				released.Add(1)
			}, nil
		})
		if want := "2 of 4 opened"; err != nil || text != want || released.Load() != 2 {
			t.Errorf("want %q, got %q, %d released, %v", want, text, released.Load(), err)
		}
	})
}
