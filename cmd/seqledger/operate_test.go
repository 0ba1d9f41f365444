package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// alertRules is what this test needs of a file of rules.
type alertRules struct {
	Groups []struct {
		Rules []struct {
			Alert       string
			Expr        string
			For         string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

// dashboard is the same for Grafana.
type dashboard struct {
	Title  string
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
}

func readOperate(t *testing.T, name string) string {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join("operate", name)))(t)
	return string(content)
}

// scrapeGateway returns /metrics of a gateway with some activity.
func scrapeGateway(t *testing.T) string {
	t.Helper()
	service := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(service.Close)
	dir := t.TempDir()
	g := startGateway(t, dir, service.URL, "--data", filepath.Join(dir, "data"), "--debug-listen", "127.0.0.1:0")
	g.charge(`"k"`, "5")
	return scrapeAddress(t, g.Debug)
}

// scrape returns /metrics of a server with some activity.
func scrape(t *testing.T) string {
	t.Helper()
	s := serve(t, "--archive", t.TempDir())
	s.do(t, "write", "--scope", "acme", "--client-id", "a", "--append", "x").expect(t, exitDone)
	var metrics string
	must.Await(t, func() bool {
		metrics = scrapeAddress(t, s.address)
		return strings.Contains(metrics, "seqledger_archive_log_lag_seconds ") // the first of the log is archived
	})
	return metrics
}

func scrapeAddress(t *testing.T, address string) string {
	t.Helper()
	answer := must.Get(http.Get("http://" + address + "/metrics"))(t)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
	return string(text)
}

var (
	metricName = regexp.MustCompile(`\b(?:seqledger|process|go)_[a-z0-9_]+`)
	codeValues = regexp.MustCompile(`\bcode!?=~?"([^"]*)"`)
)

// checkExpression fails for a metric, or a value of its code, that no server
// has: such an alert would never fire and such a panel stay empty.
func checkExpression(t *testing.T, where, expression, metrics string) {
	t.Helper()
	for _, name := range metricName.FindAllString(expression, -1) {
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if strings.Contains(metrics, "# TYPE "+strings.TrimSuffix(name, suffix)+" histogram\n") {
				base = strings.TrimSuffix(name, suffix)
			}
		}
		check.Contains(t, metrics, "# TYPE "+base+" ", "%s: the server has no metric %s", where, name)
	}
	for _, values := range codeValues.FindAllStringSubmatch(expression, -1) {
		for value := range strings.SplitSeq(values[1], "|") {
			check.Contains(t, metrics, `code="`+value+`"`, "%s: no metric has the code %s", where, value)
		}
	}
	if strings.Count(expression, "(") != strings.Count(expression, ")") ||
		strings.Count(expression, "{") != strings.Count(expression, "}") {
		t.Errorf("%s: the brackets of %s do not match", where, expression)
	}
}

// TestAlertsAndDashboard hold the example files against a running server and
// the operations page.
func TestAlertsAndDashboard(t *testing.T) {
	t.Parallel()
	metrics := scrape(t) + scrapeGateway(t)
	page := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	var rules alertRules
	must.Do(t, yaml.Unmarshal([]byte(readOperate(t, "alerts.yaml")), &rules))
	count := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			count++
			checkExpression(t, rule.Alert, rule.Expr, metrics)
			if !strings.Contains(string(page), "\n### "+rule.Alert+"\n") ||
				!strings.HasSuffix(rule.Annotations["runbook_url"], "docs/operations.md#"+strings.ToLower(rule.Alert)) {
				t.Errorf("%s: its runbook is not a section of docs/operations.md", rule.Alert)
			}
			if rule.Annotations["summary"] == "" ||
				!slices.Contains([]string{"critical", "warning"}, rule.Labels["severity"]) {
				t.Errorf("%s: wants a summary and a severity", rule.Alert)
			}
		}
	}
	for _, section := range regexp.MustCompile(`\n### (Seqledger\w+)`).FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(readOperate(t, "alerts.yaml"), "alert: "+section[1]+"\n") {
			t.Errorf("docs/operations.md explains %s, which is not an alert", section[1])
		}
	}
	checkExpression(t, "docs/operations.md", string(page), metrics)
	var board dashboard
	must.Do(t, json.Unmarshal([]byte(readOperate(t, "grafana-dashboard.json")), &board))
	if count < 10 || len(board.Panels) < 20 {
		t.Fatalf("%d alerts and %d panels were read", count, len(board.Panels))
	}
	seen := map[int]bool{}
	for _, panel := range board.Panels {
		if seen[panel.ID] || panel.GridPos.X+panel.GridPos.W > 24 || panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %d %q has its id twice, is too wide or empty", panel.ID, panel.Title)
		}
		seen[panel.ID] = true
		for _, target := range panel.Targets {
			checkExpression(t, panel.Title, target.Expr, metrics)
		}
	}
}

