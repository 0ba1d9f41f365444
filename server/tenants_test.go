package server_test

import (
	"bytes"
	"context"
	"errors"
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

	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// In each test one tenant does what it should not, and another one must not notice. bench abuse measures the same with
// a clock.

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
		if _, err := l.Write(within(t),
			connect.NewRequest(writeIn("good", client, uint64(i+1),
				setOp("k", strings.Repeat("v", size))))); err != nil {
			t.Fatalf("the other tenant's write of %d bytes: %v", size, err)
		}
	}
	stream := l.WriteStream(within(t))
	if err := stream.Send(frameOf(writeIn("good", client, 3, appendOp(strings.Repeat("x", 10<<10))))); err != nil {
		t.Fatal("the other tenant's stream:", err)
	}
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
	request, err := http.NewRequestWithContext(within(t), http.MethodGet, g.url+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+g.keys["prometheus"])
	_, _, text := g.do(t, request)
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
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
	if s := status(reader); !strings.Contains(s, " 403 ") {
		t.Errorf("a reader announces a write: %q", s)
	}
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
		if _, err := bad.Write(within(t),
			connect.NewRequest(writeIn("bad", "filler", i+1,
				setOp(fmt.Sprint("k", i), incompressible(600<<10))))); err != nil {
			t.Fatal(err)
		}
	}
	lone, disconnect := smallWindow()
	defer disconnect()
	lone.Transport = withBearer{g.keys["reader"], lone.Transport}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	page, err := proto.Marshal(&seqledgerv1.ListEntitiesRequest{Scope: scopeIn("bad"), PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
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
		if code := <-refused; code != http.StatusTooManyRequests {
			t.Error("refused with", code)
		}
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

// Idle streams count against the share of the caller that opened them.
func TestIdleStreamsAreShared(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{MaxStreams: 8})
	for _, id := range []string{"bad", "reader"} {
		l, _ := g.as(id)
		for range 2 {
			watch, err := l.Watch(t.Context(), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scopeIn("bad")}))
			if err != nil {
				t.Fatal(err)
			}
			defer watch.Close()
		}
		third, err := l.Watch(t.Context(), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scopeIn("bad")}))
		if err == nil {
			third.Receive()
			err = third.Err()
			_ = third.Close()
		}
		mustSayWhen(t, err)
	}
	g.mustServe(t, "a")
}

// Requests are shared.
func TestRequestsAreShared(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{MaxRequests: 8})
	head := fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/proto\r\n"+
			"Content-Length: 100\r\n\r\n",
		seqledgerv1connect.LedgerServiceWriteProcedure, g.keys["bad"])
	var connections []net.Conn
	for range 2 {
		connections = append(connections, g.connect(t, head))
	}
	defer closeAll(connections)
	g.awaitObserved(t, "seqledger_requests_open", func(v float64) bool { return v == 2 })
	// Whole, because net/http waits for the body of a request before it sends a refusal.
	if s := status(g.connect(t, head+strings.Repeat("x", 100))); !strings.Contains(s, " 429 ") {
		t.Errorf("a third request at once: %q", s)
	}
	g.mustServe(t, "a")
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
		if s := status(c); !strings.Contains(s, " 200 ") {
			t.Fatalf("within the share: %q", s)
		}
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
		answer, err := admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
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
	if err := <-answered; connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("the read of a key that was revoked: %v", err)
	}
}

// What a credential stores is bounded, whether by single writes or on a stream, and what others store is not.
func TestStoredBytesAreBounded(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"small": `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {stored_bytes: 3000}`,
		"good":  tenantKeys["good"],
	})
	l, admin := g.as("small")
	stream := l.WriteStream(within(t))
	committed := 0
	var refused *seqledgerv1.WriteError
	for sequence := uint64(1); refused == nil; sequence++ {
		if err := stream.Send(frameOf(writeIn("bad", "c", sequence, appendOp(strings.Repeat("x", 500))))); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if refused = r.Results[0].GetError(); refused == nil {
			committed++
		}
	}
	if committed != 4 || refused.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL ||
		refused.RetryAfter == nil ||
		!strings.Contains(refused.Message, "stored_bytes") {
		t.Errorf("%d writes of 500 bytes, then %v", committed, refused)
	}
	_, err := l.Write(within(t), connect.NewRequest(writeIn("bad", "d", 1, appendOp("x"))))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	if again, err := l.GetEntity(within(t),
		connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scopeIn("bad"), Key: "k"})); connect.CodeOf(
		err) != connect.CodeNotFound {
		t.Error("reads go on:", again, err)
	}
	status, err := admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{}))
	if err != nil || status.Msg.Status.Caller.StoredBytesLimit != 3000 || status.Msg.Status.Caller.StoredBytes < 3000 {
		t.Error("the status says", status, err)
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	g.mustServe(t, "a")
}

