package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/cluster"
	peers "github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/ledger/seed"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// trusting returns a TLS configuration with a certificate of an authority that trusts no other authority.
func trusting(t *testing.T, name string, authority *identity) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(authority.parsed)
	return &tls.Config{
		Certificates: []tls.Certificate{issue(t, name, authority).pair(t)}, RootCAs: pool, ClientCAs: pool,
		MinVersion: tls.VersionTLS13,
	}
}

// settled repeats a call that has no outcome because of an election, as every client does.
func settled(t *testing.T, do func() error) (err error) {
	t.Helper()
	must.Await(t, func() bool {
		err = do()
		return connect.CodeOf(err) != connect.CodeUnavailable
	})
	return err
}

// writesAsItself writes by a call and by a stream, and checks the actor of the writes.
func (g *guarded) writesAsItself(t *testing.T, client string) {
	t.Helper()
	writer, _ := g.as("writer")
	var receipts []*seqledgerv1.Receipt
	must.Do(t, settled(t, func() error {
		answer, err := writer.Write(within(t), connect.NewRequest(writeOf(client, 1, appendOp("x"))))
		if err == nil {
			receipts = append(receipts, answer.Msg.Receipt)
		}
		return err
	}))
	must.Do(t, settled(t, func() error {
		receipt, err := g.streamed(t, "writer", writeOf(client, 2, appendOp("y")))
		if err == nil {
			receipts = append(receipts, receipt)
		}
		return err
	}))
	for _, receipt := range receipts {
		found, err := writer.GetTransaction(within(t), connect.NewRequest(&seqledgerv1.GetTransactionRequest{
			TxId: receipt.GetTxId(),
		}))
		if err != nil || found.Msg.GetTransaction().GetActor() != "client:writer" ||
			receipt.GetActor() != "client:writer" {
			t.Errorf("%v was written as %v: %v", receipt, found, err)
		}
	}
}

// streamed makes one write on a stream of its own. Its error has the code that a call would return.
func (g *guarded) streamed(t *testing.T, id string, m *seqledgerv1.WriteRequest) (*seqledgerv1.Receipt, error) {
	t.Helper()
	client, _ := g.as(id)
	ctx := within(t)
	stream := client.WriteStream(ctx)
	defer func() { _, _ = stream.CloseRequest(), stream.CloseResponse() }()
	_ = stream.Send(frameOf(m)) // the response says why it fails
	answer, err := stream.Receive()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the stream does not end: %w", err)
	}
	if err != nil {
		return nil, err
	}
	result := answer.GetResults()[0]
	switch result.GetError().GetCode() {
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED:
		return result.GetReceipt(), nil
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED:
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New(result.GetError().GetMessage()))
	case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN:
		return nil, connect.NewError(connect.CodeUnavailable, errors.New(result.GetError().GetMessage()))
	}
	return nil, fmt.Errorf("the result %v", result)
}

// isRefused makes calls that the leader must refuse.
func (g *guarded) isRefused(t *testing.T) {
	t.Helper()
	nonsense, _, err := auth.NewKey("writer") // which is in no auth file
	must.Do(t, err)
	g.keys["stranger"] = nonsense
	transfer := &seqledgerv1.ChangeClusterRequest{Change: &seqledgerv1.ChangeClusterRequest_Transfer{}}
	for id, want := range map[string]connect.Code{
		"":          connect.CodeUnauthenticated,
		"stranger":  connect.CodeUnauthenticated,
		"reader":    connect.CodePermissionDenied,
		"elsewhere": connect.CodePermissionDenied,
	} {
		client, admin := g.as(id)
		for what, do := range map[string]func() error{
			"write":    func() error { return call(t, client.Write, writeOf("till-9", 1, appendOp("x"))) },
			"transfer": func() error { return call(t, admin.ChangeCluster, transfer) },
			"stream": func() error {
				_, err := g.streamed(t, id, writeOf("till-9", 1, appendOp("x")))
				return err
			},
		} {
			check.Equal(t, connect.CodeOf(settled(t, do)), want, "%s by %q: got %v", what, id)
		}
	}
	_, admin := g.as("foreman") // administers a scope, but not the cluster
	err = settled(t, func() error { return call(t, admin.ChangeCluster, transfer) })
	check.Equal(t, connect.CodeOf(err), connect.CodePermissionDenied, "transfer by the foreman: %v: %v", err)
}

