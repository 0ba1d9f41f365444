package writer_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// TestMain fails when a goroutine of the package is left after all tests:
// every test closes its Client, and Close waits for all of them.
func TestMain(m *testing.M) {
	code := m.Run()
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("/client/writer.(*mux)")) ||
			bytes.Contains(stack, []byte("/client/writer.(*Writer)")) {
			fmt.Fprintf(os.Stderr, "left behind:\n%s\n", stack)
			code = 1
		}
	}
	os.Exit(code)
}
