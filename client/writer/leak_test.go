package writer_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain fails when a goroutine of the package is left after all tests: every test closes its Client, and Close waits
// for all of them. One that has told its end may still be ending.
func TestMain(m *testing.M) {
	code := m.Run()
	var left []byte
	for began := time.Now(); time.Since(began) < 10*time.Second; <-time.After(time.Millisecond) {
		if left = leftBehind(); left == nil {
			os.Exit(code)
		}
	}
	fmt.Fprintf(os.Stderr, "left behind:\n%s\n", left)
	os.Exit(1)
}

// leftBehind returns the stack of a goroutine of the package, or nil.
func leftBehind() []byte {
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("/client/writer.(*mux)")) ||
			bytes.Contains(stack, []byte("/client/writer.(*Writer)")) {
			return stack
		}
	}
	return nil
}
