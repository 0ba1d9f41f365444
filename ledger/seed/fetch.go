package seed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// stallTimeout is how long a seed may make no progress before either side closes its connection.
const stallTimeout = 30 * time.Second

var errStalled = errors.New("the node sends nothing")

// finalError is an error that persist does not retry.
type finalError struct{ error }

// Unwrap returns the wrapped error.
func (e finalError) Unwrap() error { return e.error }

// persist repeats attempt until it succeeds, fails with a finalError, or ctx ends.
func (o *Options) persist(ctx context.Context, what string, attempt func(context.Context) error) error {
	said := "" // the last problem that was logged
	for {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		if final, is := errors.AsType[finalError](err); is {
			return final.error
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), err)
		}
		if text := err.Error(); text != said {
			said = text // log an error once, not for each attempt
			o.Logger.Warn("it did not succeed yet and is tried again: "+what, "error", err)
		}
		timer := time.NewTimer(o.retry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// tokenRefused makes err final if all nodes that were asked refuse the token. If only some do, their addresses may have
// become those of another cluster.
func tokenRefused(err error, refused, asked int) error {
	if refused > 0 && refused == asked {
		return finalError{err}
	}
	return err
}

func (o *Options) url(node string) string {
	if o.Encrypted {
		return "https://" + node
	}
	return "http://" + node
}

// as returns a RoundTripper that identifies this node to the others.
func (o *Options) as(node transport.Identity) http.RoundTripper {
	return transport.As(o.RoundTripper, func() transport.Identity { return node })
}

// obtain gives receive a state, from the archive or else from a node.
func (o *Options) obtain(
	ctx context.Context, as transport.Identity, node string, take *receiver, receive func(seed) error,
) error {
	if o.Archive != nil {
		err := o.fetchArchived(ctx, as, node, take, receive)
		if _, final := errors.AsType[finalError](err); err == nil || final || ctx.Err() != nil {
			return err
		}
		o.Logger.Info("the archive is of no use to this node, which fetches the state of another one", "reason", err)
	}
	return o.fetch(ctx, as, node, take.atLeast, func(ctx context.Context, r io.Reader) error {
		return receive(take.fromNode(ctx, r))
	})
}

// fetch fetches the state of a node, which must have applied the log up to atLeast.
func (o *Options) fetch(
	ctx context.Context, as transport.Identity, node string, atLeast uint64,
	receive func(ctx context.Context, r io.Reader) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(o.stall, func() { cancel(errStalled) })
	defer stalled.Stop()
	url := fmt.Sprintf("%s%s?at_least=%d", o.url(node), Path, atLeast)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: o.as(as)}).Do(q)
	if err != nil {
		return fmt.Errorf("fetch the state: %w", errors.Join(err, context.Cause(ctx)))
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	if response.StatusCode != http.StatusOK {
		return refused(response)
	}
	body := readerFunc(func(b []byte) (int, error) {
		// The time that this node's disk takes between two reads does not count against the other node.
		stalled.Reset(o.stall)
		n, err := response.Body.Read(b)
		stalled.Stop()
		return n, err
	})
	if err := receive(ctx, body); err != nil {
		if why := response.Trailer.Get(errorTrailer); why != "" {
			err = fmt.Errorf("%w: the other node says: %s", err, why)
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
		return fmt.Errorf("fetch the state: %w", err)
	}
	return nil
}

// refused returns why a node refuses to send its state.
func refused(response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // whatever could be read helps
	err := fmt.Errorf("fetch the state: %s: %q", response.Status, text)
	var no transport.Refusal
	switch known := json.Unmarshal(text, &no) == nil; {
	case known && no.Removed:
		return finalError{fmt.Errorf("%w: %w", cluster.ErrRemoved, err)}
	case response.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w: %w", cluster.ErrToken, err)
	}
	return err
}

type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
