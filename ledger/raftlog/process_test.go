package raftlog

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

const childDirectory = "RAFTLOG_TEST_DIRECTORY"

// TestMain runs the writer that TestKilledProcess kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childDirectory); dir != "" {
		fmt.Println(writeForEver(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForEver proposes from several goroutines and prints the acknowledged entries.
func writeForEver(dir string) error {
	l, err := Open(options(dir, &recorder{}))
	if err != nil {
		return err
	}
	if err := l.Ready(context.Background()); err != nil {
		return err
	}
	var out sync.Mutex
	failed := make(chan error)
	for writer := range 8 {
		go func() { // ends with the process
			for i := 0; ; i++ {
				text := fmt.Sprintf("%d.%d.%d.%s", os.Getpid(), writer, i, strings.Repeat("x", i%500))
				if _, err := l.ProposeIn(l.Role().Term, []byte(text)).Wait(); err != nil {
					failed <- err
				}
				out.Lock()
				fmt.Println(text)
				out.Unlock()
			}
		}()
	}
	return <-failed
}

// TestKilledProcess kills a writer with SIGKILL again and again, and expects to find every acknowledged entry.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	closeLog(t, created(t, dir, &recorder{}))
	acknowledged := map[string]bool{}
	lives := 8
	if testing.Short() {
		lives = 3
	}
	for life := range lives {
		child := exec.Command(os.Args[0]) //nolint:gosec // It is this test.
		child.Env = append(os.Environ(), childDirectory+"="+dir)
		out := must.Get(child.StdoutPipe())(t)
		must.Do(t, child.Start())
		lines := bufio.NewScanner(out)
		note := func() {
			if !strings.HasPrefix(lines.Text(), fmt.Sprint(child.Process.Pid, ".")) {
				t.Fatalf("the writer failed: %s", lines.Text())
			}
			acknowledged[lines.Text()] = true
		}
		for n := 0; n < 200+life*61 && lines.Scan(); n++ {
			note()
		}
		must.Do(t, child.Process.Kill())
		for lines.Scan() { // drains the pipe; the last line may be cut off
			if strings.Count(lines.Text(), ".") == 3 {
				acknowledged[lines.Text()] = true
			}
		}
		_ = child.Wait()
	}
	m := &recorder{}
	open(t, options(dir, m))
	found := map[string]bool{}
	for _, text := range m.texts() {
		if found[text] {
			t.Errorf("%q was applied twice", text)
		}
		found[text] = true
	}
	for text := range acknowledged {
		if !found[text] {
			t.Errorf("%q was acknowledged and is gone", text)
		}
	}
	if len(acknowledged) < lives*200 {
		t.Errorf("%d were acknowledged, want %d", len(acknowledged), lives*200)
	}
}
