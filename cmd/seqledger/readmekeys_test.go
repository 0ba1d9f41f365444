package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestReadmeKeys runs the example of the README for HTTP services: the service, the gateway before it, and the request,
// from many shells at once, before the gateway listens, and after it was killed. The service starts one job.
func TestReadmeKeys(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	scripts := documentScripts(t, "README.md", "I have an HTTP service")
	lines := strings.SplitN(scripts[0], "\n", 3)
	if len(scripts) != 1 || len(lines) != 3 {
		t.Fatalf("the section has another form: %q", scripts)
	}
	dir, service, listen := t.TempDir(), freeAddress(t), freeAddress(t)
	jobs := filepath.Join(dir, "jobs")
	const example = "go run ./client/idempotency/examples/jobs"
	build := exec.Command("go", "build", "-o", jobs, "./client/idempotency/examples/jobs")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	places := strings.NewReplacer("127.0.0.1:8080", service, "127.0.0.1:7480", listen,
		example, jobs+" -listen "+service)
	request := places.Replace(lines[2])
	post := func() string {
		r := shell(t, dir, "", request)
		if r.code != exitDone || !strings.Contains(r.stdout, "202 Accepted") {
			t.Errorf("%s\n%v", request, r)
		}
		return r.stdout
	}
	background(t, dir, places.Replace(lines[0]))
	gateway := func() *process { return background(t, dir, places.Replace(lines[1]), "SEQLEDGER_LISTEN="+listen) }

	var shells sync.WaitGroup
	for range 3 { // which try again until the gateway listens
		shells.Go(func() { post() })
	}
	first := gateway()
	for range 3 {
		shells.Go(func() { post() })
	}
	shells.Wait()
	first.kill()
	gateway()
	again := post()
	check.Contains(t, again, "Idempotent-Replayed: true", "after a kill of the gateway")
	other := regexp.MustCompile(`"report":"[^"]*"`).ReplaceAllString(request, `"report":"another"`)
	if r := shell(t, dir, "", other); other == request || !strings.Contains(r.stdout, "key-reused") {
		t.Errorf("another report under the key: %v", r)
	}

	answer := must.Get(http.Get("http://" + service + "/api/jobs"))(t)
	defer answer.Body.Close()
	var started struct{ Jobs []struct{ ID string } }
	if text, err := io.ReadAll(answer.Body); err != nil || json.Unmarshal(text, &started) != nil ||
		len(started.Jobs) != 1 || !strings.Contains(again, started.Jobs[0].ID) {
		t.Errorf("the service started %s, %v; the last response is %s", text, err, again)
	}
}

// background starts a line of a document in a directory. The process ends with the test, or its kill.
func background(t *testing.T, dir, line string, environment ...string) *process {
	t.Helper()
	cmd := exec.Command("sh", "-c", "exec "+line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, environment...)
	return launch(t, cmd)
}
