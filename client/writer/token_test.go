package writer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// newTokens sets a Token function that makes a new token each time it is called.
func newTokens(o *client.Options) {
	var made atomic.Int64
	o.CleartextToken = true // in memory
	o.Token = func(context.Context) (string, error) { return fmt.Sprint("token-", made.Add(1)), nil }
}

// TestTokensThatAreNewEachTime: a refused call is repeated once with a new token, and not
// for as long as Options.Token returns other ones.
func TestTokensThatAreNewEachTime(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(context.Context, *client.Client) error{
		"call": ask,
		"watch": func(ctx context.Context, c *client.Client) error {
			for _, err := range c.Watch(ctx, &seqledgerv1.WatchRequest{Scope: org}) {
				return err
			}
			return nil
		},
		"writer": func(ctx context.Context, c *client.Client) error {
			_, err := writer.Open(ctx, c, writer.Options{Scope: org, ClientID: "w"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
				s.onHeader = func(http.Header) error { return unauthenticated() }
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := do(ctx, c)
				if !errors.Is(err, failure.ErrUnauthenticated) || ctx.Err() != nil || s.refusedCount() != 2 {
					t.Errorf("want the refusal after two attempts, got %v after %d", err, s.refusedCount())
				}
			}, newTokens)
		})
	}
}

// TestAFenceWithTokensThatAreNewEachTime: the ledger's refusal for a minute ends a Writer
// also while it opens a session, and whatever Options.Token returns.
func TestAFenceWithTokensThatAreNewEachTime(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.ledger.toggle("taken")
		w := newWriter(t, c, "w")
		s.set(func(s *fakeServer) {
			s.onWrite = first(faultDrop)
			s.onOpen = func(*seqledgerv1.OpenSessionRequest) error { return unauthenticated() }
		})
		p := burst(t, w, create("taken"))[0]
		pass(5 * time.Minute)
		check.Is(t, w.Err(), failure.ErrUnauthenticated, "want the Writer ended by the server's reason")
		_ = c.Close()
		check.Is(t, check.Err(p.Wait(t.Context())), failure.ErrUnauthenticated, "want the server's reason")
	}, newTokens)
}

// TestAQuietWatchOutlivesManyTokens: each token was taken for an hour, so that the end of
// one is not the refusal of the one before.
func TestAQuietWatchOutlivesManyTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		s.height = 1
		s.onQuiet = func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Hour):
				return unauthenticated()
			}
		}
		time.AfterFunc(5*time.Hour+time.Minute, func() { s.set(func(s *fakeServer) { s.height = 2 }) })
		if seen, err := watchedUntil(t, c, 2); seen != 2 || err != nil {
			t.Errorf("want two blocks, got %d, %v", seen, err)
		}
	}, newTokens)
}