// TestForwardedAgentsKeepTheirRights: whichever node an agent calls, its tools may do what its own credential allows.
func TestForwardedAgentsKeepTheirRights(t *testing.T) {
	t.Parallel()
	o := withTools()
	g := newGuard(t, &o, nil)
	for i, h := range startNodes(t, o) {
		node := *g
		node.harness = h
		node.serves(t, fmt.Sprint("order-", i))
	}
}

// serves checks that agents can call tools.
func (g *guarded) serves(t *testing.T, key string) {
	t.Helper()
	reserve := object{"scope": "acme/main", "key": key, "request": "x", "attempt_id": strings.Repeat("ab", 16)}
	var got object
	var problem string
	writer := agent(t, g.harness, g.keys["writer"])
	must.Await(t, func() bool { // an election may be in progress
		got, problem = use(t, writer, "reserve", reserve)
		return problem == ""
	})
	if got["outcome"] != "ACQUIRED" {
		t.Errorf("the writer's agent: %v", got)
	}
	for _, id := range []string{"reader", "elsewhere"} {
		reserve["key"] = key + "-of-" + id
		a := agent(t, g.harness, g.keys[id])
		must.Await(t, func() bool {
			got, problem = use(t, a, "reserve", reserve)
			return problem == "" || strings.Contains(problem, "does not allow it")
		})
		if problem == "" {
			t.Errorf("the agent of %s: %v", id, got)
		}
	}
}

// secureClients makes a node's server require client certificates of an authority.
func secureClients(t *testing.T, o *server.Options, authority *identity) {
	t.Helper()
	dir := t.TempDir()
	files := server.TLSFiles{
		Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
		ClientCA: filepath.Join(dir, "ca.pem"),
	}
	issue(t, "server", authority).save(t, files)
	must.Do(t, os.WriteFile(files.ClientCA, authority.cert, 0o600))
	config := must.Get(server.LoadTLS(files, o.Logger))(t)
	o.TLS = config
}

// over returns an HTTP/2 or HTTP/1.1 client over TLS.
func over(t *testing.T, config *tls.Config, http2 bool) *http.Client {
	t.Helper()
	c := transport(t, http2)
	tr, _ := c.Transport.(*http.Transport)
	tr.Protocols.SetHTTP2(http2)
	tr.TLSClientConfig = config.Clone()
	return c
}

// Certificates of clients and of nodes are not interchangeable. A client needs its certificate at every node, can do no
// more than its key allows, and cannot act as a node.
func TestForwardingWithClientCertificates(t *testing.T) {
	t.Parallel()
	clients, nodes := issue(t, "clients", nil), issue(t, "nodes", nil)
	ofClient, ofNode := trusting(t, "till-7", clients), trusting(t, "node", nodes)
	o := withTools()
	g := newGuard(t, &o, nil)
	secureClients(t, &o, clients)
	without, wrong := ofClient.Clone(), ofClient.Clone()
	without.Certificates, wrong.Certificates = nil, ofNode.Certificates
	for i, h := range startSecureNodes(t, o, ofNode) {
		h.url = "https" + strings.TrimPrefix(h.url, "http")
		node := *g
		node.harness = h
		for name, config := range map[string]*tls.Config{"no": without, "a node's": wrong} {
			h.h1, h.h2 = over(t, config, false), over(t, config, true)
			writer, _ := node.as("writer")
			if err := call(t, writer.Write, writeOf("till-9", 1, appendOp("x"))); err == nil {
				t.Errorf("a caller with %s certificate has written", name)
			}
		}
		h.h1, h.h2 = over(t, ofClient, false), over(t, ofClient, true)
		node.writesAsItself(t, fmt.Sprint("till-", i))
		node.isRefused(t)

		// The nodes trust only each other about who a caller is.
		peer := &url.URL{Scheme: "https", Host: peerOf(t, h)}
		must.Do(t, speakAsNode(t, h, over(t, ofNode, true), peer, g.keys["writer"]), "a node is refused")
		stranger := trusting(t, "till-7", clients)
		stranger.RootCAs = ofNode.RootCAs
		none := stranger.Clone()
		none.Certificates = nil
		for name, config := range map[string]*tls.Config{"a client's": stranger, "no": none} {
			if err := speakAsNode(t, h, over(t, config, true), peer, g.keys["writer"]); err == nil {
				t.Errorf("somebody with %s certificate spoke as a node", name)
			}
		}
	}
}

