package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

// TestOneConnection: requests that begin together wait for one connection and do not each open
// their own.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := newHTTP2()
		var dials atomic.Int32
		release := make(chan struct{})
		transport, _ := c.Transport.(*http.Transport)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			<-release
			return nil, errors.New("no server")
		}
		var requests sync.WaitGroup
		for range 16 {
			requests.Go(func() {
				if answer, err := c.Get("http://ledger/"); err == nil {
					_ = answer.Body.Close()
					t.Error("an answer without a server")
				}
			})
		}
		synctest.Wait()
		if n := dials.Load(); n != 1 {
			t.Errorf("%d connections are opened at once, want 1", n)
		}
		close(release)
		requests.Wait()
	})
}

func TestScaled(t *testing.T) {
	t.Parallel()
	o := &options{fraction: 0.001}
	if n := scaled(o, 100); n != 1 {
		t.Errorf("a thousandth of 100 is %d, want at least 1", n)
	}
	if d := scaledTime(o, time.Minute); d != 300*time.Millisecond {
		t.Errorf("a thousandth of a minute is %s", d)
	}
	o.fraction = 1
	if n, d := scaled(o, 100), scaledTime(o, time.Minute); n != 100 || d != time.Minute {
		t.Errorf("the full size is %d and %s", n, d)
	}
}

// TestRowsReport: rows run in their order, each line bears its row's name, the report says how it
// came about, and a row that fails leaves no report.
func TestRowsReport(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	o.fraction, o.json = 0.5, filepath.Join(t.TempDir(), "report.json")
	rows := []row{
		{"first", func(context.Context, *bed) ([]harness.Line, error) {
			return []harness.Line{told("a", "1")}, nil
		}},
		{"second", func(context.Context, *bed) ([]harness.Line, error) {
			return []harness.Line{held("b", "2", "3", false)}, nil
		}},
	}
	rowsTable := table{"a table", findingColumns, func() []row { return rows }}
	var out strings.Builder
	if err := rowsTable.measure(t.Context(), "scale", o, &out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.json)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Kind, Commit, Machine string
		Fraction              float64
		Findings              []map[string]string
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Kind != "scale" || r.Fraction != 0.5 || r.Commit == "" || r.Machine == "" || len(r.Findings) != 2 ||
		r.Findings[0]["row"] != "first" || r.Findings[1]["verdict"] != "MISSED" {
		t.Errorf("the report is %s", b)
	}
	if !strings.Contains(out.String(), "MISSED") {
		t.Errorf("the table is %s", out.String())
	}
	broken := errors.New("broken")
	o.json = filepath.Join(t.TempDir(), "none.json")
	rows[1].measure = func(context.Context, *bed) ([]harness.Line, error) { return nil, broken }
	if err := rowsTable.measure(t.Context(), "scale", o, &out); !errors.Is(err, broken) ||
		!strings.Contains(err.Error(), "second") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(o.json); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed run left a report: %v", err)
	}
}

// TestRowsHaveNames: -only finds a row by its name, so that names differ.
func TestRowsHaveNames(t *testing.T) {
	t.Parallel()
	for kind, all := range tables {
		names := map[string]bool{}
		for _, row := range all.rows() {
			if row.name == "" || names[row.name] {
				t.Errorf("%s: %q is not the name of one row", kind, row.name)
			}
			names[row.name] = true
		}
	}
}