// A committed write that is repeated gets its receipt although its credential may store nothing more, however large it
// is.
func TestRepeatsNeedNoRoom(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"small": `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {stored_bytes: 100000}`,
		"good":  tenantKeys["good"],
	})
	l, _ := g.as("small")
	large := strings.Repeat("x", 120_000)
	first, err := l.Write(within(t), connect.NewRequest(writeIn("bad", "c", 1, appendOp(large))))
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.Write(within(t), connect.NewRequest(writeIn("bad", "c", 1, appendOp(large))))
	if err != nil || !again.Msg.Receipt.Replayed || again.Msg.Receipt.TxId != first.Msg.Receipt.TxId {
		t.Errorf("the repeat: %v, %v, want the receipt %v", again, err, first)
	}
	_, err = l.Write(within(t), connect.NewRequest(writeIn("bad", "c", 2, appendOp(large))))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
}

// A stream that writes faster than its credential may is slowed, and not refused.
func TestStreamIsSlowed(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"slow": `role: writer, scopes: ["bad/*"], client_ids: ["*"], limits: {writes_per_second: 100}`,
		"good": tenantKeys["good"],
	})
	l, _ := g.as("slow")
	stream := l.WriteStream(within(t))
	for sequence := range uint64(5) {
		frame := frameOf()
		for i := range uint64(25) {
			frame.Writes = append(frame.Writes, writeIn("bad", "c", sequence*25+i+1, appendOp("x")))
		}
		if err := stream.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range receive(t, stream, 125) {
		if r.GetReceipt() == nil {
			t.Fatal(r)
		}
	}
	if n := g.observe(t, `seqledger_gate_refusals_total{gate="writes_per_second",of="credential"}`); n == 0 {
		t.Error("the stream was not slowed")
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	g.mustServe(t, "a")
}

// The ledger is not stopped by a disk that fills: writes are refused, reads go on.
func TestDiskReserve(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{DiskReserve: 1 << 60})
	_, err := h.client.Write(within(t), connect.NewRequest(writeOf("c", 1, appendOp("x"))))
	e := mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	if e.RetryAfter.AsDuration() <= 0 || !strings.Contains(e.Message, "disk") {
		t.Error("the refusal says", e)
	}
	_, err = h.client.OpenSession(within(t),
		connect.NewRequest(&seqledgerv1.OpenSessionRequest{Scope: scope(), ClientId: "c", AttemptId: make([]byte, 16)}))
	mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	// What was committed before the disk was full is answered again.
	known := writeOf("k", 1, appendOp("x"))
	out, err := h.ledger.Write(within(t), &machine.Write{
		Scope: machine.Scope{Organization: known.Scope.Organization, Vault: known.Scope.Vault}, ClientID: "k",
		Sequence: 1,
		Actor:    "client:before", Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("x")}},
	})
	if err != nil || out.Code != machine.Committed {
		t.Fatal(out, err)
	}
	again, err := h.client.Write(within(t), connect.NewRequest(known))
	if err != nil || !again.Msg.Receipt.Replayed || again.Msg.Receipt.Sequence != 1 {
		t.Error("the repeat of a committed write:", again, err)
	}
	stream := h.client.WriteStream(within(t))
	if err := stream.Send(frameOf(writeOf("c", 1, appendOp("x")), known, writeOf("d", 1, appendOp("x")))); err != nil {
		t.Fatal(err)
	}
	for i, r := range receive(t, stream, 3) {
		if i == 1 {
			if !r.GetReceipt().GetReplayed() {
				t.Error("the repeat in a stream:", r)
			}
			continue
		}
		if r.GetError().GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL {
			t.Error("a write of a stream:", r)
		}
	}
	end(t, stream)
	if _, err := h.client.GetClientState(within(t),
		connect.NewRequest(&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "c"})); err != nil {
		t.Error("a read:", err)
	}
	request := connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		MaxStreamsSet: &seqledgerv1.UpdateConfigRequest_MaxStreams{MaxStreams: 5},
	})
	if _, err := h.admin.UpdateConfig(within(t), request); err != nil {
		t.Error("what may make room:", err)
	}
	if got := h.metric(t, "seqledger_disk_reserve_level"); got != "2" {
		t.Error("the metrics say", got)
	}
}

