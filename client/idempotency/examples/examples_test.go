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
	"github.com/seqledger/seqledger/internal/testkit/freeport"
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

// eventually waits for a condition that other processes make true.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	must.Await(t, holds, what)
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

// The producer chooses the namespace in which a key is unique. Another task under the same key is a conflict; it never
// returns the wrong task. A worker gets the tasks of its queue in order.
func TestTaskScopes(t *testing.T) {
	t.Parallel()
	p := &producer{t, serve(t, t.TempDir(), "127.0.0.1:0")}
	key, byQueue, slow := []string{"--key", "7"}, []string{"--key", "7", "--unique", "queue"},
		[]string{"--queue", "slow"}
	with := func(lists ...[]string) []string { return slices.Concat(lists...) }
	mail, print := []string{"mail", "hello"}, []string{"print", "hello"}
	// By type: the same key of another type is independent, and one type shares its keys across queues.
	first := p.expect("created", "", with(key, mail)...)
	second := p.expect("created", "", with(key, print)...)
	p.conflict(with(key, slow, mail)...)
	// By queue: another type under the key is a conflict.
	third := p.expect("created", "", with(byQueue, mail)...)
	p.conflict(with(byQueue, print)...)
	elsewhere := p.expect("created", "", with(byQueue, slow, print)...)
	// By a name that the producer chooses; it never equals a type or a queue.
	custom := []string{"--key", "7", "--unique", "mail"}
	fourth := p.expect("created", "", with(custom, mail)...)
	p.expect("existing", fourth, with(custom, mail)...)
	p.expect("existing", elsewhere, with(byQueue, slow, print)...)

	cmd := command("tasks", "work", "--server", p.ledger.address)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.Do(t, err)
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	last := p.expect("created", "", "--key", "last", "mail", "the end") // arrives live
	worked := bufio.NewScanner(out)
	for _, want := range []string{first, second, third, fourth, last} {
		var got struct{ ID string }
		if !worked.Scan() || json.Unmarshal(worked.Bytes(), &got) != nil || got.ID != want {
			t.Fatalf("the worker got %s, want %s", worked.Bytes(), want)
		}
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

// Requests that arrive at any replica while the first one is in flight wait and get its job.
func TestSubmitCoalesces(t *testing.T) {
	t.Parallel()
	s := newSubmission(t)
	impatient := s.replica("--wait", "1ms")
	const callers = 32
	all := make(chan []*answer)
	go func() { // received below
		all <- race(callers, func(int) *answer { return s.submit(s.service, `{"image":"report","n":1}`) })
	}()
	<-s.runner.enter
	eventually(t, "the others to wait", func() bool {
		metrics := request(t, http.MethodGet, s.ledger.address, "/metrics", "").expect(t, http.StatusOK)
		return strings.Contains(metrics.body, fmt.Sprintf("seqledger_keyed_waiters %d\n", callers-1))
	})
	pending := s.submit(impatient, `{"image":"report","n":1}`).expect(t, http.StatusAccepted)
	if pending.field(t, "state") != "PENDING" || pending.header.Get("Retry-After") == "" {
		t.Errorf("%+v", pending)
	}
	look := func() *answer {
		return request(t, http.MethodGet, impatient.address, "/jobs", "", "Idempotency-Key", nightly)
	}
	known := look().expect(t, http.StatusOK)
	check.Equal(t, known.field(t, "state"), "PENDING", "%v: %v", known.body)
	// White space makes another job, too: the bytes are compared.
	for _, other := range []string{`{"image":"another"}`, `{"image": "report","n":1}`} {
		s.submit(impatient, other).expect(t, http.StatusConflict)
	}
	s.runner.leave <- http.StatusOK
	first := 0
	for _, a := range <-all {
		a.expect(t, http.StatusCreated)
		if a.field(t, "job") != "job-1" || a.field(t, "state") != "COMMITTED" {
			t.Error(a.body)
		}
		if !strings.Contains(a.body, `"replayed":true`) {
			first++
		}
	}
	check.Equal(t, first, 1, "%d answers are the first")
	s.runner.ran(t, 1)
	known = look().expect(t, http.StatusOK)
	if known.field(t, "state") != "COMMITTED" || known.field(t, "job") != "job-1" {
		t.Error(known.body)
	}
}

// A refusal is stored. A runner that could not be reached leaves the key free.
func TestSubmitRefusals(t *testing.T) {
	t.Parallel()
	s := newSubmission(t)
	s.runner.leave <- http.StatusBadRequest
	for range 3 {
		refused := s.submit(s.service, "{}").expect(t, http.StatusUnprocessableEntity)
		if refused.field(t, "state") != "REJECTED" || refused.field(t, "reason") != "job-1" {
			t.Error(refused.body)
		}
	}
	s.runner.ran(t, 1)
	refusing := freeport.Unreachable(t)
	unreachable := s.replica("--runner", "http://"+refusing)
	send := func(to *process) *answer {
		return request(t, http.MethodPost, to.address, "/jobs", "{}", "Idempotency-Key", "free")
	}
	for range 2 {
		send(unreachable).expect(t, http.StatusBadGateway)
	}
	request(t, http.MethodGet, s.service.address, "/jobs", "", "Idempotency-Key", "free").expect(t, http.StatusNotFound)
	s.runner.leave <- http.StatusOK
	if done := send(s.service).expect(t, http.StatusCreated); done.field(t, "job") != "job-2" {
		t.Error(done.body)
	}
	for _, key := range []string{"", "a,b", `"`} {
		request(t, http.MethodPost, s.service.address, "/jobs", "{}", "Idempotency-Key", key).
			expect(t, http.StatusBadRequest)
	}
	s.runner.ran(t, 2)
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

// startGateway starts the gateway of the example jobs, in front of a service at an address other than the one in its
// file.
func startGateway(t *testing.T, dir, listen, upstream string) *process {
	t.Helper()
	return start(t, "seqledger", "gateway", "--json", "--config", "jobs/gateway.yaml", "--listen", listen,
		"--upstream", "http://"+upstream, "--data", filepath.Join(dir, "data"), "--journal",
		filepath.Join(dir, "journal"))
}

// A job is started once per key, even if the gateway is killed, and once for each request without a key. Every answer
// has its own request id.
func TestJobs(t *testing.T) {
	t.Parallel()
	jobs, dir := start(t, "jobs", "--listen", "127.0.0.1:0"), t.TempDir()
	gateway := startGateway(t, dir, "127.0.0.1:0", jobs.address)
	send := func(body string, headers ...string) *answer {
		return request(t, http.MethodPost, gateway.address, "/api/jobs", body,
			append(headers, "Content-Type", "application/json", "Authorization", "Bearer demo")...)
	}
	const report, another, spaced = `{"report":"2026-11"}`, `{"report":"2026-12"}`, `{"report": "2026-11"}`
	key := []string{"Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`}
	job, fresh, requests := "", 0, map[string]bool{}
	for _, a := range race(16, func(int) *answer { return send(report, key...) }) {
		a.expect(t, http.StatusAccepted)
		if id := a.field(t, "job", "id"); job == "" {
			job = id
		} else if id != job {
			t.Errorf("job %s and job %s", id, job)
		}
		if a.header.Get("Idempotent-Replayed") == "false" {
			fresh++
		}
		requests[a.field(t, "requestId")] = true
	}
	if fresh != 1 || job == "" || len(requests) != 16 || requests[""] {
		t.Errorf("%d answers are the first, job %q, request ids %v", fresh, job, requests)
	}
	gateway.kill()
	gateway = startGateway(t, dir, gateway.address, jobs.address)
	if a := send(report, key...).expect(t, http.StatusAccepted); a.field(t, "job", "id") != job ||
		a.header.Get("Idempotent-Replayed") != "true" || requests[a.field(t, "requestId")] {
		t.Errorf("after a kill: %+v, want job %s", a, job)
	}
	for _, other := range []string{another, spaced} {
		conflict := send(other, key...).expect(t, http.StatusConflict)
		if conflict.field(t, "code") != "key-reused" || strings.Contains(conflict.body, job) {
			t.Error(conflict.body)
		}
	}
	ids := map[string]bool{job: true}
	for range 2 {
		ids[send(report).expect(t, http.StatusAccepted).field(t, "job", "id")] = true
	}
	listed := request(t, http.MethodGet, jobs.address, "/api/jobs", "").expect(t, http.StatusOK)
	if n := strings.Count(listed.body, `"id"`); n != 3 || len(ids) != 3 {
		t.Errorf("%d jobs, ids %v: %s", n, ids, listed.body)
	}
}