// TestDocumentLinks: every relative link of the README and of the pages in docs leads to
// a file and, where it names one, to a section of that file.
func TestDocumentLinks(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 7 {
		t.Fatalf("%d pages in docs, %v", len(pages), err)
	}
	reference := regexp.MustCompile(`(?:\]\(|src="|srcset=")([^)"]*)[)"]`)
	code := regexp.MustCompile("(?s)```.*?```") // which may have the characters of a link
	links := 0
	for _, page := range append(pages, "../../README.md") {
		content := must.Get(os.ReadFile(page))(t)
		for _, link := range reference.FindAllStringSubmatch(code.ReplaceAllString(string(content), ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(link[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if anchor != "" && !anchors(t, target)[anchor] {
				t.Errorf("%s: %s has no section %s", page, target, anchor)
			}
		}
	}
	if links < 40 {
		t.Errorf("%d links were followed", links)
	}
}

// anchors returns the fragments by which a document's sections can be linked to.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	found := make(map[string]bool)
	for line := range strings.Lines(string(content)) {
		if title := strings.TrimLeft(line, "#"); title != line {
			title = regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			found[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return found
}

// TestDeploymentFilesNameFlags: a flag or variable that the program does not
// know would keep a service from starting.
func TestDeploymentFilesNameFlags(t *testing.T) {
	t.Parallel()
	help := seqledger(t, "serve", "--help").expect(t, exitDone).stdout +
		seqledger(t, "status", "--help").expect(t, exitDone).stdout
	for _, file := range []string{"seqledger.service", "Dockerfile"} {
		found := 0
		for line := range strings.Lines(readOperate(t, file)) {
			if strings.HasPrefix(line, "#") || !strings.Contains(line, "seqledger") &&
				!strings.Contains(line, "SEQLEDGER_") {
				continue
			}
			for _, word := range regexp.MustCompile(`--[a-z-]+|SEQLEDGER_[A-Z_]+`).FindAllString(line, -1) {
				if word == "--from" || word == "--chown" { // Docker's own
					continue
				}
				found++
				if !regexp.MustCompile(regexp.QuoteMeta(word) + `\b`).MatchString(help) {
					t.Errorf("%s: seqledger has no %s", file, word)
				}
			}
		}
		if found < 2 {
			t.Errorf("%s: found only %d flags to check", file, found)
		}
	}
}

// TestHealthCheck runs the container's check against servers as they may be in one:
// in clear, with TLS under another name than the loopback's, and with certificates
// of clients.
func TestHealthCheck(t *testing.T) {
	t.Parallel()
	var check []string
	_, command, _ := strings.Cut(readOperate(t, "Dockerfile"), "\n  CMD ")
	line, _, _ := strings.Cut(command, "\n")
	if err := json.Unmarshal([]byte(line), &check); err != nil || len(check) < 2 || check[0] != "/seqledger" {
		t.Fatalf("no check in %q: %v", line, err)
	}
	cert, key := selfSigned(t)
	ready := func(address string) result {
		return seqledger(t, append(
			[]string{"SEQLEDGER_SERVER=" + address, "SEQLEDGER_TLS_CERT=" + cert, "SEQLEDGER_TLS_KEY=" + key},
			check[1:]...)...)
	}
	plain := serve(t)
	ready(plain.address).expect(t, exitDone)
	encrypted := serve(t, "--tls-cert", cert, "--tls-key", key)
	if r := ready(encrypted.address).expect(t, exitDone); r.stdout+r.stderr != "" {
		t.Errorf("want silence, got %v", r)
	}
	mutual := serve(t, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert, "--debug-listen", "127.0.0.1:0")
	ready(mutual.address).expect(t, exitFailed, "certificate required")
	awaitLog(t, mutual.process, "serving profiles and metrics")
	address := regexp.MustCompile(`serving profiles and metrics" address=(\S+)`)
	debug := address.FindStringSubmatch(mutual.stderr.String())
	ready(debug[1]).expect(t, exitDone)
	conn := busy(t, plain)
	must.Do(t, plain.cmd.Process.Signal(os.Interrupt))
	awaitLog(t, plain.process, "stopping")
	ready(plain.address).expect(t, exitFailed, "not ready")
	must.Do(t, conn.Close())
	if code := plain.wait(t); code != exitDone {
		t.Errorf("want a clean end, got %d: %s", code, plain.stderr.String())
	}
	// Elsewhere than on this machine a certificate is looked at.
	seqledger(t, "status", "--ready", "--server",
		"https://"+encrypted.address).expect(t, exitFailed, "not signed by a trusted authority")
}

// TestUnit asks systemd whether it understands the unit.
func TestUnit(t *testing.T) {
	t.Parallel()
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	unit := strings.ReplaceAll(readOperate(t, "seqledger.service"), "/usr/local/bin/seqledger", binary)
	path := filepath.Join(t.TempDir(), "seqledger.service")
	must.Do(t, os.WriteFile(path, []byte(unit), 0o600))
	// It reports what it does not understand and continues.
	if out, err := exec.Command(tool, "verify", "--man=no", path).CombinedOutput(); err != nil ||
		strings.Contains(string(out), path) {
		t.Errorf("%v: %s", err, out)
	}
}
