package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The example in the documentation is a valid configuration.
func TestTheExample(t *testing.T) {
	t.Parallel()
	c := must.Get(ReadConfig(filepath.Join("..", "..", "..", "docs", "examples", "guard.yaml"), Times{}))(t)
	charge := c.Tools["create_charge"]
	if c.Server != "payments" || charge == nil || charge.Window != time.Hour || charge.IfUnknown == "" ||
		strings.Join(charge.Arguments, " ") != "/order /customer /amount/currency /amount/value" {
		t.Errorf("%+v, %+v", c, charge)
	}
	if mail := c.Tools["send_mail"]; mail == nil || !mail.KeyRequired || mail.Errors != UnknownErrors ||
		mail.Timeout != time.Minute || mail.KeyWindow != 72*time.Hour || mail.ForgetAfter != idempotency.Never {
		t.Errorf("%+v", mail)
	}
}

// Absent settings have their defaults.
func TestDefaults(t *testing.T) {
	t.Parallel()
	c := must.Get(parseConfig("f", []byte("server: s\ntools:\n  pay:\n"), Times{}))(t)
	if got, want := *c.Tools["pay"], (Tool{Window: DefaultWindow, KeyWindow: DefaultKeyWindow,
		Errors: StoreErrors}); got.Window != want.Window || got.KeyWindow != want.KeyWindow ||
		got.Errors != want.Errors ||
		got.Arguments != nil || got.KeyRequired || got.Timeout != 0 {
		t.Errorf("%+v", got)
	}
	if c.Wait != idempotency.DefaultWait || c.Lease != idempotency.DefaultLease {
		t.Errorf("%+v", c)
	}
}

// Each mistake is reported with its line.
func TestMistakes(t *testing.T) {
	t.Parallel()
	const head = "server: s\n"
	for content, want := range map[string]string{
		"":                                       "f: the file is empty",
		"- a":                                    "f:1: must be a mapping",
		"a: [":                                   "f: yaml: line 1",
		"tools: {pay: {}}":                       "f:1: server is required",
		head:                                     "f:1: tools must name at least one tool",
		head + "tools: {}":                       "f:2: tools must name at least one tool",
		head + "tools: [a]":                      "f:2: tools must name at least one tool",
		head + "tool: {a: {}}":                   "f:2: tool is an unknown field; there are server, wait",
		head + "tools: {a: 5}":                   "f:2: tools.a must be a mapping",
		head + "tools: {é: {}}":                  "f:2: tools.é makes the namespace",
		head + "tools:\n  a: {windw: 1h}":        "f:3: tools.a.windw is an unknown field",
		head + "tools:\n  a: {window: 1y}":       "f:3: tools.a.window must be a duration",
		head + "tools:\n  a: {window: 9000h}":    "f:3: tools.a.window must be a duration",
		head + "tools:\n  a: {key-window: 0s}":   "f:3: tools.a.key-window must be a duration",
		head + "tools:\n  a: {timeout: 1ms}":     "f:3: tools.a.timeout must be a duration",
		head + "tools:\n  a: {key: maybe}":       "f:3: tools.a.key must be one of optional, required",
		head + "tools:\n  a: {errors: ignore}":   "f:3: tools.a.errors must be one of store, release, unknown",
		head + "tools:\n  a: {arguments: order}": "f:3: tools.a.arguments must be a list",
		head + "tools:\n  a: {arguments: []}":    "f:3: tools.a.arguments must be a list of arguments",
		head + "tools:\n  a:\n    arguments:\n    - /a~2":          "tools.a.arguments \"/a~2\" is neither",
		head + "tools:\n  a: {arguments: [b, /b]}":                 "f:3: tools.a.arguments \"/b\" is there twice",
		head + "tools:\n  a: {}\n  a: {}":                          "f:4: tools.a was given at line 3 already",
		head + "tools: {a: &x {}, b: *x}":                          "f:2: anchors and aliases",
		head + "lease: 1ms\nwait: 61s\ntools: {a: {}}":             "f:2: lease must be a duration",
		head + "wait: 61s\ntools: {a: {}}":                         "f:2: wait must be a duration",
		head + "tools: {a: {}}\n---\nb: 1":                         "f: the file must be one YAML document",
		"server: " + strings.Repeat("s", 200) + "\ntools: {a: {}}": "f:2: tools.a makes the namespace",
	} {
		c, err := parseConfig("f", []byte(content), Times{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v (%+v)", content, want, err, c)
		}
	}
	_, err := parseConfig("f", []byte("tools:\n  a: {windw: 1h}\n  b: {key: x}"), Times{})
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want three mistakes at once, got %v", err)
	}
	_, err = parseConfig("f", []byte(head+"tools:\n  a: {forget-after: 1h}"), Times{})
	if err == nil || !strings.Contains(err.Error(), "f:3: tools.a.forget-after must be never, or a duration") {
		t.Errorf("a key that is forgotten before its result: %v", err)
	}
	bounded := Times{MaxTTL: 48 * time.Hour}
	_, err = parseConfig("f", []byte(head+"tools:\n  a: {key-window: 72h, forget-after: never}"), bounded)
	if err == nil || strings.Count(err.Error(), "from 1s to 48h0m0s") != 1 ||
		!strings.Contains(err.Error(), "f:3: tools.a.forget-after must be a duration") {
		t.Errorf("longer than its store keeps a key: %v", err)
	}
	path := filepath.Join(t.TempDir(), "large")
	must.Do(t, os.WriteFile(path, make([]byte, maxConfig+1), 0o600))
	if _, err := ReadConfig(path, Times{}); err == nil || !strings.Contains(err.Error(), "1 MiB") {
		t.Error(err)
	}
}
