package writer_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/proof"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

var org = &seqledgerv1.Scope{Organization: "acme"}

// fault is what happens to one write on the stream.
type fault uint8

const (
	faultNone  fault = iota
	faultDrop        // break the stream; this write and those behind are lost
	faultLost        // decide this write, then break: its answer is lost
	faultGhost       // break; this write and those behind may run later
	// The next three answer OUTCOME_UNKNOWN: executed, not, and perhaps later.
	faultUnknownDone
	faultUnknownLost
	faultUnknownGhost
	faultDraining // answer DRAINING without deciding
	faultQueueFull
)

// fakeServer serves a fakeLedger with faults. Hooks run without locks held.
type fakeServer struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler
	seqledgerv1connect.UnimplementedAdminServiceHandler
	ledger  *fakeLedger
	address string
	// sharedOnly: the server gives no connection away, as an older one. http2Only:
	// it does not even understand the question.
	sharedOnly, http2Only bool
	stop                  func() // of some

	mu sync.Mutex
	// leader is the address that every answer names as the leader's.
	leader string
	// onWrite says what happens to a write on the stream; nil: nothing.
	onWrite func(*seqledgerv1.WriteRequest) fault
	// onAnswer may replace an answer on the stream.
	onAnswer func(*seqledgerv1.WriteRequest, *seqledgerv1.WriteResult) *seqledgerv1.WriteResult
	// onOpen runs before and afterOpen after an OpenSession is decided; an
	// error is the answer.
	onOpen, afterOpen func(*seqledgerv1.OpenSessionRequest) error
	// onUnary is the same for Write.
	onUnary, afterUnary func(*seqledgerv1.WriteRequest) error
	// onBatch may change the answer of a WriteBatch, which is decided by then.
	onBatch func(*seqledgerv1.WriteBatchResponse) error
	// onWatch may end a watch after a block, and onQuiet after the last one. chain identifies a
	// history, and height is the height of its last block.
	onWatch func(height uint64) error
	onQuiet func(context.Context) error
	chain   byte
	height  uint64
	// onBlock may change a block on its way out; onList may turn away a question for one.
	onBlock func(*seqledgerv1.Block)
	onList  func() error
	// blockParts are what Watch and GetBlock answer with, and transactionParts what
	// GetTransaction does, in this order, whatever is asked for.
	blockParts       []*seqledgerv1.Block
	transactionParts []*seqledgerv1.GetTransactionResponse
	asked            []proto.Message // by calls for these
	// onFrame may end the stream at a message.
	onFrame func(*seqledgerv1.WriteStreamRequest) error
	// onStream may turn a whole WriteStream away.
	onStream func() error
	// onHeader may turn away a call or a stream by its header.
	onHeader func(http.Header) error
	refused  int // by onHeader
	// onStatus runs before GetStatus answers.
	onStatus func()
	// onEntities answers ListEntities.
	onEntities func(*seqledgerv1.ListEntitiesRequest) (*seqledgerv1.ListEntitiesResponse, error)
	// onRead may turn away a read.
	onRead func() error
	// ghosts are copies still under way.
	ghosts  []*seqledgerv1.WriteRequest
	opens   []*seqledgerv1.OpenSessionRequest
	unary   []*seqledgerv1.WriteRequest
	batches []*seqledgerv1.WriteBatchRequest
	frames  []int // writes in each frame
	header  http.Header
	// upgraded reports whether the last stream had an upgraded connection.
	upgraded bool
}

// set changes hooks while the server runs.
func (s *fakeServer) set(change func(*fakeServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// releaseGhost runs one copy that was under way. It returns false when there
// was none.
func (s *fakeServer) releaseGhost(choose func(n int) int) bool {
	s.mu.Lock()
	if len(s.ghosts) == 0 {
		s.mu.Unlock()
		return false
	}
	i := choose(len(s.ghosts))
	request := s.ghosts[i]
	s.ghosts = append(s.ghosts[:i], s.ghosts[i+1:]...)
	s.mu.Unlock()
	s.ledger.apply(request)
	return true
}

// refusedCount returns how many calls and streams onHeader has turned away.
func (s *fakeServer) refusedCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// admit is onHeader.
func (s *fakeServer) admit(header http.Header) error {
	s.mu.Lock()
	onHeader := s.onHeader
	s.mu.Unlock()
	if onHeader == nil {
		return nil
	}
	err := onHeader(header)
	if err != nil {
		s.mu.Lock()
		s.refused++
		s.mu.Unlock()
	}
	return err
}

// openCount returns how many OpenSession requests came.
func (s *fakeServer) openCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.opens)
}

