package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/conformance"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

var update = flag.Bool("update", false, "write the table of conformance in the documents anew")

// conformanceReports is the directory in which make test-web puts the clients' results. Without it the table is
// compared only with the cases, because the clients need Node and a browser.
var conformanceReports = flag.String("conformance", "",
	"directory with reports of seqledger conformance --json, which the table in docs/conformance.md has to state")

const conformancePage = "../../docs/conformance.md"

// conformanceClients are the columns of the table, with the names of their reports.
var conformanceClients = []struct{ report, column string }{
	{"go", "Go"},
	{"node-calls", "Node, calls"},
	{"node-websocket", "Node, WebSocket"},
	{"node-http2", "Node, HTTP/2"},
	{"deno-calls", "Deno, calls"},
	{"deno-websocket", "Deno, WebSocket"},
	{"bun-calls", "Bun, calls"},
	{"bun-websocket", "Bun, WebSocket"},
	{"chromium", "page in Chromium"},
}

// optionalRuntime reports whether make test-web runs without the runtime of a report, and says that it is missing.
func optionalRuntime(report string) bool {
	return report != "go" && !strings.HasPrefix(report, "node-")
}

// conformanceHead returns the head of the table.
func conformanceHead() string {
	columns := []string{"case", "duty"}
	for _, c := range conformanceClients {
		columns = append(columns, c.column)
	}
	return tableRow(columns)
}

func tableRow(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// conformanceTable returns the table for the given reports; a report maps the name of each case to its result.
func conformanceTable(reports []map[string]string) string {
	table := conformanceHead() + "|---|---|" + strings.Repeat("---|", len(conformanceClients)) + "\n"
	for _, c := range conformance.Cases() {
		row := []string{c.Name, c.Duty}
		for _, report := range reports {
			row = append(row, report[c.Name])
		}
		table += tableRow(row)
	}
	return table
}

// readConformance returns the result of each case in a report: ok, FAIL, or nothing if it was not run.
func readConformance(path string) (map[string]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var report conformance.Report
	if err := json.Unmarshal(content, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	came := map[string]string{}
	for _, r := range report.Results {
		came[r.Name] = "ok"
		if r.Problem != "" {
			came[r.Name] = "FAIL"
		}
	}
	return came, nil
}

// stated returns the page and the table in it.
func stated(t *testing.T) (page, table string) {
	t.Helper()
	content := must.Get(os.ReadFile(conformancePage))(t)
	_, after, found := strings.Cut(string(content), conformanceHead())
	if !found {
		t.Fatalf("%s has no table with the head %s", conformancePage, conformanceHead())
	}
	body, _, _ := strings.Cut(after, "\n\n")
	return string(content), conformanceHead() + strings.TrimSuffix(body, "\n") + "\n"
}

// TestConformanceTable checks that the table lists every case, and that every client passes it; with -conformance, also
// that these are the results of the clients' last run. TestConformance checks the Go client in any case.
func TestConformanceTable(t *testing.T) {
	t.Parallel()
	page, table := stated(t)
	var passed []map[string]string
	for range conformanceClients {
		all := map[string]string{}
		for _, c := range conformance.Cases() {
			all[c.Name] = "ok"
		}
		passed = append(passed, all)
	}
	if *conformanceReports == "" {
		if want := conformanceTable(passed); table != want {
			t.Errorf("%s: the table is not that of the cases that there are; make test-web makes the reports for\n"+
				"go test ./cmd/seqledger -run %s -conformance DIR -update\ngot:\n%swant:\n%s",
				conformancePage, t.Name(), table, want)
		}
		return
	}
	for i, c := range conformanceClients {
		report, err := readConformance(filepath.Join(*conformanceReports, c.report+".json"))
		if errors.Is(err, fs.ErrNotExist) && optionalRuntime(c.report) && !*update {
			t.Logf("there is no report of %s", c.column)
			continue
		}
		must.Do(t, err)
		passed[i] = report
	}
	want := conformanceTable(passed)
	if *update {
		must.Do(t, os.WriteFile(conformancePage, []byte(strings.Replace(page, table, want, 1)), 0o600))
		return
	}
	check.Equal(t, table, want, "%s: the table states what the clients did not do\ngot:\n%s", conformancePage)
}

// TestConformanceTableClients checks that make test-web runs the client of every column, and checks the table with it.
func TestConformanceTableClients(t *testing.T) {
	t.Parallel()
	makefile := must.Get(os.ReadFile("../../Makefile"))(t)
	for _, c := range conformanceClients {
		check.Contains(t, string(makefile), "$(call conformance,"+c.report+",",
			"the Makefile has no run of %q, which has a column in %s", c.report, conformancePage)
	}
	check.Contains(t, string(makefile), "-run TestConformanceTable -conformance $(CURDIR)/bin/web/conformance",
		"the Makefile does not compare %s with the runs", conformancePage)
}
