package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// newMetered returns a body as metered makes it.
func newMetered(ctx context.Context, a *arriving, enveloped bool, length int64, content io.Reader) *meteredBody {
	return &meteredBody{
		ReadCloser: io.NopCloser(content), ctx: ctx, arriving: a, largest: 6 << 20, enveloped: enveloped, length: length,
	}
}

func enveloped(flags byte, content string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(content)))) + content
}

// TestLargeMessagesTakeRoom: each kind of message takes the room of its whole
// before its content is read, and gives it back.
func TestLargeMessagesTakeRoom(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 100<<10)
	for name, test := range map[string]struct {
		enveloped bool
		length    int64
		content   string
		held      int64 // when the content is read
	}{
		"small body":            {false, 3, "abc", 0},
		"large body":            {false, 100 << 10, large, weightOf(100 << 10)},
		"small message":         {true, 0, enveloped(0, "abc"), 0},
		"empty message":         {true, 0, enveloped(0, ""), 0},
		"large message":         {true, 0, enveloped(0, large), weightOf(100 << 10)},
		"compressed small body": {false, -1, "abc", weightOf(6 << 20)},
		"behind a small one":    {true, 0, enveloped(0, "abc") + enveloped(0, large), weightOf(100 << 10)},
		"compressed":            {true, 0, enveloped(1, "abc"), weightOf(6 << 20)},
		"longer than allowed":   {true, 0, string([]byte{0, 255, 255, 255, 255}) + large, weightOf(6 << 20)},
	} {
		a := newArriving()
		b := newMetered(t.Context(), a, test.enveloped, test.length, strings.NewReader(test.content))
		if b.compressed = test.length < 0; b.compressed {
			b.length = b.largest
		}
		got := make([]byte, len(test.content))
		if _, err := io.ReadFull(b, got); err != nil || string(got) != test.content {
			t.Fatalf("%s: read %d bytes, %v", name, len(got), err)
		}
		if a.held.Load() != test.held {
			t.Errorf("%s: holds %d bytes, want %d", name, a.held.Load(), test.held)
		}
		_, err := b.Read(make([]byte, 1))
		if b.compressed { // it is decoded after its end
			if a.held.Load() != test.held {
				t.Errorf("%s: before it is decoded, %d bytes are held", name, a.held.Load())
			}
			releaseDecoded(context.WithValue(t.Context(), compressedKey{}, b))
		}
		if !errors.Is(err, io.EOF) || a.held.Load() != 0 {
			t.Errorf("%s: at its end %v, holds %d bytes", name, err, a.held.Load())
		}
		if !a.room.TryAcquire(maxArrivingBytes) {
			t.Errorf("%s: the room is not given back", name)
		}
	}
}

// TestFullRoom: small messages pass, large ones wait and are refused in time,
// and nothing of them has been read by then.
func TestFullRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newArriving()
		if !a.room.TryAcquire(maxArrivingBytes) {
			t.Fatal("the room must be empty")
		}
		small := newMetered(t.Context(), a, true, 0, strings.NewReader(enveloped(0, "abc")))
		if _, err := io.ReadAll(small); err != nil {
			t.Error("a small message:", err)
		}
		content := strings.NewReader(enveloped(0, strings.Repeat("x", freeBytes+1)))
		began := time.Now()
		_, err := io.ReadAll(newMetered(t.Context(), a, true, 0, content))
		if connect.CodeOf(err) != connect.CodeResourceExhausted || time.Since(began) != roomTimeout {
			t.Errorf("a large message: %v after %s", err, time.Since(began))
		}
		if content.Len() != freeBytes+1 {
			t.Error("of the message that waited only the prefix may be read; left:", content.Len())
		}
		// A stream waits for as long as it lasts.
		ctx, cancel := context.WithCancel(t.Context())
		waiting := newMetered(ctx, a, true, 0, strings.NewReader(enveloped(0, strings.Repeat("x", freeBytes+1))))
		waiting.late = newLateness(time.Hour, func() {})
		ended := make(chan error, 1)
		go func() { // ends with the room; received below
			_, err := io.ReadAll(waiting)
			ended <- err
		}()
		time.AfterFunc(10*bodyTimeout, func() { a.room.Release(maxArrivingBytes) })
		if err := <-ended; err != nil {
			t.Error("a stream that waits for room:", err)
		}
		cancel()
	})
}

// TestLateness: what takes too long is interrupted once, and nothing is after
// close.
func TestLateness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(*testing.T) {
		var interrupts atomic.Int64
		l := newLateness(time.Second, func() { interrupts.Add(1) })
		for range 3 {
			l.expect()
			<-time.After(time.Second / 2) // the bubble's time, not ours
			l.arrived()
		}
		<-time.After(time.Hour)
		if interrupts.Load() != 0 {
			t.Error("nothing was late:", interrupts.Load())
		}
		l.expect()
		<-time.After(2 * time.Second)
		if interrupts.Load() != 1 {
			t.Error("want one interrupt:", interrupts.Load())
		}
		l.expect()
		l.close()
		<-time.After(time.Hour)
		if interrupts.Load() != 1 {
			t.Error("an interrupt after close")
		}
	})
}