var errBroken = connect.NewError(connect.CodeUnavailable, errors.New("connection broken by the test"))

// WriteStream implements the handler.
func (s *fakeServer) WriteStream(ctx context.Context,
	stream *connect.BidiStream[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]) error {
	s.mu.Lock()
	onStream := s.onStream
	s.header, s.upgraded = stream.RequestHeader().Clone(), upgrade.IsUpgraded(ctx)
	s.mu.Unlock()
	if err := s.admit(stream.RequestHeader()); err != nil {
		return err
	}
	if onStream != nil {
		if err := onStream(); err != nil {
			return err
		}
	}
	for {
		frame, err := stream.Receive()
		if err != nil {
			return nil
		}
		s.mu.Lock()
		onFrame := s.onFrame
		s.mu.Unlock()
		if onFrame != nil {
			if err := onFrame(frame); err != nil {
				return err
			}
		}
		results, broken := s.frame(frame.GetWrites())
		if len(results) > 0 {
			if err := stream.Send(&seqledgerv1.WriteStreamResponse{Results: results}); err != nil {
				return err
			}
		}
		if broken {
			return errBroken
		}
	}
}

// frame decides the writes of one frame.
func (s *fakeServer) frame(writes []*seqledgerv1.WriteRequest) ([]*seqledgerv1.WriteResult, bool) {
	s.mu.Lock()
	s.frames = append(s.frames, len(writes))
	onWrite, onAnswer := s.onWrite, s.onAnswer
	s.mu.Unlock()
	var results []*seqledgerv1.WriteResult
	for i, request := range writes {
		what := faultNone
		if onWrite != nil {
			what = onWrite(request)
		}
		var result *seqledgerv1.WriteResult
		switch what {
		case faultDrop:
			return results, true
		case faultLost:
			s.ledger.apply(request)
			return results, true
		case faultGhost:
			s.keepGhosts(writes[i:]...)
			return results, true
		case faultUnknownDone:
			s.ledger.apply(request)
			result = refusal(&seqledgerv1.WriteError{Code: codeUnknown})
		case faultUnknownLost:
			result = refusal(&seqledgerv1.WriteError{Code: codeUnknown})
		case faultUnknownGhost:
			s.keepGhosts(request)
			result = refusal(&seqledgerv1.WriteError{Code: codeUnknown})
		case faultDraining:
			result = refusal(&seqledgerv1.WriteError{Code: codeDraining})
		case faultQueueFull:
			result = refusal(&seqledgerv1.WriteError{Code: codeQueueFull})
		default:
			result = s.ledger.apply(request)
		}
		if onAnswer != nil {
			result = onAnswer(request, result)
		}
		results = append(results, result)
	}
	return results, false
}

func (s *fakeServer) keepGhosts(writes ...*seqledgerv1.WriteRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ghosts = append(s.ghosts, writes...)
}

// Write implements the handler.
func (s *fakeServer) Write(_ context.Context,
	request *connect.Request[seqledgerv1.WriteRequest]) (*connect.Response[seqledgerv1.WriteResponse], error) {
	s.mu.Lock()
	s.unary = append(s.unary, request.Msg)
	before, after := s.onUnary, s.afterUnary
	s.mu.Unlock()
	if before != nil {
		if err := before(request.Msg); err != nil {
			return nil, err
		}
	}
	result := s.ledger.apply(request.Msg)
	if after != nil {
		if err := after(request.Msg); err != nil {
			return nil, err
		}
	}
	if result.GetError() != nil {
		return nil, withDetail(connect.CodeFailedPrecondition, result.GetError())
	}
	return connect.NewResponse(&seqledgerv1.WriteResponse{Receipt: result.GetReceipt()}), nil
}

