package examples_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// binaries is the directory of the programs under test.
var binaries string

// programs are the examples that are in this test binary. It runs one of them when variableProgram names it.
var programs = map[string]func(){"forms": formsMain, "submit": submitMain, "tasks": tasksMain}

const variableProgram = "SEQLEDGER_EXAMPLE"

// TestMain builds the other programs once.
func TestMain(m *testing.M) {
	if program := programs[os.Getenv(variableProgram)]; program != nil {
		program()
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "examples")
	if err == nil {
		binaries = dir
		var out []byte
		if out, err = exec.Command("go", "build", "-ldflags=-w", "-o", dir+"/", "./jobs", "../../../cmd/seqledger").
			CombinedOutput(); err != nil {
			err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// command returns a program with arguments. It runs as a process, so that a test can kill it.
func command(name string, args ...string) *exec.Cmd {
	if programs[name] == nil {
		return exec.Command(filepath.Join(binaries, name), args...)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), variableProgram+"="+name)
	return cmd
}

// loopback matches the address in a program's first line.
var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// process is a running program.
type process struct {
	*testing.T

	cmd     *exec.Cmd
	address string // listening address, from the first line

	mu    sync.Mutex
	lines []string // output after the first line
	grown *sync.Cond
}

// start starts a program and waits for its first line, which ends with its address.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{T: t, cmd: command(name, args...)}
	p.grown = sync.NewCond(&p.mu)
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	must.Do(t, err)
	t.Cleanup(p.kill)
	reader := bufio.NewReader(out)
	first, err := reader.ReadString('\n')
	if err != nil {
		p.kill()
		t.Fatalf("%s said %q (%v): %s", name, first, err, stderr.String())
	}
	p.address = loopback.FindString(first)
	go func() { // ends with the process
		scanner := bufio.NewScanner(reader)
		for scanner.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, scanner.Text())
			p.grown.Broadcast()
			p.mu.Unlock()
		}
	}()
	return p
}

// kill sends SIGKILL and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// output waits for a number of lines and returns all lines so far.
func (p *process) output(least int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.lines) < least {
		p.grown.Wait()
	}
	return slices.Clone(p.lines)
}

// serve starts a ledger in a directory.
func serve(t *testing.T, dir, listen string) *process {
	t.Helper()
	return start(t, "seqledger", "serve", "--json", "--listen", listen, "--data", dir)
}

// answer is a response whose body has been read.
type answer struct {
	status int
	header http.Header
	body   string
}

// field returns a member of a JSON body, by its path of names.
func (a *answer) field(t *testing.T, path ...string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		t.Fatalf("%v: %d %s", err, a.status, a.body)
	}
	for _, name := range path {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	text, _ := value.(string)
	return text
}

// request sends a request; headers alternates names and values.
func request(t *testing.T, method, address, path, body string, headers ...string) *answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
	must.Do(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return new(answer)
	}
	defer response.Body.Close()
	text := must.Get(io.ReadAll(response.Body))(t)
	return &answer{response.StatusCode, response.Header, string(text)}
}

// expect checks the status of an answer.
func (a *answer) expect(t *testing.T, status int) *answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// race calls f from many goroutines at once and returns the answers.
func race(n int, f func(i int) *answer) []*answer {
	answers := make([]*answer, n)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = f(i) })
	}
	group.Wait()
	return answers
}

// producer adds tasks to a ledger.
type producer struct {
	*testing.T

	ledger *process
}

// add runs the program once.
func (p *producer) add(args ...string) (id, status string, code int) {
	cmd := command("tasks", append([]string{"add", "--server", p.ledger.address}, args...)...)
	out, err := cmd.Output()
	switch {
	case cmd.ProcessState == nil:
		p.Error(err)
		return "", "", -1
	case err != nil:
		return "", "", cmd.ProcessState.ExitCode()
	}
	var got struct{ ID, Status string }
	if err := json.Unmarshal(out, &got); err != nil {
		p.Errorf("%v: %s", err, out)
	}
	return got.ID, got.Status, 0
}

// expect adds a task and checks the answer; if wantID is "", any id will do.
func (p *producer) expect(wantStatus, wantID string, args ...string) string {
	p.Helper()
	id, status, code := p.add(args...)
	if code != 0 || status != wantStatus || wantID != "" && id != wantID {
		p.Errorf("%v: %s %s, exit code %d; want %s %s", args, status, id, code, wantStatus, wantID)
	}
	return id
}

