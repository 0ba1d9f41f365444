//go:build linux && amd64

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be the command, and the program that it runs.
func TestMain(m *testing.M) {
	switch os.Getenv("NOSYNC_TEST") {
	case "command":
		_ = os.Setenv("NOSYNC_TEST", "program")
		main()
	case "program":
		// The descriptor is no open file, so that only a call that does nothing can succeed.
		if err := unix.Fsync(1 << 20); err != nil {
			os.Exit(2)
		}
		if err := unix.Fdatasync(1 << 20); err != nil {
			os.Exit(3)
		}
		if err := os.WriteFile(os.Args[1], []byte("written"), 0o600); err != nil {
			os.Exit(4)
		}
	default:
		os.Exit(m.Run())
	}
}

// Syncs of the program, and of all its threads, say that they are done; everything else is done.
func TestNosync(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "file")
	command := exec.Command(self, self, path)
	command.Env = append(os.Environ(), "NOSYNC_TEST=command")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "written" {
		t.Errorf("%q, %v", b, err)
	}
	for want, arguments := range map[string][]string{
		"missing": nil, "no such file": {filepath.Join(t.TempDir(), "absent")},
	} {
		command := exec.Command(self, arguments...)
		command.Env = append(os.Environ(), "NOSYNC_TEST=command")
		if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v: %s", arguments, err, out)
		}
	}
}