// A server without access control answers programs on its machine alone, and not those for which a proxy on it speaks.
func TestForwardedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	h := start(t)
	g := guard(t, server.Options{}, nil)
	open := startWith(t, server.Options{Insecure: true})
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
		for name, test := range map[string]struct {
			h    *harness
			want int
		}{"without an auth file": {h, 403}, "with one": {g.harness, 200}, "insecure": {open, 200}} {
			request, err := http.NewRequestWithContext(within(t), http.MethodGet, test.h.url+"/healthz", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set(header, "192.0.2.1")
			if status, _, text := test.h.do(t, request); status != test.want ||
				status == 403 && !strings.Contains(text, header) {
				t.Errorf("%s, %s: %d %s", name, header, status, text)
			}
		}
	}
}

// nginx's plain proxy_pass adds no header, and speaks HTTP/1.0, as no program does that is meant for this server.
func TestHTTP10IsRefused(t *testing.T) {
	t.Parallel()
	h := start(t)
	g := guard(t, server.Options{}, nil)
	for name, test := range map[string]struct {
		h    *harness
		want string
	}{
		"without an auth file": {h, "403"}, "with one": {g.harness, "200"},
		"insecure": {startWith(t, server.Options{Insecure: true}), "200"},
	} {
		host := strings.TrimPrefix(test.h.url, "http://")
		c := test.h.connect(t, "GET /healthz HTTP/1.0\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		answer, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		status, _, _ := strings.Cut(string(answer), "\r\n")
		if !strings.Contains(status, test.want) {
			t.Errorf("%s: %s, want %s", name, status, test.want)
		}
		if test.want == "403" && (!strings.Contains(string(answer), "HTTP/1.0") ||
			!strings.Contains(string(answer), "--auth")) {
			t.Errorf("the answer says neither why nor what to do: %s", answer)
		}
	}
}

// The shutdown of another http.Server ends the streams on upgraded connections, which it does not track.
func TestHandlerEndsWithItsServer(t *testing.T) {
	t.Parallel()
	h := start(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hs := &http.Server{Handler: h.server.Handler()}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(listener) }() // ends with Shutdown; received below
	own := *h
	own.url = "http://" + listener.Addr().String()
	stream := mustOpenUpgraded(t, &own)
	ask(t, stream, writeOf("c", 1, appendOp("x")))
	if err := hs.Shutdown(within(t)); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	err = stream.Receive(new(seqledgerv1.WriteStreamResponse))
	mustRefuse(t, err, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	if err := h.server.Drain(within(t)); err != nil {
		t.Error(err)
	}
}

// A write whose caller repeatedly timed out, because the disk is slow, is stored once.
func TestASlowDiskCostsNoQuota(t *testing.T) {
	t.Parallel()
	g := tenants(t, server.Options{})
	l, admin := g.as("bad")
	const size, repeats = 300 << 10, 3
	release := g.stall(t)
	for i := range int64(repeats) {
		ctx, cancel := context.WithCancel(within(t))
		given := make(chan error, 1)
		go func() { // ends with ctx; received below
			_, err := l.Write(ctx, connect.NewRequest(writeIn("bad", "c", 1, appendOp(strings.Repeat("x", size)))))
			given <- err
		}()
		for g.ledger.Stats().QueuedBytes <= (i+1)*size && ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel()
		if err := <-given; connect.CodeOf(err) != connect.CodeCanceled {
			t.Error("a write on a disk that stands still:", err)
		}
	}
	release()
	if _, err := l.Write(within(t), connect.NewRequest(writeIn("bad", "c", 2, appendOp("x")))); err != nil {
		t.Fatal(err)
	}
	const want, more = size + 1, 2_000 // for what there is beside payloads
	for stored, ctx := int64(0), within(t); stored < want; {
		answer, err := admin.GetStatus(ctx, connect.NewRequest(&seqledgerv1.GetStatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		if stored = int64(answer.Msg.Status.Caller.StoredBytes); stored > want+more {
			t.Fatalf("%d bytes are stored, want %d to %d", stored, want, want+more)
		}
	}
}
