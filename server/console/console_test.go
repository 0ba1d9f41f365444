package console

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

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
	page, err := fs.ReadFile(dist, "dist/index.html")
	if err != nil {
		t.Fatal(err)
	}
	if inline := regexp.MustCompile(`<script(?:[^>]*)>[^<]|<style|\son[a-z]+=|\sstyle=`).Find(page); inline != nil {
		t.Errorf("the page has inline code: %s", inline)
	}
	if foreign := regexp.MustCompile(`(?:src|href)="(?:https?:)?//`).Find(page); foreign != nil {
		t.Errorf("the page loads from elsewhere: %s", foreign)
	}
}

// TestAdvice: the console says what a client should do about every refusal that there is.
func TestAdvice(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("src/advice.ts")
	if err != nil {
		t.Fatal(err)
	}
	for number, name := range seqledgerv1.WriteErrorCode_name {
		name = strings.TrimPrefix(name, "WRITE_ERROR_CODE_")
		if number != 0 && !strings.Contains(string(source), "\n  "+name+": \"") {
			t.Errorf("src/advice.ts has nothing about %s", name)
		}
	}
}

// TestRedirect: only a person's browser that asks for / is sent to the console.
func TestRedirect(t *testing.T) {
	t.Parallel()
	h := Redirect(http.NotFoundHandler())
	document := http.Header{"Sec-Fetch-Dest": {"document"}}
	for _, test := range []struct {
		path   string
		header http.Header
		want   int
	}{
		{"/", document, http.StatusSeeOther},
		{"/", nil, http.StatusNotFound},
		{"/", http.Header{"Sec-Fetch-Dest": {"empty"}}, http.StatusNotFound},
		{"/other", document, http.StatusNotFound},
	} {
		if got := get(t, h, test.path, test.header).StatusCode; got != test.want {
			t.Errorf("%s with %v: %d, want %d", test.path, test.header, got, test.want)
		}
	}
}