func (p *producer) conflict(args ...string) {
	p.Helper()
	if id, status, code := p.add(args...); code != 3 {
		p.Errorf("%v: %s %s, exit code %d; want a conflict", args, status, id, code)
	}
}

// A task is added once per key, however many producers add it at once, and even after the ledger was killed. The key is
// kept for 30 days.
func TestTasks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := &producer{t, serve(t, dir, "127.0.0.1:0")}
	var mu sync.Mutex
	statuses, ids := map[string]int{}, map[string]bool{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			id, status, _ := p.add("--key", "invoice-7", "mail", "hello")
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
			ids[id] = true
		})
	}
	group.Wait()
	if statuses["created"] != 1 || statuses["existing"] != 7 || len(ids) != 1 {
		t.Fatalf("%v, ids %v", statuses, ids)
	}
	p.ledger.kill()
	p.ledger = serve(t, dir, p.ledger.address)
	if id := p.expect("existing", "", "--key", "invoice-7", "mail", "hello"); !ids[id] {
		t.Errorf("after a kill the id is %s, and was %v", id, ids)
	}
	p.conflict("--key", "invoice-7", "mail", "another text")
	text := must.Get(command("seqledger", "key", "list", "--json", "--all", "--scope",
		"tasks",
		"--server", p.ledger.address).Output())(t)
	var listed struct{ CreatedAt, ExpiresAt time.Time }
	line, _, _ := bytes.Cut(text, []byte("\n"))
	if err := json.Unmarshal(line, &listed); err != nil || listed.ExpiresAt.Sub(listed.CreatedAt) != 30*24*time.Hour {
		t.Errorf("a key is known from %v to %v (%v): %s", listed.CreatedAt, listed.ExpiresAt, err, line)
	}
}

// runner accepts jobs behind the example submit.
type runner struct {
	*httptest.Server

	mu    sync.Mutex
	jobs  []string
	enter chan struct{} // receives a value for each job that arrives
	leave chan int      // provides the status for each job, which waits for it
}

