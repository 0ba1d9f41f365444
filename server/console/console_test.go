package console

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func get(t *testing.T, h http.Handler, path string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// TestFiles: every file is served under the policy, and what the page names is there.
func TestFiles(t *testing.T) {
	t.Parallel()
	for path, contentType := range map[string]string{
		"": "text/html", "console.js": "text/javascript", "console.css": "text/css",
	} {
		answer := get(t, Handler(), Path+path, nil)
		if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), contentType) {
			t.Errorf("%s: %s, %s", path, answer.Status, answer.Header.Get("Content-Type"))
		}
		if got := answer.Header.Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none'; ") ||
			strings.Contains(got, "unsafe") {
			t.Errorf("%s: the policy is %q", path, got)
		}
	}
	if answer := get(t, Handler(), Path+"nothing.js", nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a file that is not there: %s", answer.Status)
	}
}

// TestNothingInline: the policy would keep inline code from running.
func TestNothingInline(t *testing.T) {
	t.Parallel()
	page := must.Get(fs.ReadFile(dist, "dist/index.html"))(t)
	if inline := regexp.MustCompile(`<script(?:[^>]*)>[^<]|<style|\son[a-z]+=|\sstyle=`).Find(page); inline != nil {
		t.Errorf("the page has inline code: %s", inline)
	}
	if foreign := regexp.MustCompile(`(?:src|href)="(?:https?:)?//`).Find(page); foreign != nil {
		t.Errorf("the page loads from elsewhere: %s", foreign)
	}
}

// TestAdvice: the console says about every refusal what docs/clients.md says, and that says something about each.
func TestAdvice(t *testing.T) {
	t.Parallel()
	source := must.Get(os.ReadFile("src/advice.ts"))(t)
	shown := map[string][2]string{}
	entry := regexp.MustCompile(`(?m)^  ([A-Z_]+): \["([^"]*)", "([^"]*)"\],$`)
	for _, m := range entry.FindAllStringSubmatch(string(source), -1) {
		shown[m[1]] = [2]string{m[2], m[3]}
	}
	documented := documentedRefusals(t)
	for number, name := range seqledgerv1.WriteErrorCode_name {
		name = strings.TrimPrefix(name, "WRITE_ERROR_CODE_")
		if number == 0 {
			continue
		}
		if documented[name] == [2]string{} || shown[name] != documented[name] {
			t.Errorf("%s: the console says %q, docs/clients.md %q", name, shown[name], documented[name])
		}
	}
	if len(shown) != len(documented) || len(shown) != len(seqledgerv1.WriteErrorCode_name)-1 {
		t.Errorf("the console has %d refusals, docs/clients.md %d, the API %d", len(shown), len(documented),
			len(seqledgerv1.WriteErrorCode_name)-1)
	}
}

// documentedRefusals returns what docs/clients.md says that refusals mean and that clients should do, as plain text.
func documentedRefusals(t *testing.T) map[string][2]string {
	t.Helper()
	page := must.Get(os.ReadFile("../../docs/clients.md"))(t)
	_, table, found := strings.Cut(string(page), "| code | Connect code | what it means | what to do |\n")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("docs/clients.md has no table of errors")
	}
	said := map[string][2]string{}
	for line := range strings.Lines(strings.ReplaceAll(table, "`", "")) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(line), " |"), " | ")
		if len(cells) != 4 {
			continue // the line below the head
		}
		for code := range strings.SplitSeq(strings.TrimPrefix(cells[0], "| "), ", ") {
			said[code] = [2]string{cells[2], cells[3]}
		}
	}
	return said
}

// TestRedirect checks that everybody who asks for / is led to the console, and that other paths are not.
func TestRedirect(t *testing.T) {
	t.Parallel()
	h := Redirect(http.NotFoundHandler())
	for _, header := range []http.Header{nil, {"Accept": {"*/*"}}, {"Sec-Fetch-Dest": {"document"}}} {
		answer := get(t, h, "/", header)
		if answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != Path {
			t.Errorf("/ with %v: %d to %q", header, answer.StatusCode, answer.Header.Get("Location"))
		}
		check.Equal(t, get(t, h, "/other", header).StatusCode, http.StatusNotFound, "/other with %v: %d", header)
	}
}
