package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// In each test one tenant does what it should not, and another one must not notice.

// tenantKeys are a tenant of good manners and a bad one, each in an organization of its own.
var tenantKeys = map[string]string{
	"good":   `role: writer, scopes: ["good/*"], client_ids: ["*"]`,
	"bad":    `role: writer, scopes: ["bad/*"], client_ids: ["*"]`,
	"reader": `role: reader, scopes: ["bad/*"]`,
}

func tenants(t *testing.T, o server.Options) *guarded { return guard(t, o, tenantKeys) }

func scopeIn(organization string) *seqledgerv1.Scope {
	return &seqledgerv1.Scope{Organization: organization, Vault: "main"}
}

func writeIn(organization, client string, sequence uint64, ops ...*seqledgerv1.Operation) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{Scope: scopeIn(organization), ClientId: client, Sequence: sequence,
		Operations: ops}
}

// mustServe checks that the good tenant writes, little and much, streams and reads.
func (g *guarded) mustServe(t *testing.T, client string) {
	t.Helper()
	l, _ := g.as("good")
	for i, size := range []int{5, 100 << 10} {
		must.Do(t, check.Err(l.Write(within(t),
			connect.NewRequest(writeIn("good", client, uint64(i+1),
				setOp("k", strings.Repeat("v", size)))))), "the other tenant's write of %d bytes", size)
	}
	stream := l.WriteStream(within(t))
	must.Do(t, stream.Send(frameOf(writeIn("good", client, 3, appendOp(strings.Repeat("x", 10<<10))))),
		"the other tenant's stream")
	if r, err := stream.Receive(); err != nil || r.Results[0].GetReceipt() == nil {
		t.Fatal("the other tenant's stream:", r, err)
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	if _, err := l.GetEntity(within(t),
		connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scopeIn("good"), Key: "k"})); err != nil {
		t.Fatal("the other tenant's read:", err)
	}
}

// observe returns a metric.
func (g *guarded) observe(t *testing.T, name string) float64 {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(within(t), http.MethodGet, g.url+"/metrics", http.NoBody))(t)
	request.Header.Set("Authorization", "Bearer "+g.keys["prometheus"])
	_, _, text := g.do(t, request)
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			v := must.Get(strconv.ParseFloat(strings.TrimSpace(value), 64))(t)
			return v
		}
	}
	t.Fatal("there is no metric", name)
	return 0
}

func (g *guarded) awaitObserved(t *testing.T, name string, enough func(float64) bool) {
	t.Helper()
	last := 0.0
	for ctx := within(t); ctx.Err() == nil; {
		if last = g.observe(t, name); enough(last) {
			return
		}
	}
	t.Fatalf("%s stays %g", name, last)
}

// Bodies that are announced and do not come hold what has come of them, and nothing of what others need.
func TestAnnouncedBodiesHoldNothing(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{})
	var connections []net.Conn
	head := func(id, path, kind, more string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"%s\r\n%s\r\n",
			path, g.keys[id], kind, more)
	}
	stream := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s\r\n%s",
		seqledgerv1connect.LedgerServiceWriteStreamProcedure, g.keys["bad"], prototest.Upgrade,
		prototest.FrameHeader(prototest.FrameBinary, 5+6<<20)) + "\x00\x00\x60\x00\x00" + strings.Repeat("x", 5<<10)
	const length = "Content-Length: 6291456\r\n"
	for range 30 {
		connections = append(connections,
			g.connect(t, head("bad", seqledgerv1connect.LedgerServiceWriteProcedure,
				"application/proto", length)+strings.Repeat("x", 5<<10)),
			g.connect(t, stream))
	}
	defer closeAll(connections)
	g.awaitObserved(t, "seqledger_arriving_bytes", func(v float64) bool { return v >= 60*3*(5<<10) && v < 2<<20 })
	g.mustServe(t, "a")
	// A role that may not write is refused before a body is looked at.
	reader := g.connect(t, head("reader", seqledgerv1connect.LedgerServiceWriteProcedure, "application/proto", length)+
		"x")
	check.Contains(t, status(reader), " 403 ", "a reader announces a write")
}

// A tenant that fills its share of the memory for messages is refused, and no other tenant.
func TestMessageBytesAreShared(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{})
	half := fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/proto\r\n"+
			"Content-Length: 6291456\r\n\r\n%s",
		seqledgerv1connect.LedgerServiceWriteProcedure, g.keys["bad"], strings.Repeat("x", 1<<20))
	var connections []net.Conn
	for range 20 {
		connections = append(connections, g.connect(t, half))
	}
	defer closeAll(connections)
	g.awaitObserved(t, "seqledger_arriving_bytes", func(v float64) bool { return v > 28<<20 && v <= 32<<20 })
	bad, _ := g.as("bad")
	_, err := bad.Write(within(t), connect.NewRequest(writeIn("bad", "c", 1, appendOp(strings.Repeat("x", 1<<20)))))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	g.mustServe(t, "a")
}