// peerOf returns a node's address for other nodes.
func peerOf(t *testing.T, h *harness) string {
	t.Helper()
	s := h.ledger.Cluster().Status()
	for _, m := range s.Members {
		if m.ID == s.Self {
			return m.Peer
		}
	}
	t.Fatal("the node is no member")
	return ""
}

// speakAsNode reads the state of a client with the header of a forwarded call, as node 1.
func speakAsNode(t *testing.T, h *harness, c *http.Client, peer *url.URL, key string) error {
	t.Helper()
	as := peers.As(withBearer{key, c.Transport}, func() peers.Identity {
		id, err := h.ledger.ID()
		check.Is(t, err, nil)
		return peers.Identity{Token: joinToken, Ledger: id.String(), From: 1}
	})
	l := seqledgerv1connect.NewLedgerServiceClient(&http.Client{Transport: as}, peer.String())
	q := connect.NewRequest(&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "till-0"})
	q.Header().Set("Seqledger-Client-Address", "192.0.2.1:5")
	_, err := l.GetClientState(within(t), q)
	return err
}

// A caller cannot forge what one node tells another about a caller. A caller's header is replaced on the way to the
// leader, the address for nodes requires the same credentials as any other, and requests reserved for nodes are not
// forwarded.
func TestForgedForwarding(t *testing.T) {
	t.Parallel()
	var o server.Options
	g := newGuard(t, &o, nil)
	nodes := startNodes(t, o)
	leader := leads(t, nodes)
	const forged = "203.0.113.9:9"
	forge := func(h http.Header) {
		h.Set("Seqledger-Client-Address", forged)
		h.Set("Seqledger-Join-Token", "a guess of a token")
		h.Set("Connection", "Seqledger-Client-Address") // a proxy removes the headers named here
	}
	for _, h := range nodes {
		node := *g
		node.harness = h
		for id, want := range map[string]int{"": http.StatusUnauthorized, "reader": http.StatusForbidden} {
			status := 0
			must.Await(t, func() bool {
				status = node.status(t, id, h.url, seqledgerv1connect.LedgerServiceWriteProcedure, forge)
				return status != http.StatusServiceUnavailable
			})
			check.Equal(t, status, want, "a write of %q with forged headers: got %d", id)
		}
		// The address for nodes trusts the header, but the rights are still those of the credential.
		peer := &url.URL{Scheme: "http", Host: peerOf(t, h)}
		for id, want := range map[string]connect.Code{
			"": connect.CodeUnauthenticated, "reader": connect.CodePermissionDenied,
		} {
			check.Equal(t, connect.CodeOf(speakAsNode(t, h, h.h2, peer, g.keys[id])), want,
				"%q at the address for nodes: got %v", id)
		}
		nothing := func(http.Header) {}
		// nodes that refuse each other make a forwarded call retryable
		check.Equal(t, node.status(t, "root", peer.String(), seqledgerv1connect.LedgerServiceWriteProcedure, nothing),
			http.StatusServiceUnavailable, "a client's call at the address for nodes: %d")
		for _, path := range []string{cluster.JoinPath, seed.Path, "/seqledger.raft.v1/Stream"} {
			check.Equal(t, node.status(t, "root", h.url, path, forge)/100, 4, "a client's call of %s was answered: %d",
				path)
		}
	}
	if log := g.log.String(); strings.Contains(log, forged) || !strings.Contains(log, "from=127.0.0.1:") {
		t.Errorf("the forged address was believed, or none was noted:\n%s", log)
	}
	if l, _ := leader.ledger.Cluster().Leader(); l.Peer == "" {
		t.Error("the cluster has not survived it")
	}
}

// status sends an empty call as JSON and returns the status of the response.
func (g *guarded) status(t *testing.T, id, base, path string, change func(http.Header)) int {
	t.Helper()
	q := must.Get(http.NewRequestWithContext(within(t), http.MethodPost, base+path, strings.NewReader("{}")))(t)
	q.Header.Set("Content-Type", "application/json")
	if key := g.keys[id]; key != "" {
		q.Header.Set("Authorization", "Bearer "+key)
	}
	change(q.Header)
	status, _, _ := g.do(t, q)
	return status
}
