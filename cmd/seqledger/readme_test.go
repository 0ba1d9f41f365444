package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// readmeScripts returns what a section of the README has a user type into a shell,
// a script for each block.
func readmeScripts(t *testing.T, section string) []string {
	t.Helper()
	content, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(content), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("the README has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := regexp.MustCompile("(?m)^```\n((?:.*\n)*?)```$").FindAllStringSubmatch(text, -1)
	blocks = append(blocks, regexp.MustCompile(`(?m)^\n((?:    .*\n)+)`).FindAllStringSubmatch(text, -1)...)
	var scripts []string
	for _, block := range blocks {
		if regexp.MustCompile(`(?m)^ *(seqledger|curl|printf) `).MatchString(block[1]) {
			scripts = append(scripts, block[1])
		}
	}
	if len(scripts) == 0 {
		t.Fatalf("the section %q has nothing to type", section)
	}
	return scripts
}

// shell runs a script in a directory with the program installed and the server running.
func shell(t *testing.T, dir, address, script string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"), "SEQLEDGER_SERVER="+address)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code says it
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestReadmeStart runs the section Start in a shell, twice. No numbered write may happen twice.
func TestReadmeStart(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	dir := t.TempDir()
	s := serveOn(t, filepath.Join(dir, "seqledger-data"), "127.0.0.1:0")
	online, offline := 0, ""
	for range 2 {
		for _, script := range readmeScripts(t, "Start") {
			if strings.Contains(script, "verify --data") {
				offline = script // with the server stopped
				continue
			}
			script = regexp.MustCompile(`(?m)^go install.*$`).ReplaceAllString(script, "")
			script = strings.ReplaceAll(script, "127.0.0.1:7450", s.address)
			if r := shell(t, dir, s.address, script); r.code != exitDone {
				t.Fatalf("%s\n%v", script, r)
			}
			online++
		}
	}
	if online < 8 || offline == "" {
		t.Errorf("%d blocks were typed, and %q: the test tested too little", online, offline)
	}
	blocks := strings.Count(s.do(t, "list", "blocks", "--scope", "acme/main", "--json").expect(t, exitDone).stdout, "\n")
	found := s.do(t, "watch", "--scope", "acme/main", "--json", "--limit", strconv.Itoa(blocks)).expect(t, exitDone).stdout
	for _, payload := range []string{"c29sZCBvbmU=", "Zmlyc3Q=", "aGVsbG8="} { // sold one, first, hello
		if n := strings.Count(found, payload); n != 1 {
			t.Errorf("%s is in the ledger %d times: %s", payload, n, found)
		}
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	s.wait(t)
	if r := shell(t, dir, s.address, offline); r.code != exitDone || !strings.Contains(r.stdout, "problems       0") {
		t.Errorf("%s\n%v", offline, r)
	}
}

// TestReadmeBackup types the section on backups, and what makes an auth file.
func TestReadmeBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t)
	s.do(t, "write", "--scope", "acme/main", "--client-id", "till-7", "--append", "x").expect(t, exitDone)
	places := strings.NewReplacer("/mnt/backup", dir, "/var/lib", dir)
	served := regexp.MustCompile(`(?m)^ *seqledger serve .*$`)
	typed := 0
	for _, section := range []string{"Backup and restore", "Who may call", "Checking what was committed"} {
		for _, script := range readmeScripts(t, section) {
			if strings.Contains(script, "…") || strings.Contains(script, " ID") {
				continue // a place for what the user has
			}
			script = served.ReplaceAllString(places.Replace(script), "")
			if r := shell(t, dir, s.address, script); r.code != exitDone {
				t.Errorf("%s\n%v", script, r)
			}
			typed++
		}
	}
	if typed < 3 {
		t.Errorf("%d blocks were typed", typed)
	}
	serveOn(t, filepath.Join(dir, "seqledger-new"), "127.0.0.1:0", "--auth", filepath.Join(dir, "auth.yaml"))
}
