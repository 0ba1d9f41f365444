package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestSettingsAreAllOfTheAPI: a field that is added to the configuration is one that set, get and list know, in
// the order of the API.
func TestSettingsAreAllOfTheAPI(t *testing.T) {
	t.Parallel()
	fields := new(seqledgerv1.Config).ProtoReflect().Descriptor().Fields()
	var want, got []string
	for i := range fields.Len() {
		want = append(want, string(fields.Get(i).Name()))
	}
	for _, s := range settings {
		got = append(got, s.name())
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("want the settings %v, got %v", want, got)
	}
}

// TestConfigSet changes every setting by itself, and finds what was set and nothing else changed: by get, by list,
// and in a form that set takes again.
func TestConfigSet(t *testing.T) {
	t.Parallel()
	s := serve(t)
	list := func() map[string]string {
		t.Helper()
		values := make(map[string]string)
		for line := range strings.Lines(s.do(t, "config", "list").expect(t, exitDone).stdout) {
			words := strings.Fields(line)
			if len(words) != 2 {
				t.Fatalf("want a name and a value, got %q", line)
			}
			values[words[0]] = words[1]
		}
		return values
	}
	want := list()
	for name, value := range map[string][2]string{ // what is given, and what is shown
		"eviction_interval": {"77", "77"},
		"client_ttl":        {"48h", "48h0m0s"},
		"eviction_limit":    {"99", "99"},
		"receipt_window":    {"33", "33"},
		"max_streams":       {"18446744073709551615", "18446744073709551615"},
		"retain_blocks":     {"2160h", "2160h0m0s"},
		"retain_bytes":      {"500GiB", "536870912000"},
	} {
		s.do(t, "config", "set", name, value[0]).expect(t, exitDone)
		want[name] = value[1]
		if got := list(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: want %v, got %v", name, want, got)
		}
		if got := s.do(t, "config", "get", strings.ReplaceAll(name, "_", "-")).expect(t, exitDone); strings.TrimSpace(
			got.stdout) != value[1] {
			t.Errorf("%s: want %s alone, got %q", name, value[1], got.stdout)
		}
		s.do(t, "config", "set", name, value[1]).expect(t, exitDone)
	}
	if got := list(); !reflect.DeepEqual(got, want) {
		t.Errorf("want what list shows to be what set takes: %v, got %v", want, got)
	}
	var one settingResult
	answer := s.do(t, "config", "get", "retain_blocks", "--json").expect(t, exitDone)
	if err := json.Unmarshal([]byte(answer.stdout), &one); err != nil || one != (settingResult{
		"retain_blocks", "2160h0m0s",
	}) {
		t.Errorf("want the setting as an object, got %q, %v", answer.stdout, err)
	}
	for _, command := range [][]string{{"list"}, {"set", "receipt_window", "33"}} {
		got := make(map[string]string)
		answer := s.do(t, append(append([]string{"config"}, command...), "--json")...).expect(t, exitDone)
		if err := json.Unmarshal([]byte(answer.stdout), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: want the names and values that set takes, got %q, %v", command[0], answer.stdout, err)
		}
	}
	s.do(t, "config", "set", "retain_blocks", "0s").expect(t, exitDone, "0s")
}

// TestConfigSetRefuses: a value beyond its limits is refused by the command, with the name of the field. There is
// no server that it could have asked.
func TestConfigSetRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range [][3]string{
		{"retain_blocks", "999ms", "retain_blocks: must be at least 1 s"},
		{"retain_blocks", "-1h", "<value> -1h: no number here is negative"},
		{"retain_blocks", "3600", "retain_blocks: must be a duration"},
		{"retain-bytes", "1023KiB", "retain_bytes: must be at least 1048576"},
		{"retain_bytes", "much", "retain_bytes: "},
		{"client_ttl", "0s", "client_ttl: must be at least 1 s"},
		{"receipt_window", "0", "receipt_window: must be 1 to"},
		{"receipt_window", "1.5", "receipt_window: must be a whole number"},
		{"eviction_limit", "100001", "eviction_limit: must be 1 to"},
		{"eviction_interval", "1000001", "eviction_interval: must be 1 to"},
		{"max_streams", "0", "max_streams: must be at least 1"},
		{"retain", "1h", "retain_blocks, retain_bytes"},
	} {
		seqledger(t, "config", "set", test[0], test[1], "--server", "127.0.0.1:1").expect(t, exitUsage, test[2])
	}
	seqledger(t, "config", "get", "retain").expect(t, exitUsage, `unknown setting "retain"`)
	seqledger(t, "config", "set", "retain_blocks").expect(t, exitUsage, "<value>")
}
