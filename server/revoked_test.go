package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// keyedServer is a server with an auth file.
type keyedServer struct {
	*Server

	path    string
	entries map[string]string
	keys    map[string]string
}

func newKeyedServer(t *testing.T, o Options, rights map[string]string) *keyedServer {
	t.Helper()
	s := &keyedServer{
		path: filepath.Join(t.TempDir(), "auth.yaml"), entries: map[string]string{}, keys: map[string]string{},
	}
	for id, rights := range rights {
		key, hash, err := auth.NewKey(id)
		must.Do(t, err)
		s.keys[id], s.entries[id] = key, fmt.Sprintf("- {id: %s, hash: %q, %s}\n", id, hash, rights)
	}
	s.save(t)
	o.Logger = slog.New(slog.DiscardHandler)
	o.Auth = must.Get(auth.Open(s.path, auth.Options{Logger: o.Logger}))(t)
	s.Server = newTestServer(t, o)
	return s
}

func (s *keyedServer) save(t *testing.T) {
	t.Helper()
	file := "keys:\n"
	for entry := range maps.Values(s.entries) {
		file += entry
	}
	must.Do(t, os.WriteFile(s.path, []byte(file), 0o600))
}

// revoke removes a key.
func (s *keyedServer) revoke(t *testing.T, id string) {
	t.Helper()
	delete(s.entries, id)
	s.save(t)
	must.Do(t, s.options.Auth.Reload())
}

// ask returns the answer to a call.
func (s *keyedServer) ask(id, procedure string, m proto.Message) *httptest.ResponseRecorder {
	body, err := proto.Marshal(m)
	if err != nil {
		panic(err) // the test has made it
	}
	kind := "application/proto"
	if procedure == seqledgerv1connect.LedgerServiceWatchProcedure {
		kind, body = "application/connect+proto", prototest.Envelope(0, body)
	}
	r := httptest.NewRequest(http.MethodPost, "http://localhost"+procedure, bytes.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Authorization", "Bearer "+s.keys[id])
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// takeReads takes every place for reads until release is called.
func (s *keyedServer) takeReads(t *testing.T) (release func()) {
	t.Helper()
	var others admission.Registry
	var held []func()
	for i := range 64 {
		share := must.Get(others.Of(fmt.Sprint("other:", i)))(t)
		for _, large := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			stop := time.AfterFunc(time.Millisecond, cancel) // of the bubble: there is no further place
			if done, err := s.admission.Read(ctx, s.admission.Party(share, admission.Limits{}), large); err == nil {
				held = append(held, done)
			}
			stop.Stop()
			cancel()
		}
	}
	return func() {
		for _, done := range held {
			done()
		}
	}
}

// waitingCalls are the calls that may wait before they answer what they read.
func waitingCalls() map[string]proto.Message {
	scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
	record := &seqledgerv1.RecordKey{Scope: scope, Key: "k"}
	calls := map[string]proto.Message{
		"LedgerService/GetClientState":    &seqledgerv1.GetClientStateRequest{Scope: scope, ClientId: "c"},
		"LedgerService/GetEntity":         &seqledgerv1.GetEntityRequest{Scope: scope, Key: "k"},
		"LedgerService/ListEntities":      &seqledgerv1.ListEntitiesRequest{Scope: scope},
		"LedgerService/ListRelationships": &seqledgerv1.ListRelationshipsRequest{Scope: scope},
		"LedgerService/GetTransaction":    &seqledgerv1.GetTransactionRequest{TxId: machine.NewTxID(1, 1).String()},
		"LedgerService/GetReceipt":        &seqledgerv1.GetReceiptRequest{TxId: machine.NewTxID(1, 1).String()},
		"LedgerService/GetBlock":          &seqledgerv1.GetBlockRequest{Scope: scope, Height: 1},
		"LedgerService/ListBlocks":        &seqledgerv1.ListBlocksRequest{Scope: scope},
		"LedgerService/Watch":             &seqledgerv1.WatchRequest{Scope: scope, FromHeight: 1},
		"AdminService/GetStatus":          &seqledgerv1.GetStatusRequest{},
		"AdminService/ListClients":        &seqledgerv1.ListClientsRequest{Scope: scope},
		"IdempotencyService/GetRecord":    &seqledgerv1.GetRecordRequest{Record: record},
		"IdempotencyService/ListRecords":  &seqledgerv1.ListRecordsRequest{Scope: scope},
		"IdempotencyService/Reserve":      reserveOfK(record, 2), // waits for the owner, not for a place
	}
	named := make(map[string]proto.Message, len(calls))
	for name, m := range calls {
		named["/seqledger.v1."+name] = m
	}
	return named
}

func reserveOfK(record *seqledgerv1.RecordKey, attempt byte) *seqledgerv1.ReserveRequest {
	return &seqledgerv1.ReserveRequest{
		Record: record, AttemptId: bytes.Repeat([]byte{attempt}, 16), Wait: durationpb.New(10 * time.Second),
		Fingerprint: &seqledgerv1.Fingerprint{Algorithm: 1, Digest: make([]byte, 32)},
	}
}

// A call that waited is not answered when its credential has ended meanwhile.
func TestCallThatWaitedIsAuthorizedAgain(t *testing.T) {
	t.Parallel()
	for procedure, request := range waitingCalls() {
		t.Run(path.Base(procedure), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newKeyedServer(t, Options{}, map[string]string{
					"caller": `role: admin, scopes: ["*"], client_ids: ["*"]`, "other": `role: reader, scopes: ["*"]`,
				})
				scope := &seqledgerv1.Scope{Organization: "acme", Vault: "main"}
				for procedure, m := range map[string]proto.Message{
					seqledgerv1connect.LedgerServiceWriteProcedure: &seqledgerv1.WriteRequest{
						Scope: scope, ClientId: "c", Sequence: 1, Operations: []*seqledgerv1.Operation{{
							Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{Key: "k"}},
						}},
					},
					seqledgerv1connect.IdempotencyServiceReserveProcedure: reserveOfK(
						&seqledgerv1.RecordKey{Scope: scope, Key: "k"}, 1),
				} {
					if w := s.ask("caller", procedure, m); w.Code != http.StatusOK {
						t.Fatal(procedure, w.Code, w.Body)
					}
				}
				release := sync.OnceFunc(s.takeReads(t))
				defer release()
				answered := make(chan *httptest.ResponseRecorder, 1)
				// Ends with the answer; received below.
				go func() { answered <- s.ask("caller", procedure, request) }()
				synctest.Wait()
				select {
				case w := <-answered:
					t.Fatal("it does not wait:", w.Code, w.Body)
				default:
				}
				s.revoke(t, "caller")
				release()
				w := <-answered
				text := w.Body.String()
				if !strings.Contains(text, "unauthenticated") || strings.Contains(text, "acme") {
					t.Errorf("answered with %d %q", w.Code, text)
				}
			})
		})
	}
}

// A new call that reads must be among those that the test above tries.
func TestWaitingCallsAreAll(t *testing.T) {
	t.Parallel()
	known := waitingCalls()
	for _, m := range procedures() {
		name := procedureName(m)
		options, _ := m.Options().(*descriptorpb.MethodOptions)
		reads := options.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
		switch name {
		case seqledgerv1connect.AdminServiceBackupProcedure:
			continue // it waits for no place, and ends with its credential like every stream
		case seqledgerv1connect.AdminServiceListRefusalsProcedure:
			continue // it waits for nothing: it reads what the server has in memory
		}
		if reads && known[name] == nil {
			t.Errorf("%s reads, and is not tried with a credential that ends while it waits", name)
		}
	}
}