func newRunner(t *testing.T) *runner {
	r := &runner{enter: make(chan struct{}, 100), leave: make(chan int, 100)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		job, _ := io.ReadAll(request.Body)
		r.mu.Lock()
		r.jobs = append(r.jobs, string(job))
		name := fmt.Sprint("job-", len(r.jobs))
		r.mu.Unlock()
		r.enter <- struct{}{}
		select {
		case status := <-r.leave:
			w.WriteHeader(status)
			_, _ = io.WriteString(w, name)
		case <-request.Context().Done():
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// ran fails unless the given number of jobs has arrived.
func (r *runner) ran(t *testing.T, want int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.jobs) != want {
		t.Fatalf("the runner got %q, want %d", r.jobs, want)
	}
}

// submission is a ledger, a runner, and a service between them.
type submission struct {
	*testing.T

	ledger  *process
	runner  *runner
	service *process
}

func newSubmission(t *testing.T) *submission {
	s := &submission{T: t, ledger: serve(t, t.TempDir(), "127.0.0.1:0"), runner: newRunner(t)}
	s.service = s.replica("--wait", "60s")
	return s
}

// replica starts another instance of the service.
func (s *submission) replica(args ...string) *process {
	return start(s.T, "submit", append([]string{"--listen", "127.0.0.1:0", "--server", s.ledger.address,
		"--runner", s.runner.URL}, args...)...)
}

const nightly = `"nightly"`

// submit sends a job under the key nightly.
func (s *submission) submit(to *process, body string) *answer {
	return request(s.T, http.MethodPost, to.address, "/jobs", body, "Idempotency-Key", nightly)
}

// A service that is killed while the runner has a job never submits the job again; an operator settles it.
func TestSubmitKilled(t *testing.T) {
	t.Parallel()
	s := newSubmission(t)
	doomed := s.replica("--lease", "1s")
	gone := make(chan error)
	go func() { // received below
		r, err := http.NewRequest(http.MethodPost, "http://"+doomed.address+"/jobs", strings.NewReader("{}"))
		if err == nil {
			r.Header.Set("Idempotency-Key", nightly)
			var response *http.Response
			if response, err = http.DefaultClient.Do(r); err == nil {
				_ = response.Body.Close()
			}
		}
		gone <- err
	}()
	<-s.runner.enter
	doomed.kill()
	if err := <-gone; err == nil {
		t.Error("a service that was killed has answered")
	}
	for range 2 { // the first one waits for the lease
		if a := s.submit(s.service, "{}").expect(t, http.StatusConflict); a.field(t, "state") != "INDETERMINATE" {
			t.Error(a.body)
		}
	}
	s.runner.ran(t, 1)
	resolve := command("seqledger", "key", "resolve", "--server", s.ledger.address,
		"--scope", "submit", "--namespace", "jobs", "--as", "committed", "--response", "job-1", "nightly")
	if out, err := resolve.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if done := s.submit(s.service, "{}").expect(t, http.StatusCreated); done.field(t, "job") != "job-1" {
		t.Error(done.body)
	}
	s.runner.ran(t, 1)
}

// form is a form that was handed out.
type form struct {
	t            *testing.T
	address      string
	key, visitor string
}

// open requests an empty form.
func open(t *testing.T, p *process, headers ...string) *form {
	t.Helper()
	a := request(t, http.MethodGet, p.address, "/intake/contact", "", headers...).expect(t, http.StatusOK)
	return &form{t, p.address, a.field(t, "key"), a.field(t, "visitor")}
}

// send sends the form to an intake, with its secret if it has one, and as a user unless user is "".
func (f *form) send(name, user, body string) *answer {
	f.t.Helper()
	headers := []string{"Idempotency-Key", `"` + f.key + `"`, "Content-Type", "application/x-www-form-urlencoded"}
	if f.visitor != "" {
		headers = append(headers, headerVisitor, f.visitor)
	}
	if user != "" {
		headers = append(headers, "Authorization", "Bearer "+user+"-secret")
	}
	return request(f.t, http.MethodPost, f.address, "/intake/"+name, body, headers...)
}

// id returns the submission id in an answer, and checks whether the answer is a replay.
func (f *form) id(a *answer, replayed bool) string {
	f.t.Helper()
	a.expect(f.t, http.StatusCreated)
	if got := a.header.Get("Idempotent-Replayed"); got != fmt.Sprint(replayed) {
		f.t.Errorf("replayed %s, want %v", got, replayed)
	}
	return a.field(f.t, "submission")
}

// took fails unless the program has printed the given number of forms.
func (p *process) took(want int) {
	p.Helper()
	open(p.T, p).send("end", "", "x=y").expect(p.T, http.StatusCreated) // is printed after all others
	for least := 1; ; least++ {
		lines := p.output(least)
		if !strings.Contains(lines[len(lines)-1], " end: ") {
			continue
		}
		if len(lines)-1 != want {
			p.Errorf("%d forms were taken, want %d: %q", len(lines)-1, want, lines)
		}
		return
	}
}

func startForms(t *testing.T) *process {
	return start(t, "forms", "--listen", "127.0.0.1:0", "--server", serve(t, t.TempDir(), "127.0.0.1:0").address)
}

// A form is accepted once per intake and party, and a visitor who signs in stays the same party.
func TestForms(t *testing.T) {
	t.Parallel()
	p := startForms(t)
	alice := open(t, p, "Authorization", "Bearer alice-secret")
	first := alice.id(alice.send("contact", "alice", "name=Ann"), false)
	check.Equal(t, alice.id(alice.send("contact", "alice", "name=Ann"), true), first, "submission %s")
	alice.id(alice.send("orders", "alice", "name=Bo"), false)
	alice.send("contact", "", "name=Ann").expect(t, http.StatusBadRequest)        // without a secret
	alice.send("contact", "mallory", "name=Ann").expect(t, http.StatusBadRequest) // without a valid credential

	f := open(t, p)
	// All at once: the visitor's request, and retries by the page, which has signed in meanwhile.
	answers := race(8, func(i int) *answer { return f.send("contact", []string{"", "alice"}[i%2], "name=Ann") })
	for _, a := range answers {
		a.expect(t, http.StatusCreated)
		check.Equal(t, a.field(t, "submission"), answers[0].field(t, "submission"), "submission %s")
	}
	f.id(f.send("contact", "bob", "name=Bo"), false) // the secret is of no use to another user
	p.took(4)
}
