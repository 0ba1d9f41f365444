package demo

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// relay is one write stream through the proxy. A stream's answers are matched with its writes
// by their order, so a single frame cannot be dropped: a lost frame or answer breaks the stream
// at that point, like a broken connection, and all its other unanswered writes are lost too.
type relay struct {
	proxy *proxy

	mu sync.Mutex
	// sent and answered count the writes of this stream.
	sent, answered int
	// marks are the faults that wait for an answer, in the order of their frames. The clients'
	// unanswered writes bound them.
	marks []mark
}

// mark is a fault that happens when the first upTo writes are answered.
type mark struct {
	upTo  int
	kind  fault
	wait  time.Duration
	frame []byte
}

// errCut says that the proxy has broken the stream on purpose.
var errCut = errors.New("the stream is cut")

func newRelay(p *proxy) *relay { return &relay{proxy: p} }

// run relays until the stream ends or breaks on either side.
func (s *relay) run(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	body, feed := io.Pipe()
	pumped := make(chan struct{})
	// Ends with the request's body, which is closed below; waited for there.
	go func() {
		defer close(pumped)
		err := s.requests(ctx, r.Body, feed)
		_ = feed.CloseWithError(err) // never fails; nil is a plain end
		if err != nil {
			cancel()
		}
	}()
	err := s.answers(ctx, w, r, body)
	cancel()
	_ = r.Body.Close()
	_ = body.CloseWithError(errCut)
	<-pumped
	if err != nil {
		faultproxy.Abort()
	}
}

// requests hands the client's frames to the server.
func (s *relay) requests(ctx context.Context, from io.Reader, to io.Writer) error {
	for {
		frame, err := faultproxy.ReadEnvelope(from)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		writes := new(seqledgerv1.WriteStreamRequest)
		if err := decodeFrame(frame, writes); err != nil {
			return err
		}
		s.proxy.tally.sent(writes.GetWrites()...)
		kind, wait := s.proxy.schedule.next()
		if !s.proxy.before(ctx, kind, wait) {
			return errCut
		}
		s.note(len(writes.GetWrites()), mark{kind: kind, wait: wait, frame: frame})
		if _, err := to.Write(frame); err != nil {
			return err
		}
	}
}

// note counts the writes of a frame that is about to be sent.
func (s *relay) note(writes int, m mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent += writes
	if m.kind == faultLoseAnswer || m.kind == faultTwice {
		m.upTo = s.sent
		s.marks = append(s.marks, m)
	}
}

// answers hands the server's frames to the client.
func (s *relay) answers(ctx context.Context, w http.ResponseWriter, r *http.Request, body io.Reader) error {
	request, err := s.proxy.forward(ctx, r, body)
	if err != nil {
		return err
	}
	response, err := s.proxy.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read only
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	controls := http.NewResponseController(w)
	for {
		if err := controls.Flush(); err != nil {
			return err
		}
		frame, err := faultproxy.ReadEnvelope(response.Body)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.lost(r, s.proxy.countFrame(frame)) {
			s.proxy.tally.add(func(c *Counts) { c.LostAnswers++ })
			return errCut
		}
		if _, err := w.Write(frame); err != nil {
			return err
		}
	}
}

// lost counts the results of a frame, sends the copies that were waiting for them, and reports
// whether the frame must be dropped.
func (s *relay) lost(r *http.Request, results int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered += results
	lost := false
	for len(s.marks) > 0 && s.marks[0].upTo <= s.answered {
		m := s.marks[0]
		s.marks = s.marks[1:]
		if m.kind == faultTwice {
			s.proxy.copyLater(r, m.frame, m.wait)
			continue
		}
		lost = true
	}
	return lost
}