// Unread pages count against the share of their caller, and do not block other reads.
func TestUnreadPagesKeepNoPlace(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{})
	bad, _ := g.as("bad")
	for i := range uint64(4) {
		must.Get(bad.Write(within(t),
			connect.NewRequest(writeIn("bad", "filler", i+1,
				setOp(fmt.Sprint("k", i), incompressible(600<<10))))))(t)
	}
	lone, disconnect := smallWindow()
	defer disconnect()
	lone.Transport = withBearer{g.keys["reader"], lone.Transport}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	page := must.Get(proto.Marshal(&seqledgerv1.ListEntitiesRequest{Scope: scopeIn("bad"), PageSize: 1000}))(t)
	refused := make(chan int, 64)
	for range 64 {
		go func() { // ends with ctx, or with the refusal
			url := g.url + seqledgerv1connect.LedgerServiceListEntitiesProcedure
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(page))
			if err != nil {
				return
			}
			request.Header.Set("Content-Type", "application/proto")
			request.Header.Set("Accept-Encoding",
				"identity") // compressing the pages would take most of the time
			if answer, err := lone.Do(request); err == nil &&
				answer.StatusCode != http.StatusOK { // the others are not read
				refused <- answer.StatusCode
			}
		}()
	}
	for range 64 - 8 { // of 2.4 MiB each six or seven fit
		check.Equal(t, <-refused, http.StatusTooManyRequests, "refused with: %v")
	}
	g.awaitObserved(t, "seqledger_answer_bytes", func(v float64) bool { return v > 16<<20 && v <= 32<<20 })
	g.awaitObserved(t, "seqledger_reads_at_work", func(v float64) bool { return v == 0 })
	g.mustServe(t, "a")
	l, _ := g.as("reader")
	if _, err := l.GetEntity(within(t),
		connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scopeIn("bad"), Key: "none"})); connect.CodeOf(
		err) != connect.CodeNotFound {
		t.Error("a small read of the same credential:", err)
	}
}

// Connections are shared: a credential keeps no more than its part of them.
func TestConnectionsAreShared(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{MaxConnections: 40})
	text := fmt.Sprintf(
		"GET %s?encoding=json&message=%%7B%%7D&connect=v1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+
			"%s\r\n\r\n",
		seqledgerv1connect.AdminServiceGetStatusProcedure, g.keys["bad"])
	var connections []net.Conn
	for range 10 {
		c := g.connect(t, text)
		must.Contains(t, status(c), " 200 ", "within the share")
		connections = append(connections, c)
	}
	defer closeAll(connections)
	refused := g.connect(t, text)
	answer, err := io.ReadAll(refused)
	if err != nil || !strings.Contains(string(answer), " 429 ") ||
		!strings.Contains(string(answer), "Connection: close") {
		t.Errorf("beyond it: %q, %v", answer, err)
	}
	g.mustServe(t, "a")
}

// Only admins on every scope see the parts of a status that do not concern the caller itself.
func TestStatusTellsNothingOfOthers(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{})
	g.mustServe(t, "a")
	for _, id := range []string{"bad", "reader", "prometheus", "foreman"} {
		_, admin := g.as(id)
		answer := must.Get(admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
		s := answer.Msg.Status
		if s.Version == "" || s.LedgerId == "" || s.LedgerTime == nil || s.Node.GetTime() == nil ||
			s.Caller.GetActor() != "client:"+id ||
			len(s.Caller.Scopes) == 0 || s.Caller.Role == "" {
			t.Errorf("%s is told too little: %v", id, s)
		}
		if s.Index != 0 || s.Digest != "" || s.Streams != 0 || s.Config != nil || s.Node.CommandsCommitted != 0 ||
			s.Node.StateBytes != 0 || s.Node.DiskFreeBytes != 0 || s.Node.StartedAt != nil || s.Node.LogBytes != 0 {
			t.Errorf("%s is told of others: %v", id, s)
		}
	}
	_, admin := g.as("operations")
	answer, err := admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{}))
	if s := answer.Msg.Status; err != nil || s.Index == 0 || s.Digest == "" || s.Streams != 1 ||
		s.Node.CommandsCommitted == 0 {
		t.Error("an admin on every scope:", s, err)
	}
	_, admin = g.as("good")
	if answer, err = admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{})); err != nil ||
		answer.Msg.Status.Caller.StoredBytes < 110<<10 {
		t.Error("a tenant must see what it has stored:", answer, err)
	}
}

// A read that waited is not answered when its credential has ended meanwhile.
func TestReadThatWaitedIsAuthorizedAgain(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{})
	g.mustServe(t, "a")
	var releases []func()
	for range max(1, runtime.GOMAXPROCS(0)/2) { // as many views as there may be
		releases = append(releases, g.stall(t))
	}
	l, _ := g.as("good")
	answered := make(chan error, 1)
	go func() { // ends with the answer; received below
		_, err := l.GetEntity(within(t), connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scopeIn("good"),
			Key: "k"}))
		answered <- err
	}()
	// Until it waits. The metrics would need a view, too.
	for ctx := within(t); g.server.ReadsAtWork() != 1 && ctx.Err() == nil; {
		runtime.Gosched()
	}
	delete(g.entries, "good")
	g.reload(t)
	for _, release := range releases {
		release()
	}
	check.Equal(t, connect.CodeOf(<-answered), connect.CodeUnauthenticated, "the read of a key that was revoked: %v")
}
