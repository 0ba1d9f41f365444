package redis

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency/internal/waiters"
)

// relisten is the pause after a subscription breaks.
const relisten = time.Second

// quietTime is the time without a notification after which the server is pinged. The ping also fails once the client
// has left the server.
const quietTime = 30 * time.Second

// newListener returns a listener on a channel.
func newListener(client redis.UniversalClient, channel string) *waiters.Listener {
	return waiters.NewListener(func(ctx context.Context, l *waiters.Listener) time.Duration {
		listen(ctx, client, channel, l)
		return relisten
	})
}

// listen wakes callers until its connection breaks. Meanwhile and afterwards callers poll, so its errors need not be
// reported.
func listen(ctx context.Context, client redis.UniversalClient, channel string, l *waiters.Listener) {
	subscription := client.Subscribe(ctx, channel)
	// A receive does not end with its context.
	stop := context.AfterFunc(ctx, func() { _ = subscription.Close() })
	defer func() {
		if stop() {
			_ = subscription.Close()
		}
	}()
	if _, err := subscription.Receive(ctx); err != nil { // the confirmation
		return
	}
	l.Hearing()
	for quiet := false; ; {
		received, err := subscription.ReceiveTimeout(ctx, quietTime)
		timeout, isNet := errors.AsType[net.Error](err)
		switch message, isMessage := received.(*redis.Message); {
		case isMessage:
			l.Wake(message.Payload)
			quiet = false
		case err == nil: // a pong
			quiet = false
		case quiet || !isNet || !timeout.Timeout() || subscription.Ping(ctx) != nil:
			return
		default:
			quiet = true
		}
	}
}
