package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client/outbox"
)

// outboxTestBed runs a test on a bed whose directory PostgreSQL's user can reach, which t.TempDir's is not.
func outboxTestBed(t *testing.T, n int, use func(ctx context.Context, b *outboxBed, n int) ([]harness.Line, error)) {
	t.Helper()
	o := quickOptions(t)
	o.dir, o.fraction = "", quickFraction
	err := onBed(t.Context(), o, func(ctx context.Context, b *bed) error {
		lines, err := onOutboxBed(n, use)(ctx, b)
		if err == nil && len(lines) == 1 && strings.HasPrefix(lines[0]["measure"].(string), "skipped") {
			t.Skip(lines[0]["measure"])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A relay writes every row that waits, once, and what it took is told.
func TestRelayMeasures(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it starts a PostgreSQL, which make test-long does")
	}
	outboxTestBed(t, 3, func(ctx context.Context, b *outboxBed, n int) ([]harness.Line, error) {
		lines, err := measureRelay(ctx, b, n)
		if err != nil {
			return nil, err
		}
		if len(lines) != 2 || lines[0]["measure"] != "rows a second" || lines[0]["value"] == "0" {
			t.Errorf("%v", lines)
		}
		var rows, streams int
		const committed = `SELECT count(*), count(DISTINCT stream) FROM relayed_outbox
			WHERE tx_id IS NOT NULL AND operations->0->'append'->>'payload' <> ''`
		if err := b.pool.QueryRow(ctx, committed).Scan(&rows, &streams); err != nil {
			return nil, err
		}
		if rows != scaled(b.o, backlog) || streams != n {
			t.Errorf("%d rows of %d streams have receipts", rows, streams)
		}
		return lines, nil
	})
}

// Each side of the application's transaction does what it is called, and the relay leaves nothing behind.
func TestApplicationMeasures(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it starts a PostgreSQL, which make test-long does")
	}
	outboxTestBed(t, 2, func(ctx context.Context, b *outboxBed, n int) ([]harness.Line, error) {
		lines, err := measureApplication(ctx, b, n)
		if err != nil {
			return nil, err
		}
		if want := 4*len(applicationSides) - 1 + 1; len(lines) != want {
			t.Errorf("%d lines, want %d", len(lines), want)
		}
		count := func(query string) (n int) {
			if err := b.pool.QueryRow(ctx, "SELECT count(*) FROM "+query).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		}
		plain, held, relayed := count("plain"), count("held_outbox WHERE state = 'new'"), count("relayed_outbox")
		if committed := count("relayed_outbox WHERE tx_id IS NOT NULL"); committed != relayed {
			t.Errorf("%d of %d rows were relayed", committed, relayed)
		}
		orders := count("orders")
		if plain == 0 || held == 0 || relayed == 0 || orders <= plain+held+relayed {
			t.Errorf("%d orders, of them %d with a plain row, %d and %d with one of an outbox", orders, plain, held,
				relayed)
		}
		return lines, nil
	})
}

// A stream that stops ends the measurement, which would wait for its rows for ever.
func TestRelayThatStops(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: it starts a PostgreSQL, which make test-long does")
	}
	outboxTestBed(t, 1, func(ctx context.Context, b *outboxBed, _ int) ([]harness.Line, error) {
		const invalid = `INSERT INTO relayed_outbox (stream, operations) VALUES ('s', '[]')`
		if _, err := b.pool.Exec(ctx, invalid); err != nil {
			return nil, err
		}
		_, err := b.relay(ctx, func(*outbox.Relay) bool { return false })
		if err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("want an error of the stream, got %v", err)
		}
		ended, cancel := context.WithCancelCause(ctx)
		over := errors.New("over")
		cancel(over)
		if _, err := b.relay(ended, func(*outbox.Relay) bool { return false }); !errors.Is(err, over) {
			t.Errorf("want %v, got %v", over, err)
		}
		return []harness.Line{{}, {}}, nil
	})
}

func TestRelayFindings(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]string{4_999: "MISSED", 5_000: "reached"} {
		lines := relayFindings([]harness.Values{
			{"throughput_per_s": 1}, {"throughput_per_s": rate, "database_us": 1, "server_us": 2, "relay_us": 3},
			{"throughput_per_s": 1e6, "database_us": 9, "server_us": 9, "relay_us": 9},
		})
		if lines[0]["verdict"] != want || lines[1]["value"] != "1 + 2 + 3 µs" {
			t.Errorf("%g a second: %v", rate, lines)
		}
	}
}

// A side's rate is held against the first side's of the same round.
func TestApplicationFindings(t *testing.T) {
	t.Parallel()
	round := func(rates ...float64) (list []harness.Values) {
		for _, rate := range rates {
			list = append(list, harness.Values{"throughput_per_s": rate})
		}
		return list
	}
	lines := applicationFindings([][]harness.Values{
		sideBare: round(100, 1000, 10), sidePlain: round(90, 900, 9), sideHeld: round(80, 800, 20),
		sideRelayed: round(50, 700, 1),
	})
	var ratios []string
	for _, l := range lines {
		if strings.HasSuffix(l["measure"].(string), "of the first one's rate") {
			ratios = append(ratios, l["value"].(string))
		}
	}
	if got := strings.Join(ratios, " "); got != "0.90 0.80 0.50" {
		t.Error(got)
	}
}