// WriteBatch implements the handler.
func (s *fakeServer) WriteBatch(_ context.Context, request *connect.Request[seqledgerv1.WriteBatchRequest],
) (*connect.Response[seqledgerv1.WriteBatchResponse], error) {
	s.mu.Lock()
	s.batches = append(s.batches, request.Msg)
	on := s.onBatch
	s.mu.Unlock()
	answer := new(seqledgerv1.WriteBatchResponse)
	for _, w := range request.Msg.GetWrites() {
		answer.Results = append(answer.Results, s.ledger.apply(w))
	}
	if on != nil {
		if err := on(answer); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(answer), nil
}

// OpenSession implements the handler.
func (s *fakeServer) OpenSession(_ context.Context,
	request *connect.Request[seqledgerv1.OpenSessionRequest]) (*connect.Response[seqledgerv1.OpenSessionResponse],
	error) {
	s.mu.Lock()
	s.opens = append(s.opens, request.Msg)
	before, after := s.onOpen, s.afterOpen
	s.mu.Unlock()
	if err := s.admit(request.Header()); err != nil {
		return nil, err
	}
	if before != nil {
		if err := before(request.Msg); err != nil {
			return nil, err
		}
	}
	response, refused := s.ledger.openSession(request.Msg)
	if after != nil {
		if err := after(request.Msg); err != nil {
			return nil, err
		}
	}
	if refused != 0 {
		return nil, withDetail(connect.CodeFailedPrecondition, &seqledgerv1.WriteError{Code: refused})
	}
	return connect.NewResponse(response), nil
}

// GetClientState implements the handler.
func (s *fakeServer) GetClientState(_ context.Context,
	request *connect.Request[seqledgerv1.GetClientStateRequest]) (*connect.Response[seqledgerv1.GetClientStateResponse],
	error) {
	s.mu.Lock()
	onRead := s.onRead
	s.mu.Unlock()
	if err := s.admit(request.Header()); err != nil {
		return nil, err
	}
	if onRead != nil {
		if err := onRead(); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&seqledgerv1.GetClientStateResponse{
		State: s.ledger.state(request.Msg.GetScope(), request.Msg.GetClientId()),
	}), nil
}

// block returns a block of the fake's chain.
func (s *fakeServer) block(height uint64) *seqledgerv1.Block {
	s.mu.Lock()
	chain := s.chain
	s.mu.Unlock()
	previous := make([]byte, 32)
	for at := uint64(1); ; at++ {
		root := make([]byte, 32)
		root[0] = chain
		header := &seqledgerv1.BlockHeader{
			Scope: org, Height: at, PreviousHash: previous, TxRoot: root, TxCount: 1,
			CommittedAt: timestamppb.New(time.Unix(int64(at), 0)),
		}
		hash, err := proof.BlockHash(header)
		if err != nil {
			panic(err)
		}
		if at == height {
			transaction := &seqledgerv1.Transaction{TxId: txID(uint64(s.ledger.id()), at), Scope: org, BlockHeight: at}
			return &seqledgerv1.Block{Header: header, Hash: hash, Transactions: []*seqledgerv1.Transaction{transaction}}
		}
		previous = hash
	}
}

// GetBlock implements the handler.
func (s *fakeServer) GetBlock(
	ctx context.Context, request *connect.Request[seqledgerv1.GetBlockRequest],
) (*connect.Response[seqledgerv1.GetBlockResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blockParts == nil {
		return s.UnimplementedLedgerServiceHandler.GetBlock(ctx, request)
	}
	if len(s.asked) >= len(s.blockParts) {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no more parts"))
	}
	part := s.blockParts[len(s.asked)]
	s.asked = append(s.asked, request.Msg)
	return connect.NewResponse(&seqledgerv1.GetBlockResponse{Block: part}), nil
}

// GetTransaction implements the handler.
func (s *fakeServer) GetTransaction(
	ctx context.Context, request *connect.Request[seqledgerv1.GetTransactionRequest],
) (*connect.Response[seqledgerv1.GetTransactionResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transactionParts == nil {
		return s.UnimplementedLedgerServiceHandler.GetTransaction(ctx, request)
	}
	if len(s.asked) >= len(s.transactionParts) {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no more parts"))
	}
	part := s.transactionParts[len(s.asked)]
	s.asked = append(s.asked, request.Msg)
	return connect.NewResponse(part), nil
}

// ListEntities implements the handler.
func (s *fakeServer) ListEntities(
	ctx context.Context, request *connect.Request[seqledgerv1.ListEntitiesRequest],
) (*connect.Response[seqledgerv1.ListEntitiesResponse], error) {
	s.mu.Lock()
	onEntities := s.onEntities
	s.mu.Unlock()
	if onEntities == nil {
		return s.UnimplementedLedgerServiceHandler.ListEntities(ctx, request)
	}
	answer, err := onEntities(request.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// ListBlocks implements the handler, for one block.
func (s *fakeServer) ListBlocks(
	_ context.Context, request *connect.Request[seqledgerv1.ListBlocksRequest],
) (*connect.Response[seqledgerv1.ListBlocksResponse], error) {
	answer := new(seqledgerv1.ListBlocksResponse)
	s.mu.Lock()
	onList := s.onList
	s.mu.Unlock()
	if onList != nil {
		if err := onList(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	height, last := max(1, request.Msg.GetFromHeight()), s.height
	s.mu.Unlock()
	if height <= last {
		answer.Blocks = append(answer.Blocks, s.block(height))
	}
	return connect.NewResponse(answer), nil
}

// Watch implements the handler: the blocks that there are, and then silence.
func (s *fakeServer) Watch(ctx context.Context, request *connect.Request[seqledgerv1.WatchRequest],
	stream *connect.ServerStream[seqledgerv1.WatchResponse]) error {
	s.mu.Lock()
	onWatch, onQuiet, last, parts := s.onWatch, s.onQuiet, s.height, s.blockParts
	s.mu.Unlock()
	if err := s.admit(request.Header()); err != nil {
		return err
	}
	for _, part := range parts {
		if err := stream.Send(&seqledgerv1.WatchResponse{Block: part}); err != nil {
			return err
		}
	}
	for height := request.Msg.GetFromHeight(); height <= last; height++ {
		block := s.block(height)
		s.mu.Lock()
		onBlock := s.onBlock
		s.mu.Unlock()
		if request.Msg.GetContent() == seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER {
			block.Transactions = nil
		}
		if onBlock != nil {
			onBlock(block)
		}
		if err := stream.Send(&seqledgerv1.WatchResponse{Block: block}); err != nil {
			return err
		}
		if onWatch != nil {
			if err := onWatch(height); err != nil {
				return err
			}
		}
	}
	if onQuiet != nil {
		return onQuiet(ctx)
	}
	<-ctx.Done()
	return nil
}

// GetStatus implements the handler.
func (s *fakeServer) GetStatus(context.Context,
	*connect.Request[seqledgerv1.GetStatusRequest]) (*connect.Response[seqledgerv1.GetStatusResponse], error) {
	s.mu.Lock()
	onStatus := s.onStatus
	s.mu.Unlock()
	if onStatus != nil {
		onStatus()
	}
	return connect.NewResponse(&seqledgerv1.GetStatusResponse{
		Status: &seqledgerv1.Status{Version: "fake", LedgerId: s.ledger.id().String()},
	}), nil
}

// withDetail builds the error of a refused unary call.
func withDetail(c connect.Code, detail *seqledgerv1.WriteError) error {
	err := connect.NewError(c, errors.New(detail.GetMessage()))
	d, detailErr := connect.NewErrorDetail(detail)
	if detailErr != nil {
		panic(detailErr)
	}
	err.AddDetail(d)
	return err
}

// serve starts s on listener and returns what ends it.
func (s *fakeServer) serve(listener net.Listener) func() {
	mux := http.NewServeMux()
	closed, closeAll := context.WithCancel(context.Background())
	path, ledger := seqledgerv1connect.NewLedgerServiceHandler(s, connect.WithCompressMinBytes(1<<10))
	if !s.sharedOnly {
		ledger = upgrade.Handler(upgrade.Options{
			Closed: closed, MaxMessageBytes: 64 << 20, PingEvery: upgrade.PingEvery,
		}, ledger)
	}
	mux.Handle(path, ledger)
	mux.Handle(seqledgerv1connect.NewAdminServiceHandler(s))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(!s.http2Only)
	named := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		leader := s.leader
		s.mu.Unlock()
		if leader != "" {
			w.Header().Set(message.LeaderHeader, leader)
		}
		mux.ServeHTTP(w, r)
	})
	server := &http.Server{
		Handler: named, Protocols: protocols,
		// Large, so that a stuck connection and not the window stops a sender.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: 4<<20 - 1, MaxReceiveBufferPerStream: 4<<20 - 1},
	}
	done := make(chan struct{})
	// Ends when the returned function closes the server, which waits for it.
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	return func() {
		closeAll()
		_ = server.Close()
		<-done
	}
}

// start serves a new fake on loopback and returns a client of it. Both end with
// the test; the server last, so that the client sees no failure of it.
func start(t testing.TB) (*fakeServer, *client.Client) {
	t.Helper()
	s := &fakeServer{ledger: newFakeLedger()}
	return s, startFake(t, s)
}

// startFake is start with a fake that was prepared, and options that are changed.
func startFake(t testing.TB, s *fakeServer, change ...func(*client.Options)) *client.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err, "listening on loopback")
	s.address = listener.Addr().String()
	if s.height == 0 {
		s.height = 3
	}
	t.Cleanup(s.serve(listener))
	return dial(t, s, change...)
}

// newWriter opens a Writer that must open.
func newWriter(t testing.TB, c *client.Client, id string) *writer.Writer {
	t.Helper()
	w, err := writer.Open(t.Context(), c, writer.Options{Scope: org, ClientID: id})
	must.Do(t, err, "opening writer %s", id)
	return w
}

// payload is an operation that always succeeds.
func payload(text string) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
		Append: &seqledgerv1.Append{Payload: []byte(text)},
	}}
}

// create is an operation that succeeds only while key is absent.
func create(key string) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{
		Key:       key,
		Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}},
	}}}
}
