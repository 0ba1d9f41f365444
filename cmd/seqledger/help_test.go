package main

import "testing"

// TestHelpCommand: help COMMAND shows what COMMAND --help shows.
func TestHelpCommand(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{}, {"write"}, {"auth", "check"}, {"help"}} {
		want := seqledger(t, append(command, "--help")...).expect(t, exitDone)
		if got := seqledger(t, append([]string{"help"}, command...)...); got != want {
			t.Errorf("help %v: want %v\ngot %v", command, want, got)
		}
	}
	seqledger(t, "help", "fly").expect(t, exitUsage, `there is no command "fly"`, "seqledger help --help")
	seqledger(t, "help", "auth", "fly").expect(t, exitUsage, `there is no command "auth fly"`)
}
