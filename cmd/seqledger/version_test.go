package main

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// TestVersion: every place has the version that the linker was given.
func TestVersion(t *testing.T) {
	t.Parallel()
	const want = "seqledger v9.8.7-dirty 0123abc (modified) go1."
	for _, args := range []string{"version", "--version"} {
		if r := seqledger(t, args).expect(t, exitDone); !strings.HasPrefix(r.stdout, want) {
			t.Errorf("%s: want %q, got %v", args, want, r)
		}
	}
	if v := seqledger(t, "version", "--json").expect(t, exitDone).field(t, "version"); v != "v9.8.7-dirty" {
		t.Errorf("--json says %v", v)
	}
	serve(t).do(t, "status").expect(t, exitDone, "v9.8.7-dirty")
}

// TestVersionOf: without the linker's flags, the go command knows the version.
func TestVersionOf(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{
		GoVersion: "go1.26.0", Main: debug.Module{Version: "v0.1.0+dirty"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	for _, test := range []struct{ version, revision, want string }{
		{"", "", "v0.1.0+dirty 0123abc (modified) go1.26.0"},
		{"v0.2.0", "4567def", "v0.2.0 4567def go1.26.0"},
	} {
		check.Equal(t, versionOf(info, test.version, test.revision).String(), test.want)
	}
}