// TestShorten: a wait that is under way, and those after it, have the new limit.
func TestShorten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(*testing.T) {
		var interrupts atomic.Int64
		l := newLateness(time.Hour, func() { interrupts.Add(1) })
		l.shorten(time.Minute)
		<-time.After(2 * time.Hour)
		if interrupts.Load() != 0 {
			t.Error("nothing is waited for")
		}
		for want := range int64(2) {
			l.expect()
			l.shorten(time.Second)
			<-time.After(2 * time.Second)
			if interrupts.Load() != want+1 {
				t.Errorf("%d interrupts, want %d", interrupts.Load(), want+1)
			}
		}
		l.close()
		l.shorten(time.Second)
		<-time.After(time.Hour)
		if interrupts.Load() != 2 {
			t.Error("an interrupt after close")
		}
	})
}

// TestReadSlots: a read that is decoded waits for a place and gives it back;
// one that is still on its way takes none.
func TestReadSlots(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	s.reads = semaphore.NewWeighted(1)
	if !s.reads.TryAcquire(1) {
		t.Fatal("there must be a place")
	}
	const path = "/seqledger.v1.LedgerService/GetEntity"
	const body = `{"scope": {"organization": "acme"}, "key": "a"}`
	if w := post(s.Handler(), path, `{`); w.Code != http.StatusBadRequest {
		t.Error("what is refused needs no place:", w.Code)
	}
	answered := make(chan int, 1)
	go func() { answered <- post(s.Handler(), path, body).Code }() // ends with the place; received below
	select {
	case code := <-answered:
		t.Error("answered without a place:", code)
	default:
	}
	s.reads.Release(1)
	if code := <-answered; code != http.StatusNotFound {
		t.Error(code)
	}
	if !s.reads.TryAcquire(1) {
		t.Error("the place is not given back")
	}
}

// TestSmallReadsNeedNoPlace: whoever holds all places keeps nobody from finding out
// where to resume; answers that may be large need one.
func TestSmallReadsNeedNoPlace(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	s.reads = semaphore.NewWeighted(1)
	if !s.reads.TryAcquire(1) {
		t.Fatal("there must be a place")
	}
	for path, body := range map[string]string{
		"/seqledger.v1.AdminService/GetStatus":       `{}`,
		"/seqledger.v1.LedgerService/GetClientState": `{"scope": {"organization": "acme"}, "clientId": "a"}`,
	} {
		if w := post(s.Handler(), path, body); w.Code != http.StatusOK {
			t.Errorf("%s without a place: %d %s", path, w.Code, w.Body)
		}
	}
	for _, m := range []any{
		&seqledgerv1.GetClientStateRequest{IncludeReceipts: true}, &seqledgerv1.GetEntityRequest{},
		&seqledgerv1.ListEntitiesRequest{}, &seqledgerv1.ListRelationshipsRequest{}, &seqledgerv1.GetTransactionRequest{},
		&seqledgerv1.GetBlockRequest{}, &seqledgerv1.ListBlocksRequest{}, &seqledgerv1.ListClientsRequest{},
	} {
		slot := &readSlot{reads: semaphore.NewWeighted(1), controls: http.NewResponseController(httptest.NewRecorder())}
		if err := takeReadSlot(context.WithValue(t.Context(), readsKey{}, slot), m); err != nil || !slot.held {
			t.Errorf("%T takes no place (%v)", m, err)
		}
	}
}

// FuzzMeteredBody: whatever arrives in whatever pieces is handed on as it is,
// and all room is given back.
func FuzzMeteredBody(f *testing.F) {
	f.Add([]byte(enveloped(0, "abc")+enveloped(1, "d")), uint8(3), true)
	f.Add([]byte(enveloped(0, strings.Repeat("x", 5_000))), uint8(255), true)
	f.Add([]byte{0, 255, 255, 255, 255, 1}, uint8(1), true)
	f.Add(bytes.Repeat([]byte("x"), 5_000), uint8(200), false)
	f.Fuzz(func(t *testing.T, content []byte, piece uint8, envelopes bool) {
		a := newArriving()
		b := newMetered(t.Context(), a, envelopes, int64(len(content)), bytes.NewReader(content))
		var got []byte
		p := make([]byte, int(piece)+1)
		for {
			n, err := b.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
			if held := a.held.Load(); held < 0 || held > maxArrivingBytes {
				t.Fatalf("holds %d bytes", held)
			}
		}
		b.release()
		if !bytes.Equal(got, content) || a.held.Load() != 0 || !a.room.TryAcquire(maxArrivingBytes) {
			t.Errorf("%d bytes became %d, and %d are held", len(content), len(got), a.held.Load())
		}
	})
}
