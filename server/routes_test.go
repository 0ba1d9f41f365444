package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// innerWords matches messages that libraries address to Go programmers.
var innerWords = regexp.MustCompile(
	`strconv|Go value|proto:|unexpected token|google\.protobuf|invalid value for|2006|EOF|oneof|syntax error|illegal ` +
		`base64|\x{fffd}|\x{a0}`)

// Requests that Connect would refuse with a message about Go are refused earlier.
func TestProtocolErrorsAreInWordsOfTheAPI(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	const get = "http://localhost/seqledger.v1.LedgerService/GetEntity"
	for _, test := range []struct{ method, url, timeout, want string }{
		{http.MethodPost, get, "abc", "Connect-Timeout-Ms must be a whole number"},
		{http.MethodPost, get, "99999999999", "at most 10 digits"},
		{http.MethodPost, get, "-1", "Connect-Timeout-Ms"},
		{http.MethodGet, get + "?encoding=json&base64=1&message=!!&connect=v1", "", "message must be base64url"},
	} {
		r := httptest.NewRequest(test.method, test.url, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		if test.timeout != "" {
			r.Header.Set("Connect-Timeout-Ms", test.timeout)
		}
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), test.want) ||
			innerWords.MatchString(w.Body.String()) {
			t.Errorf("%v: %d %s", test, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodPost, get, strings.NewReader(`{"scope":{"organization":"a"},"key":"k"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Connect-Timeout-Ms", "60000")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `entity \"k\" of a: not found`) {
		t.Error("a good one:", w.Code, w.Body)
	}
}

// The refusal of a method is JSON, whatever the method.
func TestRefusedMethod(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	for _, method := range []string{http.MethodDelete, `A"B\C`} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/seqledger.v1.AdminService/Backup", nil)
		r.Method = method
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		var said struct{ Code, Message string }
		err := json.Unmarshal(w.Body.Bytes(), &said)
		if err != nil || w.Code != http.StatusMethodNotAllowed || said.Code != "unimplemented" ||
			said.Message != "the method "+method+" is not allowed here; send POST" {
			t.Errorf("%s: %d %s, %v", method, w.Code, w.Body, err)
		}
	}
}
